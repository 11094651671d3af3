"""Translated trees: one device's chunks spread along trees, and every other device does the same, shifted.

On a network that looks the same from every device, an all_gather is one broadcast of a share, translated. In reverse it
is a reduce_scatter, and one after the other is an all_reduce. Where messages cost their ranks nothing, the trees are
the schedule as they have grown, and the more chunks the better.

Otherwise several numbers of chunks are tried. The last chunks have nothing to hide behind, so they may be smaller. The
messages are put in time with their costs, and for the best few trees the order of messages and the sizes of chunks are
changed a little, as long as the end comes nearer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from choreo.schedule import Schedule, backwards, then
from choreo.synthesize.network import Hops
from choreo.synthesize.ordering import Messages, Ordering
from choreo.synthesize.problem import LEAST_CHUNK_BYTES, Candidate, Problem
from choreo.synthesize.symmetry import Symmetry, symmetry_of, translated_rows
from choreo.synthesize.translation.growth import Spread, spread
from choreo.synthesize.translation.timed import messages_of, scheduled
from choreo.topology.graph import Ints

__all__ = ["gathered", "translated"]

# The most chunks per share.
CHUNKS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 20, 24, 32, 48, 64)
# A number of chunks is tried only if planning it takes at most this many transfers of one device's chunks.
MOST_PLANNED = 1 << 16
# A schedule with more transfers is not simulated if no two messages meet: the plan gives its time.
FEW_TRANSFERS = 1 << 20
# How many chunks at the end are smaller, and by which factor from one to the next.
SHAPES = ((0, 1.0), (1, 0.5), (2, 0.7), (2, 0.5), (3, 0.7), (3, 0.5), (4, 0.7), (6, 0.7), (6, 0.8), (8, 0.85))
# Smaller chunks at the end are tried with numbers of chunks that take no longer than the best by this factor.
NEAR = 1.1
# So many of the best plans are changed a little, and how many messages each may have put in time again for that; then
# the best of them.
CHANGED, MESSAGES, PLANS = 4, (1 << 19, 3 << 21), (4000, 20000)
# On more devices than these, which may take longer, twice as many.
SMALL = 32
# Plans that take longer than the bound by this factor are not improved: that gains a few hundredths.
NEAR_BOUND = 1.15
# Efforts with which nothing is changed: that takes seconds.
UNCHANGED = ("fast", "low")


def translated(problem: Problem) -> Iterator[Candidate]:
    """All_gather, reduce_scatter and all_reduce on a symmetric network."""
    if problem.collective not in ("all_gather", "reduce_scatter", "all_reduce") or problem.weights is not None:
        return
    if not problem.in_order:
        return
    symmetry = symmetry_of(problem.topology)
    if symmetry is None or symmetry.devices < 2:
        return
    share_bytes = problem.size_bytes / problem.ranks
    most = min(MOST_PLANNED // symmetry.devices, problem.most_transfers // symmetry.devices**2)
    most = max(1, min(most, int(share_bytes // LEAST_CHUNK_BYTES)))
    counts = [chunks for chunks in CHUNKS if chunks <= most]
    if problem.topology.links.overhead_s.any() or problem.topology.links.gap_s.any():
        yield from _in_time(problem, symmetry, counts)
        return
    trees = [spread(symmetry, [share_bytes / chunks] * chunks) for chunks in counts]
    found = min(trees, key=lambda one: one.time_s)
    exact = problem.collective != "all_reduce" and len(found.chunk) * symmetry.devices > FEW_TRANSFERS
    schedule = _schedule(problem.collective, symmetry, found)
    yield Candidate("translated", schedule, found.time_s if exact else None)


def _schedule(collective: str, symmetry: Symmetry, plan: Spread) -> Schedule:
    gather = gathered(symmetry, plan)
    if collective == "all_gather":
        return gather
    if collective == "reduce_scatter":
        return backwards(gather)
    # The chunk whose sum is complete first is passed on first.
    return then(backwards(gather), gathered(symmetry, plan, reverse=True))


def _in_time(problem: Problem, symmetry: Symmetry, counts: list[int]) -> Iterator[Candidate]:
    """Schedules whose messages are put in time with their costs, first those of equal chunks."""
    hops = symmetry.hops()
    found = sorted(_grown(problem, symmetry, hops, counts, SHAPES[0]), key=_end_s)
    yield _candidate(problem, symmetry, found[0])
    if _end_s(found[0]) > NEAR_BOUND * problem.bound().bound_s:
        return
    near = sorted(one.chunks for one in found if _end_s(one) <= NEAR * _end_s(found[0]))
    for shape in SHAPES[1:]:
        found += _grown(problem, symmetry, hops, near, shape)
    found = sorted(found, key=_end_s)[:CHANGED]
    yield _candidate(problem, symmetry, found[0])
    if problem.effort in UNCHANGED:
        return
    for plan in found:
        plan.search.run(MESSAGES[0], PLANS[0])
    best = min(found, key=_end_s)
    best.search.run(MESSAGES[1] * (1 if problem.ranks <= SMALL else 2), PLANS[1])
    yield _candidate(problem, symmetry, best)


@dataclass(frozen=True, slots=True, eq=False)
class _Grown:
    """Messages of trees, and the search for their order and the sizes of chunks."""

    chunks: int
    messages: Messages
    search: Ordering


def _end_s(grown: _Grown) -> float:
    assert grown.search.best is not None
    return grown.search.best.end_s


def _grown(
    problem: Problem, symmetry: Symmetry, hops: Hops, counts: list[int], shape: tuple[int, float]
) -> Iterator[_Grown]:
    """Trees of these numbers of chunks, with smaller ones at the end."""
    smaller, factor = shape
    share_bytes = problem.size_bytes / problem.ranks
    for chunks in counts:
        sizes = np.ones(chunks)
        falling = min(smaller, chunks)
        sizes[chunks - falling :] = factor ** np.arange(1, falling + 1)
        parts = sizes / sizes.sum()
        if smaller >= chunks > 1 or (chunks > 1 and parts.min() * share_bytes < LEAST_CHUNK_BYTES):
            continue
        trees = spread(symmetry, (parts * share_bytes).tolist())
        messages, order = messages_of(problem.collective, symmetry, hops, trees)
        search = Ordering(messages, parts[None, :], order, share_bytes, resizes=chunks > 1)
        yield _Grown(chunks, messages, search)


def _candidate(problem: Problem, symmetry: Symmetry, grown: _Grown) -> Candidate:
    assert grown.search.best is not None
    return Candidate("translated", scheduled(problem.collective, symmetry, grown.messages, grown.search.best))


def gathered(symmetry: Symmetry, plan: Spread, *, reverse: bool = False) -> Schedule:
    """The plan of device 0, translated to every device; with `reverse` its chunks are numbered backwards."""
    origin = np.arange(symmetry.devices)
    chunk = plan.chunks - 1 - plan.chunk if reverse else plan.chunk

    def chunk_of(chunk: Ints) -> Ints:
        return origin * plan.chunks + chunk

    steps = translated_rows(
        symmetry,
        plan.start_s,
        src=plan.src,
        dst=plan.dst,
        chunk=chunk,
        chunk_of=chunk_of,
        num_chunks=symmetry.devices * plan.chunks,
    )
    return Schedule("all_gather", steps)
