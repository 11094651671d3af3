"""Partitioned: every rank owns one part of the vector, collects it from everybody and sends the sum back.

As few bytes as a ring, with fan-in 1 and a different partner in every round. The fourth of five steps from the
parameter server to the ring.
"""

from __future__ import annotations

import numpy as np

from choreo.algorithms import Cost, algorithm
from choreo.schedule import Schedule, backwards, move, then


@algorithm("reduce_scatter", cost=Cost(alpha="p - 1", beta="(p - 1) / p", gamma="(p - 1) / p"))
def reduce_scatter(ranks: int) -> Schedule:
    """In step k rank r sends rank r + k + 1 that rank's part."""
    rank = np.arange(ranks)
    return Schedule.from_rule(
        "reduce_scatter",
        ranks,
        ranks - 1,
        lambda k: move(rank, (rank + k + 1) % ranks, (rank + k + 1) % ranks, reduce=True),
    )


@algorithm("all_gather", cost=Cost(alpha="p - 1", beta="(p - 1) / p"))
def all_gather(ranks: int) -> Schedule:
    """The owners send the parts back the same way."""
    return backwards(reduce_scatter(ranks))


@algorithm("all_reduce", cost=Cost(alpha="2 * (p - 1)", beta="2 * (p - 1) / p", gamma="(p - 1) / p"))
def all_reduce(ranks: int) -> Schedule:
    """Collect the parts, then send the sums back."""
    return then(reduce_scatter(ranks), all_gather(ranks))
