"""Staggered decentralised: the messages of naive in parallel, such that no rank receives two at once.

P - 1 rounds with fan-in 1, but every rank still receives P - 1 whole vectors. The third of five steps from the
parameter server to the ring.
"""

from __future__ import annotations

import numpy as np

from choreo.algorithms import Cost, algorithm
from choreo.schedule import Schedule, move


@algorithm("all_reduce", cost=Cost(alpha="p - 1", beta="p - 1", gamma="p - 1"), same_bits=False)
def all_reduce(ranks: int) -> Schedule:
    """In step k rank r sends its input to rank r + k + 1."""
    rank = np.arange(ranks)
    return Schedule.from_rule(
        "all_reduce",
        ranks,
        ranks - 1,
        lambda k: move(rank, (rank + k + 1) % ranks, 0, reduce=True, from_input=True),
    )
