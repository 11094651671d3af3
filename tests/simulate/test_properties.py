"""What holds for every simulation: it beats no bound, loses no byte, tells its path, and says the same twice."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from choreo.algorithms import build
from choreo.schedule import Schedule, Steps, Transfers, move
from choreo.simulate import Simulation, simulate
from choreo.simulate.flows.engine import Messages
from choreo.simulate.jobs import Placed
from choreo.topology import Topology, get_topology
from tests.helpers.simulate import (
    CLOSE,
    CORES,
    EXAMPLES,
    NO_TIME_S,
    PROFILE,
    TIMES,
    MakeCore,
    Setup,
    alone,
    alone_and_kept,
    assert_close,
    assert_same_loads,
    close,
    reducing_networks,
    reductions,
    right_schedules,
    run,
    setups,
)

any_core = st.sampled_from(list(CORES.values()))


def simulation_of(setup: Setup, make: MakeCore) -> Simulation:
    """The simulation that the run of one of the cores gives."""
    loads, messages = run(setup, make)
    return Simulation(setup.topology, setup.jobs, loads, True, setup.store_and_forward, kept=messages)


# The bound.


@given(setups(kind=right_schedules, max_jobs=1), st.booleans())
@settings(PROFILE, max_examples=3 * EXAMPLES)
def test_no_schedule_beats_the_bound(setup: Setup, store_and_forward: bool) -> None:
    network = setup.topology.with_routing("hashed" if store_and_forward else setup.topology.routing)
    found = simulation_of(Setup(network, setup.jobs, store_and_forward), next(reversed(CORES.values())))
    assert found.job_time_s(0) >= found.bound.bound_s * (1 - CLOSE)
    event(f"reaches {found.efficiency:.1f} of it")


@given(
    reducing_networks(),
    st.sampled_from(("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter")),
    st.sampled_from((None, 2, 30)),
    st.sampled_from((0, 1000, 6_000_000)),
    st.data(),
)
@settings(PROFILE)
def test_no_switch_beats_the_bound(
    network: Topology, collective: str, segments: int | None, size: int, data: st.DataObject
) -> None:
    ranks = data.draw(st.integers(2, network.blocks[0].size))
    devices = data.draw(st.permutations(range(network.blocks[0].size)))[:ranks]
    root = data.draw(st.integers(0, ranks - 1)) if collective in ("reduce", "broadcast") else None
    schedule = build(collective, "in_network", ranks, root=root, segments=segments)
    found = simulate(schedule, network, size, placement=devices)
    assert found.time_s >= found.bound.bound_s * (1 - CLOSE)


def test_the_bound_knows_of_weights_and_of_devices() -> None:
    heavy = Schedule("all_gather", build("all_gather", "direct", 3).body, weights=np.array([1, 0, 0]))
    found = simulate(heavy, "fully_connected(4, 1GB/s)", 3e9, placement=[3, 1, 0])
    assert found.bound.ranks == 3
    assert found.time_s == pytest.approx(3.0)
    # All of it is on device 3 and has three links to leave by; were it a third at each rank, two would have to come in.
    assert found.bound.bound_s == pytest.approx(1.0)


# What links carry.


@given(setups(), any_core)
@settings(PROFILE)
def test_links_carry_every_byte_and_no_more_than_they_can(setup: Setup, make: MakeCore) -> None:
    found = simulation_of(setup, make)
    assert (found.utilisation <= 1 + CLOSE).all()
    assert (found.loads.link_busy_s <= found.time_s * (1 + CLOSE)).all()
    messages, sent = found.messages, np.zeros(len(setup.topology.links))
    for job, placement in enumerate(setup.jobs):
        own = np.flatnonzero(messages.job == job)
        routes = setup.topology.routes(placement.node[messages.src[own]], placement.node[messages.dst[own]])
        crossed = [messages.links_of(number) for number in own.tolist()]
        np.testing.assert_array_equal(np.concatenate([routes.links[:0], *crossed]), routes.links)
        np.add.at(sent, routes.links, routes.share * np.repeat(messages.bytes[own], np.diff(routes.offsets)))
    assert_close("bytes of links", found.loads.link_bytes, sent)


@given(setups(), any_core)
@settings(PROFILE)
def test_a_message_starts_goes_out_arrives_and_is_written(setup: Setup, make: MakeCore) -> None:
    messages = simulation_of(setup, make).messages
    begin = np.array([job.start_s for job in setup.jobs])[messages.job]
    assert (messages.start_s >= begin).all()
    assert (messages.out_s - messages.start_s >= messages.alone_s() * (1 - CLOSE) - NO_TIME_S).all()
    assert (messages.arrived_s >= messages.out_s).all()
    assert (messages.written_s >= messages.arrived_s).all()


# Twice the same.


def columns(messages: Messages) -> list[bytes]:
    names = (
        "job",
        "step",
        "src",
        "dst",
        "bytes",
        *TIMES,
        "ready_cause",
        "start_cause",
        "write_cause",
        "bottleneck",
        "route",
        "links",
    )
    return [getattr(messages, name).tobytes() for name in names]


@given(setups(), any_core)
@settings(PROFILE, max_examples=EXAMPLES // 2)
def test_the_same_bytes_twice(setup: Setup, make: MakeCore) -> None:
    one, other = run(setup, make), run(setup, make)
    assert columns(one[1]) == columns(other[1])
    assert one[0].link_bytes.tobytes() == other[0].link_bytes.tobytes()
    assert one[0].link_busy_s.tobytes() == other[0].link_busy_s.tobytes()
    assert [f.tobytes() for f in one[0].rank_finish_s] == [f.tobytes() for f in other[0].rank_finish_s]


def shuffled(job: Placed, seed: int) -> Placed:
    """The job with the rows of every step in another order."""
    rows = job.schedule.columns()
    order = np.random.default_rng(seed).permutation(len(rows))
    mixed: Transfers = rows.take(order).by_step()
    schedule = job.schedule
    body = Steps.from_transfers(schedule.members, schedule.num_chunks, schedule.num_steps, mixed)
    return replace(job, schedule=replace(schedule, body=body))


@given(setups(), any_core, st.integers(0, 99))
@settings(PROFILE)
def test_the_order_of_rows_in_a_step_does_not_matter(setup: Setup, make: MakeCore, seed: int) -> None:
    other = Setup(setup.topology, tuple(shuffled(job, seed) for job in setup.jobs))
    (loads, messages), (other_loads, other_messages) = run(setup, make), run(other, make)
    assert_same_loads(other_loads, loads)
    one, two = (np.lexsort((m.dst, m.src, m.step, m.job)) for m in (messages, other_messages))
    for name in ("job", "step", "src", "dst", "bytes", *TIMES):
        assert_close(name, getattr(other_messages, name)[two], getattr(messages, name)[one])
    passed = alone(other)
    if passed is not None:
        assert_same_loads(passed, loads)


@given(setups())
@settings(PROFILE, max_examples=2 * EXAMPLES)
def test_a_lone_pass_keeps_the_messages_of_a_shared_one(setup: Setup) -> None:
    passed = alone_and_kept(setup, keep=True)
    assume(passed is not None)
    assert passed is not None and passed[1] is not None
    loads, messages = run(setup, CORES["compiled"])
    assert_same_loads(passed[0], loads)
    for name in ("job", "step", "src", "dst", "bottleneck", "reduces", "route", "links", "offsets"):
        np.testing.assert_array_equal(getattr(passed[1], name), getattr(messages, name), name)
    for name in ("bytes", "share", *TIMES):
        assert_close(name, getattr(passed[1], name), getattr(messages, name))
    assert_close("alone_s", passed[1].alone_s(), messages.alone_s())
    for name in ("start_cause", "write_cause"):
        _same_cause(passed[1], messages, name)


def _same_cause(one: Messages, other: Messages, name: str) -> None:
    """The causes are the same, or at the same moment up to rounding."""
    mine, theirs = getattr(one, name), getattr(other, name)
    for at in np.flatnonzero(mine != theirs).tolist():
        cause = [
            -1.0 if value < 0 else float((one.out_s if value % 2 else one.written_s)[value // 2])
            for value in (mine[at], theirs[at])
        ]
        if -1.0 in cause:  # held up by no more than rounding, or not at all
            until = one.start_s[at] if name == "start_cause" else one.arrived_s[at]
            assert max(cause) == close(float(until))
        else:
            assert cause[0] == close(cause[1])


# The critical path.


@given(setups(), any_core)
@settings(PROFILE, max_examples=2 * EXAMPLES)
def test_the_critical_path_has_no_gap(setup: Setup, make: MakeCore) -> None:
    found = simulation_of(setup, make)
    path, reduce_s = found.critical_path, reductions(setup.jobs)
    if not len(found.messages):
        assert path == []
        return
    assert path[0].waited_for == "nothing"
    assert path[0].start_s == setup.jobs[path[0].job].start_s + path[0].send_s
    assert path[-1].written_s == found.messages.written_s.max()
    for before, leg in pairwise(path):
        assert before.job == leg.job
        event(leg.waited_for)
        match leg.waited_for:
            case "data":
                assert (before.dst, before.written_s + leg.send_s) == (leg.src, leg.start_s)
                assert before.step < leg.step
            case "port":
                assert (before.src, before.out_s) == (leg.src, leg.start_s)
                assert before.step < leg.step
            case "sender":
                assert before.src == leg.src
                assert leg.send_s > 0
            case "reader" | "writer" as held_up:
                since_s = before.out_s if held_up == "reader" else before.written_s
                assert before.src == leg.dst if held_up == "reader" else before.dst == leg.dst
                # A receiver with a message rate is busy with a message for a while after it was written.
                busy = held_up == "writer" and setup.topology.links.gap_s.any()
                assert since_s > leg.arrived_s or (busy and leg.receive_s > 0)
                least_s = since_s + reduce_s[leg.job, leg.step, leg.src, leg.dst] + leg.receive_s
                assert leg.written_s >= least_s * (1 - 1e-12)
                assert setup.topology.links.gap_s.any() or leg.written_s == pytest.approx(least_s, rel=1e-12)
            case _:
                pytest.fail(f"waits for {leg.waited_for}")
    for leg in path:
        assert (leg.shared_s > 0) == (leg.out_s - leg.start_s > found.messages.alone_s()[leg.message] * (1 + CLOSE))
        assert leg.link in found.messages.links_of(leg.message) or leg.size_bytes == 0


# The critical path, where it is plain what waits for what.


def path(schedule: Schedule, network: Topology | str, size: float, gamma: float = 0.0) -> list[tuple[int, int, str]]:
    found = simulate(schedule, network, size, gamma_s_per_byte=gamma)
    return [(leg.src, leg.dst, leg.waited_for) for leg in found.critical_path]


def test_a_path_that_waits_for_a_port_and_for_data() -> None:
    chain = [move(0, 1, 0), move(0, 2, 1), move(2, 3, 1)]
    schedule = Schedule.from_list("broadcast", 4, chain, num_chunks=2)
    assert path(schedule, "switch(4, 1GB/s, 1us)", 2e6) == [(0, 1, "nothing"), (0, 2, "port"), (2, 3, "data")]
    # Each pair has a port of its own.
    assert path(schedule, "fully_connected(4, 1GB/s, 1us)", 2e6) == [(0, 2, "nothing"), (2, 3, "data")]


def test_a_path_that_waits_for_a_reader() -> None:
    network = get_topology("fully_connected(3, 1GB/s, 1us)").with_slow_link(1, 2, 0.1)
    swap = [[move(0, 1, 0), move(1, 2, 0)], [move(1, 0, 0)]]
    schedule = Schedule.from_list("broadcast", 3, swap)
    # Rank 1 is read until 10 ms: only then is written what has been there since 1 ms.
    assert path(schedule, network, 1e6) == [(1, 2, "nothing"), (0, 1, "reader"), (1, 0, "data")]
    held = simulate(schedule, network, 1e6).critical_path[1]
    assert (held.arrived_s, held.written_s, held.shared_s) == (close(1.001e-3), close(10e-3), 0.0)


def test_a_path_through_a_port_does_not_care_when_what_left_it_was_written() -> None:
    network = get_topology("switch(4, 1GB/s, 1us)").with_slow_link(1, 4, 0.1)
    schedule = Schedule.from_list("broadcast", 4, [[move(0, 1, 0), move(1, 2, 0)], [move(0, 3, 1, 20)]], num_chunks=21)
    assert path(schedule, network, 21e6) == [(0, 1, "nothing"), (0, 3, "port")]


def test_a_path_that_waits_for_a_writer() -> None:
    network = get_topology("fully_connected(3, 1GB/s, 1us)").with_slow_link(0, 2, 0.1)
    both = Schedule.from_list("reduce", 3, [[move(0, 2, 0, reduce=True), move(1, 2, 0, reduce=True)]])
    # In order of src: the fast one waits for the slow, and its sum comes last.
    assert path(both, network, 1e6, gamma=1e-9) == [(0, 2, "nothing"), (1, 2, "writer")]
    apart = Schedule.from_list("reduce", 3, [[move([0, 1], 2, [0, 1], reduce=True)]], num_chunks=2)
    # A rank does one reduction after another, in order of arrival, wherever they go.
    assert path(apart, "fully_connected(3, 1GB/s, 1us)", 1e6, gamma=1e-9) == [(0, 2, "nothing"), (1, 2, "writer")]


def test_the_path_says_what_sharing_cost_and_where() -> None:
    both = Schedule.from_list("broadcast", 3, [[move(0, [1, 2], [0, 1])]], num_chunks=2)
    found = simulate(both, "switch(3, 1GB/s, 1us)", 2e6)
    (leg,) = found.critical_path
    assert leg.shared_s == close(1e-3)
    assert leg.link == 0  # up from rank 0
    narrow = get_topology("switch(3, 1GB/s, 1us)").with_slow_link(3, 1, 0.25).with_slow_link(3, 2, 0.25)
    assert not simulate(both, narrow, 2e6).contended  # both get all of their way down, the narrower part
    stored = simulate(both, narrow, 2e6, store_and_forward=True)
    assert stored.time_s == close(2e-3 + 4e-3 + 2e-6)
    assert stored.critical_path[0].shared_s == close(1e-3)
    assert stored.contended


# Later.


@given(setups(max_jobs=1), any_core)
@settings(PROFILE)
def test_later_is_the_same_only_later(setup: Setup, make: MakeCore) -> None:
    now, later = (Setup(setup.topology, (replace(setup.jobs[0], start_s=start_s),)) for start_s in (0.0, 1e-3))
    (_, first), (_, second) = run(now, make), run(later, make)
    for name in TIMES:
        np.testing.assert_allclose(getattr(second, name) - 1e-3, getattr(first, name), rtol=1e-6, atol=1e-15)
