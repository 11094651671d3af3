"""Time intervals at each rank: how much of them is covered, and what one interval leaves to the next.

The intervals of all ranks are in the same columns, so the cost depends on the number of nodes, not of ranks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["Covered", "latest_before", "sums_by_rank"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Covered:
    """The union of time intervals, rank by rank; `total_s` is its length at each rank.

    >>> Covered(np.array([0, 0, 1]), np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0, 6.0]), ranks=3).total_s
    array([3., 1., 0.])
    """

    def __init__(self, rank: Ints, start_s: Floats, end_s: Floats, ranks: int) -> None:
        order = np.lexsort((start_s, rank))
        rank, start_s, end_s = rank[order], start_s[order], end_s[order]
        before_s = latest_before(rank, end_s)
        first = np.flatnonzero(start_s > before_s)
        last = np.append(first[1:], len(rank))[: len(first)] - 1
        self._rank, self._start_s = rank[first], start_s[first]
        self._end_s = np.maximum(before_s[last], end_s[last])
        lengths = self._end_s - self._start_s
        self._before_s = np.concatenate((np.zeros(1), np.cumsum(lengths)))
        self.total_s = sums_by_rank(self._rank, lengths, ranks)

    def between(self, rank: Ints, start_s: Floats, end_s: Floats) -> Floats:
        """The part of each of these intervals that is covered at its rank.

        >>> covered = Covered(np.array([0, 0]), np.array([0.0, 4.0]), np.array([2.0, 6.0]), ranks=1)
        >>> covered.between(np.array([0]), np.array([1.0]), np.array([5.0]))
        array([2.])
        """
        (begun, inside_s), (ended, outside_s) = (self._at(rank, moments_s) for moments_s in (start_s, end_s))
        # Differences of the sums first: within one interval nothing is rounded away.
        found: Floats = (self._before_s[ended] - self._before_s[begun]) + (outside_s - inside_s)
        return found

    def _at(self, rank: Ints, time_s: Floats) -> tuple[Ints, Floats]:
        """The number of intervals, of all ranks in order, that are over at a moment, and the elapsed part of the next
        one.
        """
        count = len(self._rank)
        ranks, times = np.concatenate((self._rank, rank)), np.concatenate((self._start_s, time_s))
        order = np.lexsort((np.arange(len(ranks)) >= count, times, ranks))
        begun = np.empty(len(ranks), np.int64)
        begun[order] = np.cumsum(order < count)
        begun = begun[count:]  # the intervals of this rank and the ranks before it that have begun
        now = np.maximum(begun - 1, 0)
        if not count:
            return begun, np.zeros(len(rank))
        inside = (begun > 0) & (self._rank[now] == rank) & (time_s < self._end_s[now])
        return np.where(inside, now, begun), np.where(inside, time_s - self._start_s[now], 0.0)


def sums_by_rank(rank: Ints, values: Floats, ranks: int) -> Floats:
    """The sum of the values of each rank.

    >>> sums_by_rank(np.array([0, 2, 0]), np.array([1.0, 2.0, 3.0]), 3)
    array([4., 0., 2.])
    """
    return np.bincount(rank, values, minlength=ranks).astype(np.float64)


def latest_before(rank: Ints, end_s: Floats) -> Floats:
    """The latest end among the previous rows of the same rank, -inf for the first; ranks are in order.

    >>> latest_before(np.array([0, 0, 0, 1]), np.array([5.0, 2.0, 7.0, 1.0]))
    array([-inf,   5.,   5., -inf])
    """
    order = np.lexsort((end_s, rank))
    place = np.empty(len(rank), np.int64)  # grows with the rank, and within it with the end
    place[order] = np.arange(len(rank))
    latest = end_s[order[np.maximum.accumulate(place)]]
    first = np.concatenate((np.ones(1, bool), rank[1:] != rank[:-1]))[: len(rank)]
    return np.where(first, -np.inf, np.concatenate((np.zeros(1), latest[:-1]))[: len(rank)])
