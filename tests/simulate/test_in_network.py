"""Switches that reduce on a topology: where they are put, what they take, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from choreo.algorithms import build
from choreo.errors import RefusedError, UsageError
from choreo.price import CostModel, price
from choreo.prove import prove
from choreo.schedule import Schedule, move
from choreo.simulate import Job, simulate, simulate_together
from choreo.simulate.jobs import placed
from choreo.topology import Topology, compose, get_topology
from choreo.topology.blocks import graph
from choreo.topology.graph import Links

COLLECTIVES = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter")
SWITCH = "switch(8, 450GB/s, 500ns, reduces)"
LINK = CostModel(alpha_s=500e-9, bandwidth_bytes_per_s=450e9)
LARGE = 1 << 30


def nodes(schedule: Schedule, topology: str | Topology, placement: list[int] | None = None) -> list[int]:
    """Where the schedule's switches are put."""
    found: list[int] = placed(Job(schedule, 1.0, placement), get_topology(topology), 0.0).node.tolist()
    return found[schedule.ranks :]


# Times


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("size", [0, 1 << 10, 1 << 28])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_on_one_switch_it_takes_its_price(collective: str, size: int, compiled: bool) -> None:
    schedule = build(collective, "in_network", 8)
    run = simulate(schedule, SWITCH, size, gamma_s_per_byte=1e-9, compiled=compiled)
    assert run.time_s == pytest.approx(price(schedule, size, LINK).total_s, rel=1e-12)
    assert len(run.rank_finish_s) == 8
    assert run.shared != compiled  # no two messages meet
    assert not run.contended


def test_only_the_switch_adds() -> None:
    """Reducing costs a rank time, not a switch: the same steps through a rank take longer."""
    rank = np.arange(7)
    steps = [move(rank, 7, 0, reduce=True), move(7, rank, 0)]
    through_rank = Schedule.from_list("all_reduce", 8, steps)
    through_switch = Schedule.from_list("all_reduce", 7, steps, switches=1)
    for schedule, added in ((through_rank, 7.0), (through_switch, 0.0)):
        without, slow = (simulate(schedule, SWITCH, 1e9, gamma_s_per_byte=gamma).time_s for gamma in (0.0, 1e-3))
        assert (slow - without) / 1e6 == pytest.approx(added, abs=1e-2)


@pytest.mark.parametrize("segments", [1, 4, 64])
def test_segments_overlap_up_and_down(segments: int) -> None:
    run = simulate(build("all_reduce", "in_network", 8, segments=segments), SWITCH, LARGE)
    assert run.time_s == pytest.approx(LARGE / 450e9 * (1 + 1 / segments) + 2 * 500e-9, rel=1e-9)


@pytest.mark.parametrize("ranks", [8, 64])
def test_it_is_near_twice_as_fast_as_a_ring(ranks: int) -> None:
    network = f"switch({ranks}, 450GB/s, 500ns, reduces)"
    ring = simulate(build("all_reduce", "ring", ranks), network, LARGE).time_s
    sharp = simulate(build("all_reduce", "in_network", ranks, segments=256), network, LARGE).time_s
    assert ring / sharp == pytest.approx(2 * (ranks - 1) / ranks, rel=3e-2)


@pytest.mark.parametrize("segments", [None, 16])
@pytest.mark.parametrize(
    ("axes", "network"),
    [
        ("8x4:in_network,ring", "hgx-h100:4"),
        ("8x4:in_network,halving_doubling", "hgx-h100:4"),
        ("8x4:in_network,in_network", f"{SWITCH} x switch(4, 50GB/s, 1us, reduces)"),
        ("8x4:ring,in_network", "ring(8, 450GB/s, 500ns) x switch(4, 50GB/s, 1us, reduces)"),
    ],
)
def test_compiled_and_in_python_shared_and_alone_agree(axes: str, network: str, segments: int | None) -> None:
    schedule = build("all_reduce", "hierarchical", 32, axes=axes, segments=segments)
    run = simulate(schedule, network, 1 << 24)
    twin = simulate(schedule, network, 1 << 24, compiled=False)
    shared = simulate_together([Job(schedule, 1 << 24, start_s=1.0)], network)
    assert twin.time_s == pytest.approx(run.time_s, rel=1e-12)
    assert shared.job_time_s(0) == pytest.approx(run.time_s, rel=1e-9)
    assert twin.rank_finish_s.tolist() == pytest.approx(run.rank_finish_s.tolist(), rel=1e-12)
    assert run.time_s == run.loads.rank_finish_s[0].max()


