"""Messages: the transfers of one step between the same two members travel as one."""

from __future__ import annotations

import numpy as np

from choreo.schedule.transfers import IntColumn

__all__ = ["merge_by_pair"]

# Count by all possible pairs while they are at most this many times the rows, and sort otherwise.
DENSE = 4


def merge_by_pair(pair: IntColumn, amount: IntColumn, pairs: int) -> tuple[IntColumn, IntColumn]:
    """The messages that rows make: each pair of ends once, in order, and the sum of its rows' amounts.

    `pair` numbers each row's two ends, below `pairs`: src * members + dst within one step.

    >>> merge_by_pair(np.array([1, 6, 1]), np.array([10, 5, 2]), pairs=9)
    (array([1, 6]), array([12,  5]))
    """
    if (np.diff(pair) > 0).all():
        return pair, amount  # each row is a message already
    if pairs <= DENSE * len(pair):
        found = np.flatnonzero(np.bincount(pair))
        return found, np.bincount(pair, amount).astype(np.int64)[found]
    found, message = np.unique(pair, return_inverse=True)
    return found, np.bincount(message, amount).astype(np.int64)
