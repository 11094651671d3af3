"""Ring: every rank passes one block to the next rank in every step, so all links work all the time.

Bandwidth-optimal for long vectors, at any number of ranks. Broadcast and reduce are the long-vector composites: a ring
combined with a tree's scatter or gather.

Source: P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", Journal of
Parallel and Distributed Computing 69(2), 2009; the composites as in Chan et al. (see mst.py).
"""

from __future__ import annotations

import numpy as np

from choreo.algorithms import Cost, algorithm, mst
from choreo.schedule import Schedule, backwards, move, then


def _pass_on(ranks: int, direction: int) -> Schedule:
    """An all_gather in which blocks travel round the ring: in step k a rank passes on what it got in step k - 1."""
    rank = np.arange(ranks)
    return Schedule.from_rule(
        "all_gather",
        ranks,
        ranks - 1,
        lambda k: move(rank, (rank + direction) % ranks, (rank - direction * k) % ranks),
    )


@algorithm("all_gather", cost=Cost(alpha="p - 1", beta="(p - 1) / p"))
def all_gather(ranks: int) -> Schedule:
    """Blocks travel towards higher ranks."""
    return _pass_on(ranks, +1)


@algorithm("reduce_scatter", cost=Cost(alpha="p - 1", beta="(p - 1) / p", gamma="(p - 1) / p"))
def reduce_scatter(ranks: int) -> Schedule:
    """An all_gather towards lower ranks, backwards: partial sums travel towards higher ranks too."""
    return backwards(_pass_on(ranks, -1))


@algorithm("all_reduce", cost=Cost(alpha="2 * (p - 1)", beta="2 * (p - 1) / p", gamma="(p - 1) / p"))
def all_reduce(ranks: int) -> Schedule:
    """Reduce_scatter, then all_gather."""
    return then(reduce_scatter(ranks), all_gather(ranks))


@algorithm("broadcast", cost=Cost(alpha="lg(p) + p - 1", beta="2 * (p - 1) / p", at="powers of two"))
def broadcast(ranks: int, root: int) -> Schedule:
    """Scatter along a tree, then all_gather round the ring."""
    return then(mst.scatter(ranks, root), all_gather(ranks))


@algorithm(
    "reduce",
    cost=Cost(alpha="lg(p) + p - 1", beta="2 * (p - 1) / p", gamma="(p - 1) / p", at="powers of two"),
)
def reduce(ranks: int, root: int) -> Schedule:
    """Reduce_scatter round the ring, then gather along a tree."""
    return then(reduce_scatter(ranks), mst.gather(ranks, root))
