"""Pairwise exchange: in step k rank r sends to rank r + k + 1 and receives from rank r - k - 1.

All-to-all with one message per port in every step: as few bytes as direct, without contention at the receiver.

Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH",
International Journal of High Performance Computing Applications 19(1), 2005.
"""

from __future__ import annotations

import numpy as np

from choreo.algorithms import Cost, algorithm
from choreo.schedule import Schedule, move


@algorithm("all_to_all", cost=Cost(alpha="p - 1", beta="(p - 1) / p"))
def all_to_all(ranks: int) -> Schedule:
    """P - 1 steps, one partner each."""
    rank = np.arange(ranks)
    return Schedule.from_rule(
        "all_to_all",
        ranks,
        ranks - 1,
        lambda k: move(rank, (rank + k + 1) % ranks, rank * ranks + (rank + k + 1) % ranks),
    )
