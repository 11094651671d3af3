"""Recursive doubling: in step k a rank exchanges all it has with the partner 2^k away, so what it has doubles.

Latency-optimal at powers of two. At other p = 2^m + r, each of the last r ranks first sends its share to the rank 2^m
below. That rank acts for both, and at the end sends the result back.

Source: Thakur, Rabenseifner, Gropp (see pairwise.py).
"""

from __future__ import annotations

import numpy as np

from choreo.algorithms import Cost, algorithm
from choreo.algorithms._ranges import present
from choreo.schedule import Move, Schedule, as_collective, move


@algorithm("all_gather", cost=Cost(alpha="lg(p)", beta="(p - 1) / p", at="powers of two"))
def all_gather(ranks: int) -> Schedule:
    """The ranks of an aligned group of 2^k all hold the group's blocks; two groups exchange theirs."""
    core = 1 << (ranks.bit_length() - 1)
    rank, folded = np.arange(core), np.arange(ranks - core)
    steps: list[list[Move]] = []
    if len(folded):
        steps.append([move(core + folded, folded, core + folded)])
    for k in range(core.bit_length() - 1):
        width = 1 << k
        group = rank & ~(width - 1)
        partner = rank ^ width
        theirs = np.minimum(core + group + width, ranks) - (core + group)
        steps.append([move(rank, partner, group, width), present(rank, partner, core + group, theirs)])
    if len(folded):
        own = core + folded
        steps.append([move(folded, own, 0, own), present(folded, own, own + 1, ranks - own - 1)])
    return Schedule.from_list("all_gather", ranks, steps)


@algorithm("all_reduce", cost=Cost(alpha="lg(p)", beta="lg(p)", gamma="lg(p)", at="powers of two"))
def all_reduce(ranks: int) -> Schedule:
    """Partners exchange their whole partial sums."""
    core = 1 << (ranks.bit_length() - 1)
    rank, folded = np.arange(core), np.arange(ranks - core)
    steps = [move(rank, rank ^ (1 << k), 0, reduce=True) for k in range(core.bit_length() - 1)]
    if len(folded):
        steps = [move(core + folded, folded, 0, reduce=True), *steps, move(folded, core + folded, 0)]
    return Schedule.from_list("all_reduce", ranks, steps)


@algorithm("barrier", cost=Cost(alpha="lg(p)", at="powers of two"))
def barrier(ranks: int) -> Schedule:
    """Partners exchange the tokens they have."""
    return as_collective(all_gather(ranks), "barrier")
