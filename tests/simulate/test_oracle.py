"""The simulator's compiled loops, their twin in Python and the alone pass, all held to the oracle in fractions."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from choreo.algorithms import build
from choreo.schedule import Move, Schedule, move
from choreo.simulate import Job, simulate, simulate_together
from choreo.simulate.flows import engine
from choreo.simulate.flows.backend import core_type, is_compiled
from choreo.simulate.jobs import Placed, placed
from choreo.topology import Links, Topology, compose, fully_connected, get_topology, graph, ring, switch
from tests.helpers.simulate import (
    CORES,
    EXAMPLES,
    PROFILE,
    TIME_S,
    Setup,
    alone,
    assert_as_oracle,
    assert_same_loads,
    assert_same_messages,
    needs_compiler,
    reducing_networks,
    run,
    run_oracle,
    setups,
    spreading_networks,
)


def check(setup: Setup) -> None:
    """Every core gives what the oracle gives, and so does the alone pass where it answers."""
    wanted = run_oracle(setup)
    for make in CORES.values():
        loads, messages = run(setup, make)
        assert_as_oracle(setup, loads, messages, wanted)
    passed = alone(setup)
    if passed is not None:
        assert_same_loads(passed, loads)


@given(setups())
@settings(PROFILE, max_examples=2 * EXAMPLES)
def test_messages_that_cut_through(setup: Setup) -> None:
    check(setup)


@given(setups(store_and_forward=True))
@settings(PROFILE)
def test_messages_that_are_stored_and_forwarded(setup: Setup) -> None:
    check(setup)


@given(setups(reducing_networks()))
@settings(PROFILE)
def test_switches_that_take_part(setup: Setup) -> None:
    check(setup)


def test_two_switches_of_a_schedule_at_one_switch_have_messages_and_ports_of_their_own() -> None:
    network = compose("switch", [switch(3, 1e9, 1000 * TIME_S, reduces=True)])
    steps = [[move(1, 3, 0), move(1, 4, 2), move(2, 4, 1)], [move(3, 0, 0)], [move(4, 0, 1)]]
    schedule = Schedule.from_list("broadcast", 3, steps, num_chunks=3, switches=2)
    setup = Setup(network, jobs_on(network, Job(replace(schedule, weights=np.array([8, 1, 1])), 10_000)))
    assert setup.jobs[0].node.tolist() == [0, 1, 2, 3, 3]
    check(setup)
    _, messages = run(setup, next(reversed(CORES.values())))
    assert len(messages) == 5
    assert messages.start_s[-1] < messages.start_s[-2]  # the later step, from the other switch, does not wait


# A message that is spread leaves by several links, and waits for all of them.


@given(setups(spreading_networks()))
@settings(PROFILE, max_examples=2 * EXAMPLES)
def test_messages_that_leave_by_several_links(setup: Setup) -> None:
    check(setup)


@st.composite
def one_sender(draw: st.DrawFn) -> Setup:
    """One message after another from device 0, each of a size of its own: nothing meets, but ports are waited for."""
    network = draw(spreading_networks())
    receivers = draw(st.lists(st.integers(1, network.num_devices - 1), min_size=2, max_size=8))
    steps = [[move(0, receiver, chunk)] for chunk, receiver in enumerate(receivers)]
    schedule = Schedule.from_list("broadcast", network.num_devices, steps, num_chunks=len(steps))
    weights = draw(st.lists(st.integers(0, 9), min_size=len(steps), max_size=len(steps)).filter(any))
    job = Job(replace(schedule, weights=np.array(weights)), draw(st.sampled_from((1000, 6_000_000))))
    return Setup(network, jobs_on(network, job))


@given(one_sender())
@settings(PROFILE)
def test_the_lone_pass_waits_for_several_links(setup: Setup) -> None:
    check(setup)
    assert (alone(setup) is not None) is ("compiled" in CORES)


def one_after_the_other(network: Topology, receivers: tuple[int, ...], each_bytes: float) -> list[list[float]]:
    """When the messages that device 0 sends, one a step, start and are out: in both cores, and not later when alone."""
    steps = [[move(0, receiver, chunk)] for chunk, receiver in enumerate(receivers)]
    schedule = Schedule.from_list("broadcast", network.num_devices, steps, num_chunks=len(steps))
    setup = Setup(network, jobs_on(network, Job(schedule, each_bytes * len(steps))))
    check(setup)
    _, messages = run(setup, next(reversed(CORES.values())))
    passed = alone(setup)
    assert passed is None or passed.rank_finish_s[0][0] == pytest.approx(messages.out_s.max())
    assert (messages.start_cause >= 0).tolist() == [start > 0 for start in messages.start_s.tolist()]
    return [[float(time) for time in times] for times in zip(messages.start_s, messages.out_s, strict=True)]


MS = 1e-3


@pytest.mark.parametrize(
    ("receivers", "times_ms"),
    [
        # To 5 half over the link to 1 and a quarter over each of the two to 4, as much as the one from 4 to 5 can take.
        # To 4 both links at once, to 1 and to 2 the one that there is.
        ((5, 4), ((0, 2), (2, 4))),
        ((4, 5), ((0, 2), (2, 4))),
        ((5, 1, 2), ((0, 2), (2, 6), (0, 4))),
        ((1, 5, 4), ((0, 4), (4, 6), (6, 8))),
    ],
)
def test_a_dgx_sends_in_order_of_steps_over_double_links(
    receivers: tuple[int, ...], times_ms: tuple[tuple[float, float], ...]
) -> None:
    network = get_topology("dgx-1")
    free = replace(network, links=replace(network.links, overhead_s=np.zeros(len(network.links))))
    found = one_after_the_other(free, receivers, 100e6)
    for times, wanted in zip(found, times_ms, strict=True):
        assert times == pytest.approx([MS * time for time in wanted], rel=1e-9)


@pytest.mark.parametrize("through", [3, 4])
@pytest.mark.parametrize("receivers", [(1, 2), (2, 1)])
def test_two_switches_are_left_by_in_order_of_steps(through: int, receivers: tuple[int, int]) -> None:
    # Device 1 is reached through both switches, device 2 through one: whichever link comes first, they meet there.
    links = Links.uniform([0, 0, 3, 4, through], [3, 4, 1, 1, 2], 1e9, 0.0)
    network = compose("two", [graph(3, links, switches=2)])
    found = one_after_the_other(network, receivers, 1e6)
    wanted = [[0.0, 0.5], [0.5, 1.5]] if receivers == (1, 2) else [[0.0, 1.0], [1.0, 1.5]]
    for times, times_ms in zip(found, wanted, strict=True):
        assert times == pytest.approx([MS * time for time in times_ms], rel=1e-9)


@needs_compiler
def test_the_lone_pass_answers_where_nothing_meets_and_only_there() -> None:
    network = compose("ring", [ring(5, 3e9, 1000 * TIME_S)])
    apart = [[move(rank, (rank + 1) % 5, rank, reduce=True) for rank in range(5)]]
    meeting = [[move(0, 2, 0), move(1, 2, 1)]]  # both cross the link from 1 to 2
    for steps, answers in ((apart, True), (meeting, False)):
        job = placed(Job(Schedule.from_list("all_reduce", 5, steps, num_chunks=5), 1000), network, TIME_S)
        check(Setup(network, (job,)))
        assert (alone(Setup(network, (job,))) is not None) is answers


# Runs that are too big for fractions: the compiled loops against their twin.


def jobs_on(network: Topology, *jobs: Job, gamma_s_per_byte: float = 0.0) -> tuple[Placed, ...]:
    return tuple(placed(job, network, gamma_s_per_byte) for job in jobs)


BIG = {
    "hierarchical": ("all_reduce", "hierarchical", "ring(4, 200GB/s, 50ns) x fully_connected(4, 70GB/s, 500ns)"),
    "ring over a switch": ("all_reduce", "ring", "switch(64, 50GB/s, 1us)"),
    "halving over a torus": ("all_reduce", "halving_doubling", "torus(4x4x4, 45GB/s, 700ns)"),
    "a tree over a mesh": ("broadcast", "double_binary_tree", "mesh(8x8, 30GB/s, 1us)"),
    "all pairs on a narrow tree": ("all_to_all", "pairwise", "fat_tree(4x8, 50GB/s, 1us, oversubscribed=3, spines=3)"),
    "everybody to one": ("reduce", "linear", "switch(64, 50GB/s, 300ns, oversubscribed=7)"),
    "a DGX": ("all_gather", "direct", "dgx-1"),
}


@needs_compiler
@pytest.mark.parametrize("case", BIG.values(), ids=BIG)
@pytest.mark.parametrize("store_and_forward", [False, True], ids=["cut through", "stored"])
def test_the_compiled_loops_are_their_twin(case: tuple[str, str, str], store_and_forward: bool) -> None:
    collective, algorithm, text = case
    network = get_topology(text).with_routing("hashed" if store_and_forward else "spread")
    schedule = build(collective, algorithm, network.num_devices)
    half = build("all_gather", "ring", network.num_devices // 2)
    behind = np.random.default_rng(7).permutation(network.num_devices)[: half.ranks].tolist()
    jobs = jobs_on(network, Job(schedule, 7_654_321), Job(half, 1e6, behind, 3e-6), gamma_s_per_byte=1.7e-12)
    both = Setup(network, jobs, store_and_forward)
    (loads, messages), (twin_loads, twin_messages) = (run(both, CORES[name]) for name in ("compiled", "twin"))
    assert_same_messages(messages, twin_messages)
    assert_same_loads(loads, twin_loads)


# Chunks that are known one by one, and chunks that are known by cells: ranges that no row cuts.


@st.composite
def ranges(draw: st.DrawFn) -> Schedule:
    """Ranges of many chunks, or of all that there are, of different sizes."""
    ranks, chunks = draw(st.integers(2, 6)), draw(st.sampled_from((1, 3, 63, 64, 65, 128, 130, 200)))
    edge = st.sampled_from(sorted({0, 1, chunks // 3, chunks // 2, 62, 63, 64, 65, 127, 128, 129, chunks - 1, chunks}))
    row = st.tuples(st.integers(0, ranks - 1), st.integers(1, ranks - 1), edge, edge, st.booleans())
    steps: list[list[Move]] = []
    for drawn in draw(st.lists(st.lists(row, min_size=1, max_size=5), min_size=1, max_size=6)):
        moves = []
        for src, away, one, other, from_input in drawn:
            low = min(one, other, chunks - 1)
            count = max(1, min(max(one, other), chunks) - low)
            moves.append(move(src, (src + away) % ranks, low, count, reduce=True, from_input=from_input))
        steps.append(moves)
    made = Schedule.from_list("all_reduce", ranks, steps, num_chunks=chunks)
    if draw(st.booleans()):
        return made
    weights = np.random.default_rng(draw(st.integers(0, 9))).integers(0, 5, chunks)
    return Schedule("all_reduce", made.body, weights=weights + (weights.sum() == 0))


@given(ranges(), st.sampled_from((0.0, TIME_S)))
@settings(PROFILE, max_examples=2 * EXAMPLES)
def test_cells_are_chunks_that_go_together(schedule: Schedule, gamma_s_per_byte: float) -> None:
    network = compose("all pairs", [fully_connected(6, 3e9, 250 * TIME_S)])
    setup = Setup(network, jobs_on(network, Job(schedule, 60_000), gamma_s_per_byte=gamma_s_per_byte))
    apart, passed = [run(setup, make) for make in CORES.values()], alone(setup)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_takes_every_place", lambda schedule, members: False)
        for make in CORES.values():
            loads, messages = run(setup, make)
            assert_same_messages(messages, apart[0][1])
            assert_same_loads(loads, apart[0][0])
        together = alone(setup)
    assert (together is None) == (passed is None)
    if together is not None:
        assert_same_loads(together, apart[0][0])


@needs_compiler
@pytest.mark.parametrize("algorithm", ["halving_doubling", "ring", "recursive_doubling", "double_binary_tree"])
def test_few_places_or_many_give_the_same(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = compose("switch", [switch(48, 50e9, 1e-6)])
    setup = Setup(network, jobs_on(network, Job(build("all_reduce", algorithm, 48, segments=3), 1e6)))
    few, few_alone = run(setup, CORES["compiled"]), alone(setup)
    monkeypatch.setattr(engine, "FEW_PLACES", 1)
    many, many_alone = run(setup, CORES["compiled"]), alone(setup)
    assert_same_messages(many[1], few[1])
    assert_same_loads(many[0], few[0])
    assert (few_alone is None) == (many_alone is None)
    if few_alone is not None and many_alone is not None:
        assert_same_loads(many_alone, few[0])
        assert_same_loads(few_alone, few[0])


# Progress, and which loops run.


@pytest.mark.parametrize("core", CORES)
def test_progress_is_reported_and_may_stop_the_run(core: str) -> None:
    ranks = 16 if core == "twin" else 72  # so many messages, each ending at a time of its own, that it is told
    pairs = build("all_to_all", "direct", ranks)
    uneven = replace(pairs, weights=np.random.default_rng(1).integers(1, 100_000, pairs.num_chunks))
    job, network = Job(uneven, 1e6, start_s=1e-6), f"fully_connected({ranks}, 1GB/s, 1us)"
    said: list[tuple[int, int]] = []
    simulate_together([job], network, progress=lambda *now: said.append(now), compiled=core == "compiled")
    assert said
    assert said == sorted(said)
    assert {total for _, total in said} == {ranks * (ranks - 1)}

    def stop(done: int, total: int) -> None:
        raise InterruptedError(done, total)

    with pytest.raises(InterruptedError):
        simulate_together([job], network, progress=stop, compiled=core == "compiled")


@pytest.mark.parametrize("core", CORES)
def test_progress_is_reported_within_long_moments(core: str) -> None:
    ranks = 72 if core == "twin" else 280  # all messages start at one moment, and end at another
    said: list[tuple[int, int]] = []
    job = Job(build("all_to_all", "direct", ranks), 1e6, start_s=1e-6)
    network = f"fully_connected({ranks}, 1GB/s, 1us)"
    simulate_together([job], network, progress=lambda *now: said.append(now), compiled=core == "compiled")
    assert len(said) >= 4
    assert said == sorted(said)
    assert 0 in {done for done, _ in said}


@needs_compiler
def test_a_compiled_simulation_does_not_import_the_python_loops() -> None:
    code = (
        "import sys, choreo\n"
        "choreo.simulate(choreo.build('all_reduce', 'ring', 4), 'ring(4, 1GB/s)', 1e6)\n"
        "print([name for name in sys.modules if 'flows.twin' in name])"
    )
    environment = {**os.environ, "CHOREO_PURE_PYTHON": ""}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("[]\n", "")


def test_which_loops_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert core_type(compiled=False) is CORES["twin"]
    monkeypatch.setenv("CHOREO_PURE_PYTHON", "1")
    assert core_type() is CORES["twin"]
    assert not is_compiled()
    monkeypatch.setenv("CHOREO_PURE_PYTHON", "0")
    assert is_compiled() is ("compiled" in CORES)
    kept = [simulate(build("all_reduce", "ring", 6), "ring(6, 1GB/s)", 1e6, compiled=c).messages for c in (None, False)]
    assert_same_messages(*kept)


# A rank prepares one message after another: of those that it could send, the one of the first step.


def test_a_rank_passes_on_what_it_got_before_it_sends_what_has_time() -> None:
    network = get_topology("fully_connected(3, 1GB/s, 0s, overhead=1us)")
    steps = [[move(1, 0, 0)], [move(0, 2, 0)], *([move(0, 1, chunk)] for chunk in (1, 2, 3, 4))]
    schedule = Schedule.from_list("broadcast", 3, steps, num_chunks=5)
    setup = Setup(network, jobs_on(network, Job(replace(schedule, weights=np.zeros(5, np.int64) + 1), 0)))
    check(setup)
    _, messages = run(setup, next(reversed(CORES.values())))
    # What 1 sends is prepared and taken in after 2 us. Until then 0 has sent two of its own; two more come later.
    assert (messages.start_s * 1e6).round(9).tolist() == [1, 3, 1, 2, 4, 5]


def test_a_rank_that_may_send_only_so_often_chooses_when_it_may() -> None:
    network = get_topology("fully_connected(3, 1GB/s, 0s, overhead=1us, message_rate=200000)")
    steps = [[move(1, 0, 0)], [move(0, 2, 0)], [move(0, 1, 1)], [move(0, 1, 2)]]
    schedule = Schedule.from_list("broadcast", 3, steps, num_chunks=3)
    setup = Setup(network, jobs_on(network, Job(schedule, 0)))
    check(setup)
    _, messages = run(setup, next(reversed(CORES.values())))
    assert (messages.start_s * 1e6).round(9).tolist() == [1, 6, 1, 11]


def test_of_one_step_the_next_rank_is_first_even_if_what_it_gets_comes_late() -> None:
    ends = [(src, dst) for src in range(6) for dst in range(6) if src != dst]
    src, dst = np.array(ends).T
    latency_s = np.where(src == 4, 2.5e-6, 1.5e-6)
    links = Links(src, dst, np.full(30, 1e9), latency_s, np.where(src == 3, 1e-6, 0.0), np.zeros(30))
    network = compose("late", [graph(6, links)])
    first = [move(4, 3, 4), move(5, 3, 5)]
    second = [move(3, 0, 0), move(3, 1, 1), move(3, 2, 2), move(3, 4, 4), move(3, 5, 5)]
    schedule = Schedule.from_list("broadcast", 6, [first, second], num_chunks=6, root=3)
    setup = Setup(network, jobs_on(network, Job(schedule, 0)))
    check(setup)
    _, messages = run(setup, next(reversed(CORES.values())))
    sent = sorted(zip(messages.start_s.tolist(), messages.dst.tolist(), strict=True))
    assert [peer for _, peer in sent if peer != 3] == [0, 1, 5, 4, 2]
