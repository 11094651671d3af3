"""Minimum spanning tree: split the line of ranks in half, send to the half without the message, recurse in both.

Latency-optimal for short vectors, at any number of ranks and any root. The collectives without a root are the
short-vector composites of the four that have one.

Source: E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn, "Collective communication: theory, practice, and
experience", Concurrency and Computation 19(13), 2007.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from choreo.algorithms import Cost, algorithm
from choreo.schedule import Schedule, as_collective, backwards, move, then

Ints = npt.NDArray[np.int64]


class _Split(NamedTuple):
    """One level of the recursion: in each part, `holder` sends to `other`, the new holder of low to high - 1."""

    holder: Ints
    other: Ints
    low: Ints
    high: Ints


def _splits(ranks: int, root: int) -> Iterator[_Split]:
    low, high, holder = (np.array([value], np.int64) for value in (0, ranks, root))
    while (high - low > 1).any():
        open_ = high - low > 1
        low, high, holder = low[open_], high[open_], holder[open_]
        middle = (low + high) // 2
        in_left = holder < middle
        other_low, other_high = np.where(in_left, middle, low), np.where(in_left, high, middle)
        yield _Split(holder, other_low, other_low, other_high)
        low = np.concatenate((np.where(in_left, low, middle), other_low))
        high = np.concatenate((np.where(in_left, middle, high), other_high))
        holder = np.concatenate((holder, other_low))


@algorithm("broadcast", cost=Cost(alpha="lg(p)", beta="lg(p)"))
def broadcast(ranks: int, root: int) -> Schedule:
    """The whole vector goes down the tree."""
    steps = [move(split.holder, split.other, 0) for split in _splits(ranks, root)]
    return Schedule.from_list("broadcast", ranks, steps, root=root)


@algorithm("scatter", cost=Cost(alpha="lg(p)", beta="(p - 1) / p", at="powers of two"))
def scatter(ranks: int, root: int) -> Schedule:
    """Each half gets only its own blocks."""
    steps = [move(s.holder, s.other, s.low, s.high - s.low) for s in _splits(ranks, root)]
    return Schedule.from_list("scatter", ranks, steps, root=root)


@algorithm("reduce", cost=Cost(alpha="lg(p)", beta="lg(p)", gamma="lg(p)"))
def reduce(ranks: int, root: int) -> Schedule:
    """A broadcast backwards."""
    return backwards(broadcast(ranks, root))


@algorithm("gather", cost=Cost(alpha="lg(p)", beta="(p - 1) / p", at="powers of two"))
def gather(ranks: int, root: int) -> Schedule:
    """A scatter backwards."""
    return backwards(scatter(ranks, root))


@algorithm("all_gather", cost=Cost(alpha="2 * lg(p)", beta="(p - 1) / p + lg(p)", at="powers of two"))
def all_gather(ranks: int) -> Schedule:
    """Gather, then broadcast."""
    return then(gather(ranks, 0), broadcast(ranks, 0))


@algorithm(
    "reduce_scatter",
    cost=Cost(alpha="2 * lg(p)", beta="(p - 1) / p + lg(p)", gamma="lg(p)", at="powers of two"),
)
def reduce_scatter(ranks: int) -> Schedule:
    """Reduce, then scatter."""
    return then(reduce(ranks, 0), scatter(ranks, 0))


@algorithm("all_reduce", cost=Cost(alpha="2 * lg(p)", beta="2 * lg(p)", gamma="lg(p)"))
def all_reduce(ranks: int) -> Schedule:
    """Reduce, then broadcast."""
    return then(reduce(ranks, 0), broadcast(ranks, 0))


@algorithm("barrier", cost=Cost(alpha="2 * lg(p)"))
def barrier(ranks: int) -> Schedule:
    """Gather everybody's token at rank 0, then broadcast from there."""
    return as_collective(all_gather(ranks), "barrier")
