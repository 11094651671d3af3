"""Rabenseifner: recursive halving, then recursive doubling (all_reduce) or a tree gather (reduce).

At p = 2^m + r, the first r pairs of neighbours fold by halves: each of the two reduces one half of the vector, then one
hands its half to the other and waits for the result.

Source: R. Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from choreo.algorithms import Cost, algorithm, halving_doubling, mst
from choreo.schedule import Schedule, StepMoves, Steps, after, move, on_ranks


def _folded(ranks: int, active: Sequence[int], middle: Sequence[Steps]) -> list[Steps]:
    """The fold of the first r pairs, then `middle` among the ranks that stay in: active[i] of pair i, and the rest."""
    core = 1 << (ranks.bit_length() - 1)
    pairs = ranks - core
    members = [*active, *range(2 * pairs, ranks)]
    parts = [on_ranks(steps, members, ranks=ranks) for steps in middle]
    if pairs:
        stays = np.asarray(active, np.int64)
        leaves, half = stays ^ 1, core // 2
        fold: list[StepMoves] = [
            [move(leaves, stays, 0, half, reduce=True), move(stays, leaves, half, half, reduce=True)],
            move(leaves, stays, half, half),
        ]
        parts.insert(0, Steps.from_list(ranks, core, fold))
    return parts


@algorithm(
    "all_reduce",
    cost=Cost(alpha="2 * lg(p)", beta="2 * (p - 1) / p", gamma="(p - 1) / p", at="powers of two"),
)
def all_reduce(ranks: int) -> Schedule:
    """Fold, halve, double, unfold."""
    core = 1 << (ranks.bit_length() - 1)
    active = [2 * pair for pair in range(ranks - core)]
    parts = _folded(ranks, active, [halving_doubling.all_reduce(core).body])
    if active:
        stays = np.asarray(active, np.int64)
        parts.append(Steps.from_list(ranks, core, [move(stays, stays + 1, 0, core)]))
    return Schedule("all_reduce", after(*parts))


@algorithm("reduce", cost=Cost(alpha="2 * lg(p)", beta="2 * (p - 1) / p", gamma="(p - 1) / p", at="powers of two"))
def reduce(ranks: int, root: int) -> Schedule:
    """Fold so that the root stays in, halve, then gather along a tree."""
    core = 1 << (ranks.bit_length() - 1)
    pairs = ranks - core
    active = [root if root // 2 == pair else 2 * pair for pair in range(pairs)]
    root_in_core = root // 2 if root < 2 * pairs else root - pairs
    halve, collect = halving_doubling.reduce_scatter(core), mst.gather(core, root_in_core)
    return Schedule("reduce", after(*_folded(ranks, active, [halve.body, collect.body])), root)
