"""Bruck: in step k ranks 2^k apart pass on everything gathered so far, so any p is done in lg p steps.

All_gather is optimal in both terms at any p. All_to_all takes lg p steps and sends about half the vector in each, which
is best for short messages. The barrier is the dissemination barrier.

Source: J. Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing systems", IEEE
Transactions on Parallel and Distributed Systems 8(11), 1997.
"""

from __future__ import annotations

import numpy as np

from choreo.algorithms import Cost, algorithm
from choreo.algorithms._ranges import around
from choreo.schedule import Move, Schedule, as_collective, move


@algorithm("all_gather", cost=Cost(alpha="lg(p)", beta="(p - 1) / p"))
def all_gather(ranks: int) -> Schedule:
    """Before step k rank r has the 2^k blocks from r on, and sends them to the rank 2^k below."""
    rank = np.arange(ranks)
    steps: list[list[Move]] = []
    for k in range((ranks - 1).bit_length()):
        distance = 1 << k
        steps.append(around(rank, (rank - distance) % ranks, rank, min(distance, ranks - distance), ranks))
    return Schedule.from_list("all_gather", ranks, steps)


@algorithm("all_to_all", cost=Cost(alpha="lg(p)", beta="lg(p) / 2", at="powers of two"))
def all_to_all(ranks: int) -> Schedule:
    """The block from rank r to rank r + j travels by the powers of two that add up to j, the smallest first."""
    source = np.arange(ranks)[:, None]

    def step(k: int) -> Move:
        further = np.flatnonzero(np.arange(ranks) >> k & 1)
        holder = (source + (further & ((1 << k) - 1))) % ranks
        chunk = source * ranks + (source + further) % ranks
        return move(holder.reshape(-1), (holder.reshape(-1) + (1 << k)) % ranks, chunk.reshape(-1))

    return Schedule.from_function("all_to_all", ranks, (ranks - 1).bit_length(), step)


@algorithm("barrier", cost=Cost(alpha="lg(p)"))
def barrier(ranks: int) -> Schedule:
    """The dissemination barrier."""
    return as_collective(all_gather(ranks), "barrier")
