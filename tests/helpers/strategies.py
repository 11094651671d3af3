"""Hypothesis strategies: schedules of the library, mutants of them, and schedules that nobody would write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from choreo.algorithms import Algorithm, build, list_algorithms
from choreo.schedule import Schedule, Steps, Transfers
from tests.oracles.replay import BLOCKS, Case, Place, Row, contributors, has_input, places, wants

COLLECTIVES = tuple(BLOCKS)
Mutation = Callable[[st.DrawFn, Case], list[Row]]


# Between the package's schedules and the oracle's plain rows.


def case_of(schedule: Schedule) -> Case:
    """A schedule as plain data."""
    table = schedule.columns()
    columns = (table.step, table.src, table.dst, table.chunk, table.count, table.reduce, table.from_input)
    rows = tuple(Row(*values) for values in zip(*(column.tolist() for column in columns), strict=True))
    return Case(schedule.collective, schedule.ranks, schedule.root, schedule.num_chunks, rows, schedule.switches)


def schedule_of(case: Case) -> Schedule:
    """Plain data as a schedule; nothing about it is checked until somebody reads its rows."""
    rows = case.rows
    table = Transfers(
        step=np.array([row.step for row in rows], np.int64),
        src=np.array([row.src for row in rows], np.int64),
        dst=np.array([row.dst for row in rows], np.int64),
        chunk=np.array([row.chunk for row in rows], np.int64),
        count=np.array([row.count for row in rows], np.int64),
        reduce=np.array([row.reduce for row in rows], np.bool_),
        from_input=np.array([row.from_input for row in rows], np.bool_),
    )
    steps = Steps.from_transfers(case.members, case.num_chunks, case.num_steps, table)
    return Schedule(case.collective, steps, case.root, "mutant", switches=case.switches)


def with_rows(case: Case, rows: Sequence[Row]) -> Case:
    """The case with other rows, ordered by step and with no step left empty."""
    used = sorted({row.step for row in rows})
    renumbered = [replace(row, step=used.index(row.step)) for row in rows]
    ordered = tuple(sorted(renumbered, key=lambda row: row.step))
    return replace(case, rows=ordered)


# Schedules of the library.


def can_build(algorithm: Algorithm, ranks: int) -> bool:
    """Whether the algorithm says that it does this number of ranks."""
    return algorithm.requires is None or algorithm.requires.holds(ranks)


def is_rooted(collective: str) -> bool:
    """Whether the collective has a root."""
    return collective in ("broadcast", "reduce", "scatter", "gather")


@cache
def library_case(
    collective: str,
    algorithm: str,
    ranks: int,
    *,
    root: int | None = None,
    segments: int | None = None,
    axes: str | None = None,
    rotate: bool = False,
) -> Case:
    """What the library builds, as plain data."""
    return case_of(build(collective, algorithm, ranks, root=root, segments=segments, axes=axes, rotate=rotate or None))


@st.composite
def library_cases(draw: st.DrawFn, max_ranks: int = 9) -> Case:
    """Any collective, any algorithm, any root, in one segment or several."""
    collective = draw(st.sampled_from(COLLECTIVES))
    algorithm = draw(st.sampled_from(list_algorithms(collective)))
    ranks = draw(st.integers(2, max_ranks))
    assume(can_build(algorithm, ranks))
    root = draw(st.integers(0, ranks - 1)) if is_rooted(collective) else None
    axes = draw(st.sampled_from(_axes(ranks))) if "axes" in algorithm.options else None
    rotate = "rotate" in algorithm.options and draw(st.booleans())
    segments = draw(st.sampled_from((None, None, 2, 3)))
    return library_case(collective, algorithm.name, ranks, root=root, segments=segments, axes=axes, rotate=rotate)


def _axes(ranks: int) -> list[str | None]:
    """Ways to lay out the ranks as a mesh of two axes, or to leave it to the algorithm."""
    meshes = [f"{inner}x{ranks // inner}" for inner in range(2, ranks) if ranks % inner == 0]
    pairs = ("direct,ring", "in_network,ring", "ring,in_network")
    return [None, str(ranks), *meshes, *(f"{mesh}:{pair}" for mesh in meshes for pair in pairs)]


# Mutants.


def _index(draw: st.DrawFn, case: Case) -> int:
    return draw(st.integers(0, len(case.rows) - 1))


def _changed(case: Case, index: int, row: Row) -> list[Row]:
    return [*case.rows[:index], row, *case.rows[index + 1 :]]


def drop(draw: st.DrawFn, case: Case) -> list[Row]:
    """A transfer is forgotten."""
    index = _index(draw, case)
    return [*case.rows[:index], *case.rows[index + 1 :]]


def duplicate(draw: st.DrawFn, case: Case) -> list[Row]:
    """A transfer is done twice, in its own step or in another."""
    row = case.rows[_index(draw, case)]
    return [*case.rows, replace(row, step=draw(st.integers(0, case.num_steps)))]


def redirect(draw: st.DrawFn, case: Case) -> list[Row]:
    """Another rank sends, or gets it; now and then one that is not there."""
    index = _index(draw, case)
    there = st.integers(0, case.members - 1)
    rank = draw(there | there | st.sampled_from((-1, case.members)))
    row = case.rows[index]
    return _changed(case, index, replace(row, src=rank) if draw(st.booleans()) else replace(row, dst=rank))


def retarget(draw: st.DrawFn, case: Case) -> list[Row]:
    """Other chunks are carried, or more, or fewer; now and then chunks that are not there."""
    index = _index(draw, case)
    row = case.rows[index]
    inside = st.integers(0, case.num_chunks - 1)
    chunk = row.chunk if draw(st.booleans()) else draw(inside | inside | st.sampled_from((-1, case.num_chunks)))
    fits = st.integers(1, max(1, case.num_chunks - chunk))
    count = row.count if draw(st.booleans()) else draw(fits | fits | st.sampled_from((-1, 0, case.num_chunks + 1)))
    return _changed(case, index, replace(row, chunk=chunk, count=count))


def swap_steps(draw: st.DrawFn, case: Case) -> list[Row]:
    """Two steps change places."""
    one, other = draw(st.integers(0, case.num_steps - 1)), draw(st.integers(0, case.num_steps - 1))
    new = {one: other, other: one}
    return [replace(row, step=new.get(row.step, row.step)) for row in case.rows]


def move_row(draw: st.DrawFn, case: Case) -> list[Row]:
    """A transfer comes sooner or later, perhaps in a step of its own at the end."""
    index = _index(draw, case)
    return _changed(case, index, replace(case.rows[index], step=draw(st.integers(0, case.num_steps))))


def flip_reduce(draw: st.DrawFn, case: Case) -> list[Row]:
    """Stored instead of added, or the other way round."""
    index = _index(draw, case)
    return _changed(case, index, replace(case.rows[index], reduce=not case.rows[index].reduce))


def flip_from_input(draw: st.DrawFn, case: Case) -> list[Row]:
    """Sent from the other place."""
    index = _index(draw, case)
    return _changed(case, index, replace(case.rows[index], from_input=not case.rows[index].from_input))


def shuffle(draw: st.DrawFn, case: Case) -> list[Row]:
    """The rows of the table in another order, each in its step: this must change nothing."""
    return list(draw(st.permutations(case.rows)))


MUTATIONS: dict[str, Mutation] = {
    "drop": drop,
    "duplicate": duplicate,
    "redirect": redirect,
    "retarget": retarget,
    "swap steps": swap_steps,
    "move row": move_row,
    "flip reduce": flip_reduce,
    "flip from_input": flip_from_input,
}


@st.composite
def mutated(draw: st.DrawFn, cases: st.SearchStrategy[Case], mutations: Sequence[Mutation], at_most: int = 1) -> Case:
    """A case with one of the mutations, or with up to `at_most` of them one after another."""
    case = draw(cases)
    for _ in range(draw(st.integers(1, at_most))):
        if not case.rows:
            break
        case = with_rows(case, draw(st.sampled_from(mutations))(draw, case))
    return case


def every_mutant(case: Case) -> Iterator[Case]:
    """All there are with one mutation that keeps the form, except that some send to themselves."""
    steps, ranks = range(case.num_steps + 1), range(case.members)
    for index, row in enumerate(case.rows):
        yield with_rows(case, [*case.rows[:index], *case.rows[index + 1 :]])
        others = [replace(row, reduce=not row.reduce), replace(row, from_input=not row.from_input)]
        others += [replace(row, step=step) for step in steps]
        others += [replace(row, src=rank) for rank in ranks] + [replace(row, dst=rank) for rank in ranks]
        others += [replace(row, chunk=chunk) for chunk in range(case.num_chunks - row.count + 1)]
        others += [replace(row, count=count) for count in range(1, case.num_chunks - row.chunk + 1)]
        for other in others:
            yield with_rows(case, _changed(case, index, other))
        for step in steps:
            yield with_rows(case, [*case.rows, replace(row, step=step)])


# Schedules that nobody would write.


@st.composite
def wild_cases(draw: st.DrawFn, max_ranks: int = 5, *, mended: bool = False) -> Case:
    """Ranks send one another what they happen to have, store it over and add it to anything.

    All rows are good in form, nothing empty is sent and nothing contradicts. `mended`: further steps then put
    right whatever the promise asks for, so the schedule is a right one that has gone far astray.
    """
    collective = draw(st.sampled_from(COLLECTIVES))
    ranks = draw(st.integers(2, max_ranks if collective != "all_to_all" else min(max_ranks, 3)))
    root = draw(st.integers(0, ranks - 1)) if is_rooted(collective) else None
    num_chunks = BLOCKS[collective](ranks) * draw(st.integers(1, 2))
    case = Case(collective, ranks, root, num_chunks, ())
    given = [place for place in places(case) if has_input(case, *place)]
    filled, rows = set(given), list[Row]()
    for step in range(draw(st.integers(0 if mended else 1, 5))):
        rows += _wild_step(draw, case, step, sorted(filled), set(given))
        filled |= {(row.dst, row.chunk) for row in rows}
    if mended:
        chunks = range(num_chunks) if draw(st.booleans()) else draw(st.permutations(range(num_chunks)))
        for chunk in chunks:
            rows += _mend(draw, case, chunk, 1 + max((row.step for row in rows), default=-1))
    return with_rows(case, rows)


def _wild_step(draw: st.DrawFn, case: Case, step: int, filled: Sequence[Place], given: set[Place]) -> list[Row]:
    rows: dict[tuple[int, int, int], Row] = {}
    stores: dict[Place, bool] = {}
    for _ in range(draw(st.integers(1, 6))):
        src, chunk = draw(st.sampled_from(filled))
        dst = (src + draw(st.integers(1, case.ranks - 1))) % case.ranks
        reduce = draw(st.booleans())
        from_input = (src, chunk) in given and draw(st.booleans())
        # A place takes one store or any number of additions a step.
        if (dst, chunk) not in stores or (reduce and not stores[dst, chunk]):
            stores[dst, chunk] = not reduce
            rows[len(rows), dst, chunk] = Row(step, src, dst, chunk, 1, reduce, from_input)
    return list(rows.values())


def _mend(draw: st.DrawFn, case: Case, chunk: int, step: int) -> list[Row]:
    """Rows that give the chunk to all that want it whatever the work places hold: only inputs are trusted."""
    wanting = [rank for rank in range(case.ranks) if wants(case, rank, chunk)]
    giving = contributors(case, chunk)
    first = draw(st.sampled_from(wanting))
    helper = (first + draw(st.integers(1, case.ranks - 1))) % case.ranks
    rows: list[Row] = []
    if giving == [first]:
        # Its own work place may be spoilt, and no rank sends to itself: there and back again.
        rows = [
            Row(step, first, helper, chunk, 1, False, True),
            Row(step + 1, helper, first, chunk, 1, False, False),
        ]
    elif len(giving) == 1:
        rows = [Row(step, giving[0], first, chunk, 1, False, True)]
    else:
        rows = [
            Row(step, first, helper, chunk, 1, False, True),
            Row(step, helper, first, chunk, 1, False, True),
            Row(step + 1, helper, first, chunk, 1, True, False),
        ]
        others = [rank for rank in giving if rank not in (first, helper)]
        rows += [Row(step + 1, rank, first, chunk, 1, True, True) for rank in others]
    return rows + [Row(step + 2, first, rank, chunk, 1, False, False) for rank in wanting if rank != first]
