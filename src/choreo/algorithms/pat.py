"""PAT, parallel aggregated trees: every block spreads along a binomial tree, the far ranks first.

It has as many steps and bytes as Bruck at any p. But its messages grow towards near neighbours instead of far ones, so
the slow links at the top of a network carry little.

Source: S. Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale", 2025 (NCCL 2.23).
"""

from __future__ import annotations

import numpy as np

from choreo.algorithms import Cost, algorithm
from choreo.schedule import Move, Schedule, backwards, move


@algorithm("all_gather", cost=Cost(alpha="lg(p)", beta="(p - 1) / p"))
def all_gather(ranks: int) -> Schedule:
    """With distance 2^d, from far to near, rank r sends the blocks that have come to it over larger distances."""
    depth = (ranks - 1).bit_length()
    rank = np.arange(ranks)[:, None]

    def step(k: int) -> Move:
        distance = 1 << (depth - 1 - k)
        offset = np.arange(0, ranks - distance, 2 * distance)
        src = np.broadcast_to(rank, (ranks, len(offset))).reshape(-1)
        return move(src, (src + distance) % ranks, ((rank - offset) % ranks).reshape(-1))

    return Schedule.from_function("all_gather", ranks, depth, step)


@algorithm("reduce_scatter", cost=Cost(alpha="lg(p)", beta="(p - 1) / p", gamma="(p - 1) / p"))
def reduce_scatter(ranks: int) -> Schedule:
    """An all_gather backwards."""
    return backwards(all_gather(ranks))
