"""Annealed: short messages on tori that look the same from every device, with messages that pass devices.

Hop by hop a chunk pays the overhead of a message and its bytes at every device; straight along its route it pays them
once, but keeps all links of the route busy. Which chunk should do what depends on everything else, so simulated
annealing decides: trees for all_gather, in reverse for reduce_scatter, and both for all_reduce, also with several roots
that exchange their sums; paths for all_to_all.
What it plans for one device every other does as well, shifted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, TypeVar

import numpy as np

from choreo.schedule import Schedule, Steps, backwards, then
from choreo.synthesize.annealing.exchanges import Exchanges, roots_of
from choreo.synthesize.annealing.paths import Path, Paths
from choreo.synthesize.annealing.search import Plan, Search
from choreo.synthesize.annealing.trees import Trees
from choreo.synthesize.annealing.ways import Ways
from choreo.synthesize.generators.translated import gathered
from choreo.synthesize.problem import LEAST_CHUNK_BYTES, Candidate, Problem
from choreo.synthesize.symmetry import Symmetry, symmetry_of, translated_rows
from choreo.synthesize.translation.growth import Spread, spread
from choreo.topology.graph import Ints

__all__ = ["annealed"]

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
# Above this size links decide, and hop by hop is best.
MOST_BYTES = 4 << 20
# Rings of fewer devices have nothing to pass.
LEAST_RING = 4
# The most chunks per share, and the most devices.
CHUNKS, MOST_DEVICES = (1, 2), 256
# How many plans are tried for one number of chunks: so many, or so many for each of their messages, or as many as have
# so many messages in all; more if trying one takes less. With a low effort a fraction of that.
PLANS, PLANS_A_MESSAGE, MESSAGES = 40_000, 1_500, 8 << 20
LOW_EFFORT = 0.1
# The part of them that goes to the first try of each start, for each number of chunks.
FIRST = 0.3
# A search that gains less than this part of the time is not begun again.
HARDLY = 0.001
# How many times as many are tried where one kind of trees is looked for, and not two.
ONE_KIND = 2.0

# Several roots of a share: so many at most, on so many devices; the parts of all plans that go to each start, and to
# each of the best, which are so many, and nearly as fast as the first.
MOST_ROOTS, MOST_EXCHANGING = 8, 128
FEW, EXCHANGES = 0.02, 0.5
BEST, NEAR = 3, 1.1

Shape = TypeVar("Shape")
Kind = TypeVar("Kind", bound=Search[Any])


def annealed(problem: Problem) -> Iterator[Candidate]:
    """Short messages on a symmetric network: by trees if it has long rings, by paths on any."""
    if problem.collective not in KINDS or problem.weights is not None or not problem.in_order:
        return
    if not 0 < problem.size_bytes <= MOST_BYTES or problem.ranks > MOST_DEVICES:
        return
    has_rings = any(block.kind == "ring" and block.size >= LEAST_RING for block in problem.topology.blocks)
    if problem.collective != "all_to_all" and not has_rings:
        return
    symmetry = symmetry_of(problem.topology)
    if symmetry is None:
        return
    ways = Ways.of(problem.topology, symmetry)
    schedules = _exchanged if problem.collective == "all_to_all" else _gathered
    for schedule in schedules(problem, symmetry, ways):
        yield Candidate("annealed", replace(schedule, receive_in_order=True))
        yield Candidate("annealed", schedule)


def _gathered(problem: Problem, symmetry: Symmetry, ways: Ways) -> Iterator[Schedule]:
    """By trees, of the number of chunks that does best in a few plans."""
    share_bytes, part, parts = problem.size_bytes / problem.ranks, _part(problem), []
    counts = [chunks for chunks in CHUNKS if chunks == 1 or share_bytes / chunks >= LEAST_CHUNK_BYTES]
    given = []
    for chunks in counts:
        away = Trees(ways, share_bytes / chunks, chunks)
        given.append((away, _given(away, spread(symmetry, [share_bytes / chunks] * chunks))))
    if problem.collective != "reduce_scatter":
        away, plan = _best([(away, [away.direct(), start]) for away, start in given], part)
        parts.append(gathered(symmetry, _spread(away, plan, away.turns(plan))))
        given = [(away, plan)]
    if problem.collective != "all_gather":
        tried = []
        for away, start in given:
            back = Trees(ways, share_bytes / away.chunks, away.chunks, inward=True)
            tried.append((back, [back.direct(), back.turned(start, away.ends_s(start))]))
        back, plan = _best(tried, part)
        parts.insert(0, backwards(gathered(symmetry, _spread(back, plan, -back.turns(plan)))))
    yield then(*parts) if len(parts) > 1 else parts[0]
    if problem.collective == "all_reduce" and problem.ranks <= MOST_EXCHANGING:
        yield from _exchanged_sums(problem, symmetry, ways, counts)


def _exchanged_sums(problem: Problem, symmetry: Symmetry, ways: Ways, counts: Sequence[int]) -> Iterator[Schedule]:
    """By several roots of each share, which exchange their sums; those that do best in a few plans."""
    share_bytes, part = problem.size_bytes / problem.ranks, _part(problem)
    begun = []
    for roots, chunks in product(roots_of(symmetry, MOST_ROOTS), counts):
        search = Exchanges(ways, share_bytes / chunks, chunks, roots)
        plans = [search.run(start, int(_most(search, start) * FEW * part)) for start in search.starts()]
        begun.append((min(plans, key=lambda plan: plan.end_s), search))
    begun.sort(key=lambda found: found[0].end_s)
    for plan, search in begun[:BEST]:
        if plan.end_s <= NEAR * begun[0][0].end_s:
            best = search.run(plan, int(_most(search, plan) * part * EXCHANGES))
            schedule = _with_exchanges(symmetry, search, best)
            if schedule is not None:
                yield schedule


def _with_exchanges(symmetry: Symmetry, search: Exchanges, plan: Plan[Ints]) -> Schedule | None:
    """What device 0 does with its share, for every device; None if its messages have no order."""
    when = search.steps(plan)
    if when is None:
        return None
    origin = np.arange(symmetry.devices)

    def chunk_of(chunk: Ints) -> Ints:
        return origin * search.chunks + chunk

    src, dst = search.ends(plan.shape)
    steps = translated_rows(
        symmetry,
        when,
        src=src,
        dst=dst,
        chunk=search.chunk,
        chunk_of=chunk_of,
        num_chunks=symmetry.devices * search.chunks,
        reduce=search.reduces,
    )
    return Schedule("all_reduce", steps)


def _exchanged(problem: Problem, symmetry: Symmetry, ways: Ways) -> Iterator[Schedule]:
    """By paths of whole blocks."""
    search = Paths(ways, symmetry, problem.size_bytes / problem.ranks)
    _, plan = _best([(search, [search.direct(), search.hop_by_hop()])], _part(problem))
    yield Schedule("all_to_all", _translated(search, plan))


def _translated(search: Paths, plan: Plan[tuple[Path, ...]]) -> Steps:
    """What device 0 does with its blocks, for every device."""
    symmetry, devices = search.symmetry, search.devices
    origin = np.arange(devices)
    src = np.concatenate([(0, *path[:-1]) for path in plan.shape])
    dst = np.concatenate(plan.shape)
    chunk = np.concatenate([np.full(len(path), path[-1]) for path in plan.shape])

    def chunk_of(chunk: Ints) -> Ints:
        return origin * devices + symmetry.shifted(chunk, origin)

    return translated_rows(
        symmetry,
        search.turns(plan).astype(np.float64),
        src=src,
        dst=dst,
        chunk=chunk,
        chunk_of=chunk_of,
        num_chunks=devices**2,
    )


def _part(problem: Problem) -> float:
    """The part of all plans that is tried."""
    part = 1.0 if problem.collective == "all_reduce" else ONE_KIND
    return LOW_EFFORT * part if problem.effort == "low" else part


def _best(tried: Sequence[tuple[Kind, Sequence[Plan[Shape]]]], part: float) -> tuple[Kind, Plan[Shape]]:
    """The best search and plan, after some changes to all starts of each search, and more to the best of them."""
    begun = []
    for search, starts in tried:
        most = part * max(_most(search, plan) for plan in starts)
        begun += [(search.run(start, int(most * FIRST)), search, most) for start in starts]
    plan, search, most = min(begun, key=lambda found: found[0].end_s)
    for _ in tried:  # each time it begins warm again, as long as that helps
        before_s, plan = plan.end_s, search.run(plan, int(most))
        if plan.end_s > before_s * (1 - HARDLY):
            break
    return search, plan


def _most(search: Search[Shape], plan: Plan[Shape]) -> int:
    """How many plans of so many messages are tried."""
    each = len(plan.way)
    return int(search.pace * min(PLANS, PLANS_A_MESSAGE * each, MESSAGES // each))


def _given(search: Trees, plan: Spread) -> Plan[Ints]:
    """The trees of hops as a plan."""
    task = plan.chunk * (search.devices - 1) + plan.dst - 1
    order = np.argsort(task)
    return search.planned(plan.src[order], plan.start_s[order], float(search.takes_s.sum()))


def _spread(search: Trees, plan: Plan[Ints], turns: Ints) -> Spread:
    """The plan as messages away from device 0, in order of these turns."""
    order = np.argsort(turns, kind="stable")
    chunk = np.arange(len(order)) // (search.devices - 1)
    ends = plan.shape[order], search.child[order]
    return Spread(search.chunks, chunk[order], *ends, turns[order].astype(np.float64), plan.end_s)
