"""Linear: the root sends to, or receives from, every other rank itself, in one step.

The baseline for the trees: everything passes through the root's port.
"""

from __future__ import annotations

import numpy as np

from choreo.algorithms import Cost, algorithm
from choreo.schedule import Schedule, backwards, move


def _others(ranks: int, root: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return (root + 1 + np.arange(ranks - 1)) % ranks


@algorithm("broadcast", cost=Cost(alpha="p - 1", beta="p - 1"))
def broadcast(ranks: int, root: int) -> Schedule:
    """The root sends the whole vector to everybody."""
    return Schedule.from_list("broadcast", ranks, [move(root, _others(ranks, root), 0)], root=root)


@algorithm("scatter", cost=Cost(alpha="p - 1", beta="(p - 1) / p"))
def scatter(ranks: int, root: int) -> Schedule:
    """The root sends everybody their block."""
    others = _others(ranks, root)
    return Schedule.from_list("scatter", ranks, [move(root, others, others)], root=root)


@algorithm("reduce", cost=Cost(alpha="p - 1", beta="p - 1", gamma="p - 1"))
def reduce(ranks: int, root: int) -> Schedule:
    """A broadcast backwards."""
    return backwards(broadcast(ranks, root))


@algorithm("gather", cost=Cost(alpha="p - 1", beta="(p - 1) / p"))
def gather(ranks: int, root: int) -> Schedule:
    """A scatter backwards."""
    return backwards(scatter(ranks, root))
