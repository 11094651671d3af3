"""Direct: every rank sends to every other at once, in one step.

It suits a fully connected network: with a port to every peer, it has the latency of one message. With one port, the
messages go one after another.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from choreo.algorithms import Cost, algorithm
from choreo.schedule import Schedule, as_collective, backwards, move, then


def _pairs(ranks: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """All ordered pairs of different ranks."""
    rank, further = np.arange(ranks)[:, None], np.arange(1, ranks)
    src, dst = np.broadcast_arrays(rank, (rank + further) % ranks)
    return src.reshape(-1), dst.reshape(-1)


@algorithm("all_gather", cost=Cost(alpha="p - 1", beta="(p - 1) / p"))
def all_gather(ranks: int) -> Schedule:
    """Everybody sends their block to everybody."""
    src, dst = _pairs(ranks)
    return Schedule.from_list("all_gather", ranks, [move(src, dst, src)])


@algorithm("reduce_scatter", cost=Cost(alpha="p - 1", beta="(p - 1) / p", gamma="(p - 1) / p"))
def reduce_scatter(ranks: int) -> Schedule:
    """An all_gather backwards."""
    return backwards(all_gather(ranks))


@algorithm("all_reduce", cost=Cost(alpha="2 * (p - 1)", beta="2 * (p - 1) / p", gamma="(p - 1) / p"))
def all_reduce(ranks: int) -> Schedule:
    """Reduce_scatter, then all_gather."""
    return then(reduce_scatter(ranks), all_gather(ranks))


@algorithm("all_to_all", cost=Cost(alpha="p - 1", beta="(p - 1) / p"))
def all_to_all(ranks: int) -> Schedule:
    """Everybody sends everybody the block meant for them."""
    src, dst = _pairs(ranks)
    return Schedule.from_list("all_to_all", ranks, [move(src, dst, src * ranks + dst)])


@algorithm("barrier", cost=Cost(alpha="p - 1"))
def barrier(ranks: int) -> Schedule:
    """Everybody tells everybody."""
    return as_collective(all_gather(ranks), "barrier")


@algorithm("send_recv", cost=Cost(alpha="1", beta="1"))
def send_recv(ranks: int) -> Schedule:
    """Everybody sends to the next rank."""
    rank = np.arange(ranks)
    return Schedule.from_list("send_recv", ranks, [move(rank, (rank + 1) % ranks, rank)])
