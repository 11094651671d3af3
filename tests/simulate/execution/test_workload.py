"""A workload in time: exact answers, an independent oracle, and what is refused."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

from choreo import build, simulate
from choreo.errors import TraceError, UsageError
from choreo.hardware import get_device
from choreo.show import to_html, to_svg, to_text
from choreo.simulate import Job, Packets, Simulation, simulate_together
from choreo.simulate.execution import WorkloadSimulation, replay, simulate_workload
from choreo.simulate.execution.durations import durations_of
from choreo.simulate.execution.network.message_flows import MessageFlows
from choreo.simulate.execution.rules import Rule
from choreo.simulate.flows.running import RunningJobs
from choreo.simulate.jobs import Placed
from choreo.topology import get_topology
from choreo.workload.execution import ExecutionGraph, GraphBuilder, NodeKind
from tests.oracles.execution import slow_times

RING = "ring(4, 50GB/s, 1us)"


def test_a_chain_and_a_fork_take_their_sums() -> None:
    graph = GraphBuilder(1)
    first = graph.compute(0, "first", 1e-3)
    beside = graph.compute(0, "beside", 5e-3, stream=7, after=[first])
    second = graph.compute(0, "second", 2e-3, after=[first])
    graph.compute(0, "last", 1e-3, after=[second, beside])
    found = simulate_workload(graph.finish(), RING)
    assert found.times.end_s.tolist() == pytest.approx([1e-3, 6e-3, 3e-3, 7e-3])
    assert [leg.name for leg in found.critical_path] == ["first", "beside", "last"]
    assert found.compute_s == pytest.approx(7e-3) and found.exposed_s == 0


def test_kernels_of_one_stream_run_one_at_a_time_in_the_order_they_are_ready() -> None:
    graph = GraphBuilder(1)
    for name in ("a", "b", "c"):
        graph.compute(0, name, 1e-3)
    found = simulate_workload(graph.finish(), RING)
    assert found.times.start_s.tolist() == pytest.approx([0, 1e-3, 2e-3])
    assert len(found.critical_path) == 3


@pytest.mark.parametrize(
    "collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier"]
)
@pytest.mark.parametrize("topology", [RING, "hgx-h100:2", "switch(7, 25GB/s, 2us)"])
def test_a_collective_alone_is_what_simulate_says(collective: str, topology: str) -> None:
    ranks = get_topology(topology).num_devices
    graph = GraphBuilder(ranks)
    root = 1 if collective == "broadcast" else -1
    size = 0 if collective == "barrier" else "3MiB"
    for rank in range(ranks):
        graph.collective(rank, collective, size, range(ranks), root=root)
    found = simulate_workload(graph.finish(), topology, algorithm="fastest")
    rooted = None if root < 0 else root
    alone = []
    for name in list(_names(collective)):
        try:
            schedule = build(collective, name, ranks, root=rooted)
        except Exception:
            continue
        if not schedule.switches:
            alone.append(simulate(schedule, topology, size).time_s)
    assert found.time_s == pytest.approx(min(alone))


def _names(collective: str) -> list[str]:
    from choreo import list_algorithms

    return [one.name for one in list_algorithms(collective)]


def test_collectives_that_share_links_slow_each_other_as_in_simulate() -> None:
    graph = GraphBuilder(8)
    late = 20e-6
    for rank in range(8):
        group, start = (range(0, 8, 2), 0.0) if rank % 2 == 0 else (range(1, 8, 2), late)
        first = graph.compute(rank, "before", start)
        graph.collective(rank, "all_reduce", "1MiB", tuple(group), after=[first])
    found = simulate_workload(graph.finish(), "ring(8, 50GB/s, 1us)", algorithm="ring")
    ring = build("all_reduce", "ring", 4)
    jobs = [Job(ring, "1MiB", [0, 2, 4, 6]), Job(ring, "1MiB", [1, 3, 5, 7], start_s=late)]
    together = simulate_together(jobs, "ring(8, 50GB/s, 1us)")
    ends = found.times.end_s[found.graph.call >= 0]
    assert sorted(ends) == pytest.approx(sorted(np.concatenate(together.loads.rank_finish_s)))
    assert found.time_s > simulate(ring, "ring(8, 50GB/s, 1us)", "1MiB", placement=[0, 2, 4, 6]).time_s


def test_a_collective_waits_for_its_last_rank_and_that_is_exposed() -> None:
    graph = GraphBuilder(4)
    for rank in range(4):
        before = graph.compute(rank, "forward", 1e-3 * (rank + 1))
        graph.collective(rank, "all_reduce", "1MiB", range(4), after=[before])
    found = simulate_workload(graph.finish(), RING, algorithm="ring")
    alone = simulate(build("all_reduce", "ring", 4), RING, "1MiB").time_s
    assert found.time_s == pytest.approx(4e-3 + alone)
    assert found.by_rank["exposed_s"].tolist() == pytest.approx([alone + one * 1e-3 for one in (3, 2, 1, 0)])
    assert next(leg.rank for leg in found.critical_path) == 3


def test_what_hides_behind_computation_is_not_exposed() -> None:
    graph = GraphBuilder(2)
    for rank in range(2):
        graph.collective(rank, "all_reduce", "1MiB", (0, 1))
        graph.compute(rank, "backward", 1.0)
    found = simulate_workload(graph.finish(), "ring(2, 50GB/s, 1us)")
    assert found.exposed_s == 0 and found.communication_s > 0
    assert found.time_s == pytest.approx(1.0)


def test_a_group_takes_the_oldest_or_the_newest_first_and_the_more_urgent_before_both() -> None:
    def ends(order: str, urgent: int) -> list[float]:
        graph = GraphBuilder(2)
        for rank in range(2):
            graph.collective(rank, "all_reduce", "1GiB", (0, 1))
            for number in range(3):
                wait = graph.host(rank, "wait", 1e-3 * (number + 1), stream=number)
                graph.collective(rank, "all_reduce", "1MiB", (0, 1), priority=int(number == urgent), after=[wait])
        found = simulate_workload(graph.finish(), "ring(2, 50GB/s, 1us)", order=order)
        return [float(end) for end in found.times.end_s[found.graph.kind == NodeKind.COLLECTIVE][:4]]

    assert ends("fifo", -1) == sorted(ends("fifo", -1))
    newest = ends("lifo", -1)
    assert newest[0] < newest[3] < newest[2] < newest[1]
    assert ends("fifo", 2)[3] < ends("fifo", 2)[1]


def random_graph(seed: int, ranks: int) -> ExecutionGraph:
    chance = random.Random(seed)
    graph = GraphBuilder(ranks)
    last: list[list[int]] = [[] for _ in range(ranks)]
    for _ in range(40):
        rank = chance.randrange(ranks)
        after = chance.sample(last[rank], min(len(last[rank]), chance.randrange(3)))
        if chance.random() < 0.5:
            last[rank].append(
                graph.compute(rank, "work", chance.uniform(0, 30e-6), stream=chance.randrange(2), after=after)
            )
            continue
        peer = chance.choice([one for one in range(ranks) if one != rank])
        size = chance.choice([0, 1, 1000, 1 << 20, 300_000])
        last[rank].append(graph.send(rank, peer, size, after=after))
        then = chance.sample(last[peer], min(len(last[peer]), chance.randrange(2)))
        last[peer].append(graph.recv(peer, rank, size, after=then))
    return graph.finish()


@pytest.mark.parametrize("topology", ["ring(5, 50GB/s, 1us)", "switch(4, 25GB/s, 500ns)", "torus(2x3, 10GB/s, 1us)"])
@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_take_what_the_oracle_says(topology: str, seed: int) -> None:
    network = get_topology(topology)
    graph = random_graph(seed, network.num_devices)
    found = simulate_workload(graph, network)
    assert found.times.end_s == pytest.approx(slow_times(graph, network), rel=1e-9, abs=1e-15)
    path = found.critical_path
    for leg in path:
        took = found.times.end_s[leg.node] - max(found.times.start_s[leg.node], 0.0)
        assert leg.end_s - leg.start_s <= took * (1 + 1e-9) + 1e-15
    assert path[-1].end_s == found.time_s and path[0].start_s == 0
    assert all(one.end_s == pytest.approx(other.start_s) for one, other in itertools.pairwise(path))


@pytest.mark.parametrize("seed", range(8))
def test_messages_as_flows_and_as_schedules_take_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    graph = GraphBuilder(6)
    last: list[list[int]] = [[] for _ in range(6)]
    for _ in range(30):
        if chance.random() < 0.25:
            group = tuple(sorted(chance.sample(range(6), chance.randint(2, 4))))
            for rank in group:
                last[rank] = [graph.collective(rank, "all_gather", "300KiB", group, after=last[rank])]
            continue
        src, dst = chance.sample(range(6), 2)
        work = graph.compute(src, "work", chance.uniform(0, 20e-6), after=last[src][-1:])
        size = chance.choice([0, 10_000, 1 << 20])
        graph.send(src, dst, size, after=[work])
        last[src], last[dst] = [work], [graph.recv(dst, src, size, after=last[dst][-1:])]
    made = graph.finish()
    as_flows = simulate_workload(made, "torus(2x3, 10GB/s, 1us)")
    monkeypatch.setattr(MessageFlows, "possible", property(lambda _: False, lambda *_: None), raising=False)
    as_schedules = simulate_workload(made, "torus(2x3, 10GB/s, 1us)")
    assert as_flows.times.end_s == pytest.approx(as_schedules.times.end_s, rel=1e-9)
    assert as_flows.link_bytes == pytest.approx(as_schedules.link_bytes)


def test_calls_that_keep_meeting_others_are_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = GraphBuilder(4)
    for rank in range(4):
        last: list[int] = []
        for _ in range(12):
            last = [graph.collective(rank, "all_reduce", "1MiB", range(4), after=last)]
    last = []
    for _ in range(30):  # there is always a message in progress
        last = [graph.send(0, 1, "300KiB", after=last)]
        graph.recv(1, 0, "300KiB")
    made, joined = graph.finish(), list[int]()
    add = RunningJobs.add

    def counted(self: RunningJobs, job: Placed) -> int:
        joined.append(1)
        return add(self, job)

    monkeypatch.setattr(RunningJobs, "add", counted)
    found = simulate_workload(made, RING, algorithm="ring")
    assert 20 < len(joined) <= 42 + 12  # a message that was in progress when a collective came joins with what is left
    twin = simulate_workload(made, RING, algorithm="ring", compiled=False)
    assert twin.times.end_s == pytest.approx(found.times.end_s, rel=1e-12)
    assert twin.link_busy_s == pytest.approx(found.link_busy_s, rel=1e-12)
    monkeypatch.setattr(MessageFlows, "possible", property(lambda _: False, lambda *_: None), raising=False)
    alike = simulate_workload(made, RING, algorithm="ring")
    assert found.times.end_s == pytest.approx(alike.times.end_s, rel=1e-9)
    assert found.link_bytes == pytest.approx(alike.link_bytes)
    assert found.link_busy_s == pytest.approx(alike.link_busy_s, rel=1e-6)


def test_a_group_runs_one_collective_at_a_time_also_while_others_share_its_links() -> None:
    graph = GraphBuilder(4)
    for rank in range(4):
        for _ in range(6):
            graph.collective(rank, "all_reduce", "4MiB", range(4))
        last: list[int] = []
        for _ in range(20 if rank < 2 else 0):
            last = [graph.collective(rank, "all_reduce", "1MiB", (0, 1), after=last)]
    made = graph.finish()
    times = simulate_workload(made, RING, algorithm="ring").times
    of_all = [node for node in range(len(made)) if made.rank[node] == 2]
    for one, other in itertools.pairwise(sorted(of_all, key=lambda node: float(times.start_s[node]))):
        assert times.start_s[other] >= times.end_s[one] * (1 - 1e-9)


def test_the_order_of_ranks_does_not_matter() -> None:
    def run(order: list[int]) -> float:
        graph = GraphBuilder(4)
        for rank in order:
            work = graph.compute(rank, "work", 1e-6 * rank)
            graph.collective(rank, "all_to_all", "1MiB", range(4), after=[work])
            graph.send(rank, (rank + 1) % 4, "1MiB", after=[work])
            graph.recv(rank, (rank - 1) % 4, "1MiB")
        return simulate_workload(graph.finish(), RING).time_s

    assert run([0, 1, 2, 3]) == pytest.approx(run([3, 1, 0, 2]))


def test_a_device_gives_the_time_of_work_that_was_not_recorded() -> None:
    graph = GraphBuilder(1)
    graph.compute(0, "product", flops=1e12, memory_bytes=1e6)
    made = graph.finish()
    with pytest.raises(UsageError, match="it is not known how long product at rank 0 takes"):
        simulate_workload(made, RING)
    fast, slow = (simulate_workload(made, RING, device=name).time_s for name in ("H200", "A100"))
    assert 0 < fast < slow
    reached = simulate_workload(made, RING, device="H200", kernels="curve").time_s
    assert 1.0 < reached / fast < 2.0
    with pytest.raises(UsageError, match="a roofline or a curve"):
        simulate_workload(made, RING, device="H200", kernels="guess")


def test_a_slow_device_computes_longer_and_the_others_wait_for_it() -> None:
    graph = GraphBuilder(4)
    for rank in range(4):
        graph.collective(rank, "all_reduce", "1MiB", range(4), after=[graph.compute(rank, "kernel", 1e-3)])
    made, wire = graph.finish(), get_topology("switch(4, 50GB/s, 1us)")
    slow = simulate_workload(made, wire.with_slow_device(2, 3.0), placement=[3, 2, 1, 0])
    computed = slow.times.end_s[made.kind == NodeKind.COMPUTE].tolist()
    assert computed == pytest.approx([1e-3, 3e-3, 1e-3, 1e-3])  # rank 1 is on device 2
    assert slow.time_s > 3e-3


def test_the_curve_of_a_product_is_that_of_its_shape() -> None:
    device = get_device("H200")
    shapes = [(128, 4096), (4096, 4096), (8192, 8192)]
    graph = GraphBuilder(1)
    for m, n in shapes:
        graph.compute(0, "product", flops=2.0 * m * n * n, memory_bytes=2.0 * (n * n + 2 * m * n))
    graph.compute(0, "norm", memory_bytes=1e8)
    found = durations_of(graph.finish(), device, "curve")
    wanted = [float(device.matmul_time(m, n, n)) for m, n in shapes] + [float(device.memory_time(1e8))]
    assert found == pytest.approx(wanted, rel=1e-6)


def test_collectives_run_as_nccl_would_choose() -> None:
    rule = Rule(get_topology("hgx-h100:2"), default="nccl")
    everybody = tuple(range(16))
    assert rule.schedule("all_reduce", everybody, 8 << 30, None).algorithm in ("ring", "double_binary_tree")
    assert rule.schedule("all_gather", everybody, 1 << 30, None).algorithm == "ring"
    assert rule.schedule("all_to_all", everybody, 1 << 20, None).algorithm == "direct"
    small = rule.schedule("all_reduce", everybody, 1024, None)
    assert small.algorithm == "double_binary_tree"  # trees are for what latency dominates


def test_a_named_algorithm_runs_along_the_dimensions_that_its_group_fills() -> None:
    rule = Rule(
        get_topology("ring(6, 50GB/s, 1us) x ring(4, 50GB/s, 1us)"), {"all_reduce": "hierarchical"}, "translated"
    )
    assert rule.schedule("all_gather", tuple(range(24)), 1 << 20, None).axes == "6x4:ring,ring"
    assert rule.schedule("all_reduce", tuple(range(12)), 1 << 20, None).axes == "6x2:ring,ring"
    assert rule.schedule("all_gather", (0, 6, 12, 18), 1 << 20, None).axes == "4:ring"
    assert rule.schedule("all_gather", (0, 7, 14, 21), 1 << 20, None).axes == "2x2:ring,ring"  # it fills none


def test_a_replay_takes_the_recorded_times() -> None:
    graph = GraphBuilder(2)
    for rank in range(2):
        work = graph.compute(rank, "work", 2e-3 - rank * 1e-3)  # rank 1 waits, and that was recorded
        graph.collective(rank, "all_reduce", "1MiB", (0, 1), duration_s=2e-3 + rank * 1e-3, after=[work])
    assert replay(graph.finish()).time_s == pytest.approx(4e-3)


def test_what_cannot_have_run_is_refused() -> None:
    graph = GraphBuilder(2)
    graph.collective(0, "all_reduce", 8, (0, 1))
    with pytest.raises(TraceError, match=r"number 1 of the group \[0, 1\] is never called by rank 1"):
        graph.finish()
    graph = GraphBuilder(2)
    graph.collective(0, "all_reduce", 8, (0, 1))
    graph.collective(1, "all_reduce", 16, (0, 1))
    with pytest.raises(TraceError, match="ranks disagree on a collective"):
        graph.finish()
    graph = GraphBuilder(2)
    graph.send(0, 1, 8)
    with pytest.raises(TraceError, match="rank 0 sends message 1 with tag 0 to rank 1, which never receives it"):
        graph.finish()
    graph = GraphBuilder(2)
    one = graph.compute(0, "one", 1.0, after=[1])
    graph.compute(0, "two", 1.0, after=[one])
    with pytest.raises(TraceError, match="nodes wait for each other in a cycle: one at rank 0"):
        simulate_workload(graph.finish(), RING)
    graph = GraphBuilder(2)
    for rank, groups in enumerate((((0, 1), "a"), ((1, 0), "b"))):
        first = graph.collective(rank, "all_reduce", 8, groups[0])
        graph.collective(rank, "all_reduce", 8, (1, 0) if rank == 0 else (0, 1), after=[first])
    with pytest.raises(TraceError, match=r"the workload stops with 4 nodes to go: .* waits for rank"):
        simulate_workload(graph.finish(), RING)
    with pytest.raises(UsageError, match="8 ranks, and ring"):
        simulate_workload(GraphBuilder(8).finish(), RING)


def test_nothing_takes_no_time() -> None:
    found = simulate_workload(GraphBuilder(1).finish(), RING)
    assert (found.time_s, found.nodes, found.critical_path, found.exposed) == (0, 0, [], [])
    assert found.to_dict(details=True)["by_rank"][0]["idle_s"] == 0


def test_packets_of_layers_that_repeat_are_followed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four groups that begin at once, layer after layer: what they do together was worked out for every layer."""
    ran: list[int] = []

    def counted(jobs: list[Job], *given: Any, **named: Any) -> Simulation:
        ran.append(len(jobs))
        return simulate_together(jobs, *given, **named)

    monkeypatch.setattr("choreo.simulate.execution.network.runs.simulate_together", counted)

    def step(layers: int) -> WorkloadSimulation:
        graph = GraphBuilder(8)
        for rank in range(8):
            last: list[int] = []
            for _ in range(layers):
                last = [graph.compute(rank, "forward", 1e-5 / 3, after=last)]
                last = [graph.collective(rank, "all_reduce", "64KiB", (rank // 2 * 2, rank // 2 * 2 + 1), after=last)]
        ran.clear()
        network = "fat_tree(2x4, 50GB/s, 500ns, spines=2)"
        return simulate_workload(graph.finish(), network, packets=Packets(buffer_bytes="32KiB"))

    one = step(1)
    assert sorted(ran) == [1, 1, 1, 1, 4]
    many = step(12)
    assert sorted(ran) == [1, 1, 1, 1, 4]
    assert many.time_s == pytest.approx(12 * one.time_s, rel=1e-9)


def test_packets_meet_in_switches_and_come_to_the_flows_where_they_do_not() -> None:
    def run(packets: Packets | None) -> WorkloadSimulation:
        graph = GraphBuilder(4)
        for rank in range(4):
            work = graph.compute(rank, "work", 20e-6)
            graph.collective(rank, "all_reduce", "4MiB", range(4), after=[work])
            if rank in (0, 2):
                graph.send(rank, rank + 1, "1MiB")
            else:
                graph.recv(rank, rank - 1, "1MiB")
        return simulate_workload(graph.finish(), "switch(4, 50GB/s, 1us)", algorithm="ring", packets=packets)

    flows, packets = run(None), run(Packets(mtu_bytes=1024))
    assert packets.time_s == pytest.approx(flows.time_s, rel=0.03) and packets.time_s != flows.time_s
    assert packets.link_bytes == pytest.approx(flows.link_bytes)
    assert flows.packets is None and packets.packets is not None
    assert packets.packets["delivered_bytes"] == packets.packets["sent_bytes"] == 2 * (1 << 20) + 6 * (4 << 20)
    assert packets.packets["drops"] == 0 and packets.to_dict()["packets"]["mtu_bytes"] == 1024


def test_the_page_of_a_workload_has_every_rank_and_its_critical_path() -> None:
    graph = GraphBuilder(2)
    for rank in range(2):
        work = graph.compute(rank, "for<ward", 1e-3)
        graph.collective(rank, "all_reduce", "64MiB", (0, 1), after=[work])
    found = simulate_workload(graph.finish(), "ring(2, 50GB/s, 1us)")
    picture, page = to_svg(found), to_html(found)
    assert picture.count("<text") >= 3 and "rank 1" in picture and "critical path" in picture
    assert picture.removeprefix("<svg ") in page and "for&lt;ward" in page and "for<ward" not in page
    assert "exposed communication" in to_text(found, width=100)