def test_two_collectives_share_a_switch() -> None:
    schedule = build("all_reduce", "in_network", 8)
    alone = simulate(schedule, SWITCH, LARGE).time_s
    both = simulate_together([Job(schedule, LARGE), Job(schedule, LARGE)], SWITCH)
    assert both.time_s == pytest.approx(2 * alone, rel=1e-2)


def test_stored_and_forwarded_it_takes_the_same() -> None:
    schedule = build("all_reduce", "in_network", 8, segments=4)
    cut_through, stored = (simulate(schedule, SWITCH, LARGE, store_and_forward=way).time_s for way in (False, True))
    assert stored == pytest.approx(cut_through, rel=1e-12)  # a message crosses one link


# Where the switches are


def test_each_group_gets_the_switch_of_its_devices() -> None:
    schedule = build("all_reduce", "hierarchical", 32, axes="8x4:in_network,ring")
    assert nodes(schedule, "hgx-h100:4") == [32, 33, 34, 35]
    both = build("all_reduce", "hierarchical", 32, axes="8x4:in_network,in_network")
    assert nodes(both, f"{SWITCH} x switch(4, 50GB/s, 1us, reduces)") == list(range(32, 44))


def test_the_ranks_decide_not_the_numbers() -> None:
    schedule = build("all_reduce", "hierarchical", 16, axes="8x2:in_network,ring")
    placement = [*range(24, 32), *range(8, 16)]
    assert nodes(schedule, "hgx-h100:4", placement) == [35, 33]
    lone = build("all_reduce", "in_network", 4)
    assert nodes(lone, "hgx-h100:4", [18, 16, 23, 20]) == [34]


def planes(count: int, reduces: list[bool], *, missing: tuple[int, int] | None = None) -> Topology:
    """Two devices and `count` switches between them, each linked both ways with both but for one link."""
    pairs = [(device, 2 + plane) for plane in range(count) for device in range(2)]
    ends = [end for pair in pairs for end in (pair, pair[::-1]) if end != missing]
    links = Links.uniform([src for src, _ in ends], [dst for _, dst in ends], 1e9, 1e-6)
    return compose("planes", [graph(2, links, count, reduces=np.array(reduces))])


def two_switches() -> Schedule:
    """Each half of the vector through a switch of its own."""
    up = move([0, 1, 0, 1], [2, 2, 3, 3], [0, 0, 1, 1], reduce=True)
    down = move([2, 2, 3, 3], [0, 1, 0, 1], [0, 0, 1, 1])
    return Schedule.from_list("all_reduce", 2, [up, down], num_chunks=2, switches=2).named("halves")


def test_the_first_that_is_free_is_taken() -> None:
    assert nodes(two_switches(), planes(3, [True, True, True])) == [2, 3]
    assert nodes(two_switches(), planes(3, [True, False, True])) == [2, 4]
    assert nodes(two_switches(), planes(3, [True, True, True], missing=(2, 1))) == [3, 4]


def test_two_may_be_one_where_no_other_is_free() -> None:
    """Then they share its links."""
    shared, apart = planes(2, [False, True]), planes(2, [True, True])
    assert nodes(two_switches(), shared) == [3, 3]
    times = [simulate(two_switches(), network, 2e9).time_s for network in (shared, apart)]
    assert times == pytest.approx([4.0 + 2e-6, 2.0 + 2e-6], rel=1e-9)
    twin = simulate(two_switches(), shared, 2e9, compiled=False)
    assert twin.time_s == pytest.approx(times[0], rel=1e-9)


def test_a_switch_that_nobody_uses_may_be_anywhere() -> None:
    schedule = build("all_reduce", "hierarchical", 16, axes="4x4:parameter_server,in_network")
    network = get_topology("switch(4, 1GB/s) x switch(4, 1GB/s, 0ns, reduces)")
    assert nodes(schedule, network)[0] == 20  # that of ranks 0, 4, 8 and 12; the others' have nothing to do
    assert simulate(schedule, network, 1e6).time_s > 0


