"""Programs: in whatever order ranks get to run, and however data is handed over, the result is the schedule's."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from choreo.algorithms import build, list_algorithms
from choreo.collectives import COLLECTIVES
from choreo.errors import ContradictionError, UsageError
from choreo.run.execute.compile import compile_program
from choreo.run.execute.layout import ALREADY_STAGED, EXPOSED, RECEIVE, REDUCE, SEND, TO_SCRATCH
from choreo.run.execute.program import Program as Compiled
from choreo.run.execute.twin.program import Program
from choreo.schedule import Schedule
from tests.helpers.programs import Emulation, places, replay
from tests.helpers.strategies import can_build, schedule_of, wild_cases
from tests.oracles.replay import Case, Row

GRID = [
    (collective, algorithm.name)
    for collective in COLLECTIVES
    for algorithm in list_algorithms(collective)
    if algorithm.name != "in_network"  # switches that reduce are no processes
]
HANDED = ("staged", "exposed", "mixed", "by pair")


def exposing(handed: str, ranks: int, seed: int) -> npt.NDArray[np.bool_]:
    """Who exposes its data to whom: nobody, everybody, some ranks, or some to some (as sockets do)."""
    generator = np.random.default_rng(seed)
    if handed == "by pair":
        return generator.random((ranks, ranks)) < 0.5
    each = {"staged": np.zeros(ranks), "exposed": np.ones(ranks)}.get(handed, generator.random(ranks))
    return np.repeat(each[:, None] > 0.5, ranks, axis=1)


def hold(schedule: Schedule, count: int, handed: str, *, same: bool, seed: int, parts: int = 1) -> None:
    """Emulate, and compare with the replay wherever the contract promises something."""
    ran = Emulation(schedule, count, exposing(handed, schedule.ranks, seed), same, seed, parts)
    found = ran.run()
    wanted, full = replay(schedule, ran.edges, ran.vectors, np.add)
    for rank, row in enumerate(schedule.held_after()):
        for chunk in np.flatnonzero(row & full[rank]):
            part = slice(int(ran.edges[chunk]) // 8, int(ran.edges[chunk + 1]) // 8)
            assert (found[rank][part] == wanted[rank][part]).all(), (schedule, handed, same, seed, rank, chunk)
    for rank, program in enumerate(ran.programs):
        assert program.sent.tolist() == ran.ready[rank].tolist()
        assert program.received.tolist() == ran.consumed[rank].tolist()
        for peer in range(schedule.ranks):
            ranges = (_ranges(program, peer, SEND), _ranges(ran.programs[peer], rank, RECEIVE, TO_SCRATCH))
            assert ranges[0] == ranges[1], "a frame on a stream is received as it was sent"


def _ranges(program: Compiled, peer: int, *kinds: int) -> list[tuple[int, int]]:
    ops = program.ops[(program.ops["peer"] == peer) & np.isin(program.ops["kind"], kinds)]
    return list(zip(ops["number"].tolist(), ops["length"].tolist(), strict=True))


@pytest.mark.parametrize(("collective", "algorithm"), GRID)
def test_every_algorithm_gives_its_result(collective: str, algorithm: str) -> None:
    one = next(found for found in list_algorithms(collective) if found.name == algorithm)
    seed = 0
    for ranks in (1, 2, 3, 5, 6, 8):
        if not can_build(one, ranks):
            continue
        schedule = build(collective, algorithm, ranks, root=ranks - 1 if COLLECTIVES[collective].rooted else None)
        in_place = collective in ("all_reduce", "broadcast") and algorithm not in ("naive", "staggered")
        for handed in HANDED if ranks < 8 else HANDED[2:3]:
            for same in (False, True) if in_place else (False,):
                seed += 1
                hold(schedule, (101, 0, 1, 3)[seed % 4], handed, same=same, seed=seed, parts=1 + seed % 3)


@given(wild_cases(), st.sampled_from(HANDED), st.booleans(), st.integers(0, 2**20))
@settings(max_examples=60)
def test_schedules_that_nobody_would_write(case: Case, handed: str, same: bool, seed: int) -> None:
    assume(not case.switches)
    schedule = schedule_of(case)
    try:
        wanted = schedule.columns()
        assume(not same or not wanted.from_input.any())
    except ContradictionError:
        assume(False)
    assume(_contiguous(schedule))
    hold(schedule, 5, handed, same=same, seed=seed, parts=1 + seed % 3)


def _contiguous(schedule: Schedule) -> bool:
    """Inputs are one array, so what a rank is given lies in one piece."""
    return all((np.diff(np.flatnonzero(row)) == 1).all() for row in schedule.held_before())


@given(st.sampled_from(GRID), st.integers(2, 9), st.sampled_from(HANDED), st.integers(0, 40), st.integers(0, 2**20))
@settings(max_examples=30)
def test_any_interleaving(which: tuple[str, str], ranks: int, handed: str, count: int, seed: int) -> None:
    one = next(found for found in list_algorithms(which[0]) if found.name == which[1])
    assume(can_build(one, ranks))
    hold(build(*which, ranks), count, handed, same=False, seed=seed, parts=1 + seed % 4)


@pytest.mark.parametrize(("collective", "algorithm"), GRID)
def test_executors_take_every_program(collective: str, algorithm: str) -> None:
    """What the compiler makes passes the checks of the executors, and stays within what it says that it needs."""
    schedule = build(collective, algorithm, 4)
    edges, input_at = places(schedule, 96, 4)
    for handed in HANDED:
        exposes = exposing(handed, 4, 3)
        for rank in range(4):
            program = compile_program(schedule, rank, edges, input_at, exposes[rank], same=False)
            checked = Program(*program.as_bytes())
            assert checked.work_bytes <= int(edges[-1])
            assert checked.grain % 4 == 0
            sends = program.ops[program.ops["kind"] == SEND]
            assert (sends["staged"] + sends["length"] <= program.stage_bytes).all()


def test_an_exchange_goes_through_scratch_only_where_it_must() -> None:
    schedule = build("all_reduce", "recursive_doubling", 2)
    edges, input_at = places(schedule, 8, 4)
    exposed = compile_program(schedule, 0, edges, input_at, np.ones(2, np.bool_), same=True)
    staged = compile_program(schedule, 0, edges, input_at, np.zeros(2, np.bool_), same=True)
    assert TO_SCRATCH in exposed.ops["kind"]
    assert exposed.scratch_bytes == 64
    assert TO_SCRATCH not in staged.ops["kind"]
    assert staged.scratch_bytes == 0
    assert staged.stage_bytes == 64


def test_reducing_into_an_empty_place_stores() -> None:
    """Rank 0 has nothing to add to: what comes in is what it has."""
    row = Row(step=0, src=1, dst=0, chunk=0, count=1, reduce=True, from_input=False)
    schedule = schedule_of(Case("broadcast", 2, 1, 1, (row,), 0))
    edges, input_at = places(schedule, 8, 4)
    program = compile_program(schedule, 0, edges, input_at, np.zeros(2, np.bool_), same=False)
    assert program.ops["kind"].tolist() == [RECEIVE]
    assert not (program.ops["flags"] & REDUCE).any()


def test_inputs_that_are_overwritten_too_early_are_refused() -> None:
    schedule = build("all_reduce", "naive", 3)
    edges, input_at = places(schedule, 8, 4)
    with pytest.raises(UsageError, match="cannot share an array; use out="):
        for rank in range(3):
            compile_program(schedule, rank, edges, input_at, np.zeros(3, np.bool_), same=True)


def test_what_goes_to_several_is_staged_once() -> None:
    """Whoever came first may be reading it already."""
    schedule = build("broadcast", "linear", 4)
    edges, input_at = places(schedule, 8, 4)
    program = compile_program(schedule, 0, edges, input_at, np.array([False, True, False, False]), same=True)
    assert program.ops["kind"].tolist() == [SEND] * 3
    assert (program.ops["flags"] & (EXPOSED | ALREADY_STAGED)).tolist() == [EXPOSED, 0, ALREADY_STAGED]
    assert program.stage_bytes == 64
