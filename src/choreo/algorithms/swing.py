"""Swing: partners lie 1, -1, 3, -5, 11, ... ranks away, swinging from side to side, so messages stay near.

On a ring or torus, bytes cross fewer links than in halving-doubling, in as many steps. At powers of two, every block
arrives exactly once. At other even p, a block that would arrive twice is sent once. At odd p, the last rank exchanges
with everybody directly.

Source: D. De Sensi et al., "Swing: short-cutting rings for higher bandwidth allreduce", NSDI 2024.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from choreo.algorithms import Cost, algorithm
from choreo.schedule import Move, Schedule, Steps, after, backwards, in_groups, move, then


def _distance(step: int) -> int:
    """The sum of (-2)^i for i up to `step`: 1, -1, 3, -5, 11, ..."""
    return sum((-2) ** i for i in range(step + 1))


def _spread(ranks: int) -> Steps:
    """The all_gather among an even number of ranks, the farthest partners first.

    All even ranks do the same relative to themselves, and odd ranks its mirror image. So it is enough to follow rank
    0: `has` are the offsets of the blocks it has, and its partner, an odd rank, has the mirror image around itself.
    """
    has: npt.NDArray[np.int64] = np.zeros(1, np.int64)
    sent: list[tuple[int, npt.NDArray[np.int64]]] = []
    for step in reversed(range((ranks - 1).bit_length())):
        partner = _distance(step)
        of_partner = (partner - has) % ranks
        sent.append((partner, np.setdiff1d(has, of_partner)))
        has = np.union1d(has, of_partner)
    rank = np.arange(ranks)[:, None]
    side = 1 - 2 * (rank % 2)

    def moves(k: int) -> Move:
        partner, offsets = sent[k]
        src, dst = np.broadcast_arrays(rank, (rank + side * partner) % ranks, offsets)[:2]
        return move(src.reshape(-1), dst.reshape(-1), ((rank + side * offsets) % ranks).reshape(-1))

    return Steps.from_function(ranks, ranks, len(sent), moves)


@algorithm("all_gather", cost=Cost(alpha="lg(p)", beta="(p - 1) / p", at="powers of two"))
def all_gather(ranks: int) -> Schedule:
    """Everything a rank has goes to its partner; the partners come nearer from step to step."""
    if ranks % 2 == 0:
        return Schedule("all_gather", _spread(ranks))
    last, others = ranks - 1, np.arange(ranks - 1)
    exchange = Steps.from_list(ranks, ranks, [[move(last, others, last), move(others, last, others)]])
    core = in_groups(_spread(last), others[None, :], others[None, :, None], 1, ranks=ranks, num_chunks=ranks)
    return Schedule("all_gather", after(exchange, core))


@algorithm("reduce_scatter", cost=Cost(alpha="lg(p)", beta="(p - 1) / p", gamma="(p - 1) / p", at="powers of two"))
def reduce_scatter(ranks: int) -> Schedule:
    """An all_gather backwards."""
    return backwards(all_gather(ranks))


@algorithm(
    "all_reduce",
    cost=Cost(alpha="2 * lg(p)", beta="2 * (p - 1) / p", gamma="(p - 1) / p", at="powers of two"),
)
def all_reduce(ranks: int) -> Schedule:
    """Reduce_scatter, then all_gather."""
    return then(reduce_scatter(ranks), all_gather(ranks))
