"""Bidirectional ring: blocks travel both ways round the ring at once, so each goes only half way.

It takes half the steps of a ring and, where a rank has a port for each neighbour, half the time. With one port, the
price is that of the ring. With an even number of ranks, the block from the opposite rank comes in two halves, one from
each side.

Source: the bucket algorithm on a bidirectional ring, as in Chan et al. (see mst.py) and in the TPU compilers.
"""

from __future__ import annotations

import numpy as np

from choreo.algorithms import Cost, algorithm
from choreo.schedule import Schedule, backwards, move, then


@algorithm("all_gather", cost=Cost(alpha="p - 1", beta="(p - 1) / p", at="odd p"))
def all_gather(ranks: int) -> Schedule:
    """In step k a rank passes the block from k ranks below upwards and that from k ranks above downwards."""
    rank = np.arange(ranks)
    last = ranks // 2 - 1 if ranks % 2 == 0 else ranks  # the step in which both sides bring halves of one block
    return Schedule.from_rule(
        "all_gather",
        ranks,
        ranks // 2,
        lambda k: [
            move(rank, (rank + 1) % ranks, (rank - k) % ranks * 2, 2 - (k == last)),
            move(rank, (rank - 1) % ranks, (rank + k) % ranks * 2 + (k == last), 2 - (k == last)),
        ],
        num_chunks=2 * ranks,
    )


@algorithm("reduce_scatter", cost=Cost(alpha="p - 1", beta="(p - 1) / p", gamma="(p - 1) / p", at="odd p"))
def reduce_scatter(ranks: int) -> Schedule:
    """An all_gather backwards."""
    return backwards(all_gather(ranks))


@algorithm("all_reduce", cost=Cost(alpha="2 * (p - 1)", beta="2 * (p - 1) / p", gamma="(p - 1) / p", at="odd p"))
def all_reduce(ranks: int) -> Schedule:
    """Reduce_scatter, then all_gather."""
    return then(reduce_scatter(ranks), all_gather(ranks))