@pytest.mark.parametrize("spine", [4, 6])
def test_switches_may_send_to_switches(spine: int) -> None:
    """A tree: the leaves add, the spine adds what they have, and the sum comes back the same way."""
    links = [(0, 4), (1, 4), (2, 5), (3, 5), (4, 6), (5, 6)]
    ends = [end for pair in links for end in (pair, pair[::-1])]
    both = Links.uniform([src for src, _ in ends], [dst for _, dst in ends], 1e9, 1e-6)
    network = compose("tree", [graph(4, both, 3, reduces=np.array([True, True, True]))])
    rank, leaves = np.arange(4), np.array([5, 6] if spine == 4 else [4, 5])
    leaf = leaves[rank // 2]
    up = [move(rank, leaf, 0, reduce=True), move(leaves, spine, 0, reduce=True)]
    down = [move(spine, leaves, 0), move(leaf, rank, 0)]
    schedule = Schedule.from_list("all_reduce", 4, [*up, *down], switches=3)
    prove(schedule)
    assert nodes(schedule, network) == ([6, 4, 5] if spine == 4 else [4, 5, 6])
    assert simulate(schedule, network, 1e9).time_s == pytest.approx(4 * (1.0 + 1e-6))


# Refusals


def refusal(schedule: Schedule, network: str | Topology) -> str:
    with pytest.raises(RefusedError) as caught:
        simulate(schedule, network, 1 << 20)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("network", ["ring(8)", "switch(8, 450GB/s)", "fat_tree(2x4, 1GB/s)"])
def test_a_network_without_such_a_switch_is_refused(network: str) -> None:
    assert refusal(build("all_reduce", "in_network", 8), network) == (
        "all_reduce by in_network needs a switch that reduces and is linked with ranks 0, 1, 2, 3 and 4 more; "
        f"{network} has none; use a network that has one, like 'switch(8, 450GB/s, 500ns, reduces)' or hgx-h100, or "
        "another algorithm"
    )


def test_a_switch_must_be_linked_with_all_of_its_ranks() -> None:
    assert "linked with ranks 0, 1, 2, 3 and 12 more" in refusal(build("all_reduce", "in_network", 16), "hgx-h100:2")
    across = build("all_reduce", "hierarchical", 16, axes="8x2:in_network,in_network")
    assert "linked with ranks 0, 8, for its switch 2; hgx-h100:2 has none" in refusal(across, "hgx-h100:2")
    one_way = planes(1, [True], missing=(2, 1))
    assert "linked with ranks 0, 1; " in refusal(build("all_reduce", "in_network", 2), one_way)


def test_a_link_that_is_down_is_no_link() -> None:
    network = get_topology(SWITCH).with_slow_link(3, 8, 0.0)
    assert "has none" in refusal(build("all_reduce", "in_network", 8), network)


# Routes from and to switches


def test_routes_at_switches_are_direct_links() -> None:
    network = get_topology("hgx-h100:4")
    src, dst = np.array([0, 32, 9, 0, 3]), np.array([32, 7, 33, 9, 3])
    routes = network.routes(src, dst)
    ends = [
        [(int(network.links.src[link]), int(network.links.dst[link])) for link in routes.links[first:last].tolist()]
        for first, last in zip(routes.offsets[:-1].tolist(), routes.offsets[1:].tolist(), strict=True)
    ]
    assert ends == [[(0, 32)], [(32, 7)], [(9, 33)], [(0, 32), (32, 1), (1, 37), (37, 9)], []]
    assert routes.latency_s.tolist() == pytest.approx([200e-9, 200e-9, 200e-9, 400e-9 + 0.7e-6, 0.0])
    assert routes.overhead_s.tolist() == [100e-9, 100e-9, 100e-9, 1e-6, 0.0]
    assert routes.bandwidth_bytes_per_s.tolist() == [450e9, 450e9, 450e9, 50e9, np.inf]


def test_routes_at_switches_that_are_not_linked_are_the_shortest() -> None:
    network = get_topology("ring(4, 1GB/s, 1us) x switch(2, 1GB/s, 1us)")
    routes = network.routes(np.array([0, 8]), np.array([9, 11]))
    assert routes.offsets.tolist() == [0, 2, 8]  # along the ring and up; down, along the ring and up, by two ways
    assert routes.latency_s.tolist() == pytest.approx([2e-6, 3e-6])


def test_parallel_links_to_a_switch_share_the_load() -> None:
    ends = [(0, 2), (2, 0), (1, 2), (2, 1)] * 2
    links = Links.uniform([src for src, _ in ends], [dst for _, dst in ends], 1e9, 1e-6)
    network = compose("twice", [graph(2, links, 1, reduces=np.array([True]))])
    routes = network.routes(np.array([0]), np.array([2]))
    assert (len(routes.links), routes.share.tolist(), routes.bandwidth_bytes_per_s.tolist()) == (2, [0.5, 0.5], [2e9])
    assert simulate(build("all_reduce", "in_network", 2), network, 2e9).time_s == pytest.approx(2.0 + 2e-6)


def test_a_switch_that_cannot_be_reached_is_reported() -> None:
    network = get_topology(SWITCH).with_slow_link(3, 8, 0.0)
    with pytest.raises(UsageError, match="there is no way from device 3 to switch0 of"):
        network.routes(np.array([3]), np.array([8]))
