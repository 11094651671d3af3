"""Split the rows of an array between ranks."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import numpy as np

from choreo.errors import CollectiveMismatch, UsageError, excerpt
from choreo.run.engine import Engine
from choreo.run.execute.arrays import Array

__all__ = ["check_sizes", "exchange_sizes", "share_rows"]


def share_rows(array: Array, sizes: Sequence[int] | None, world_size: int) -> tuple[tuple[int, ...], int]:
    """The number of rows of an array that belong to each rank, and the number of elements in a row."""
    if array.ndim == 0:
        raise UsageError("x is a scalar; it needs a first dimension, whose rows are split between the ranks")
    row = math.prod(array.shape[1:])
    if sizes is not None:
        return check_sizes(sizes, world_size, len(array)), row
    if len(array) % world_size:
        raise UsageError(f"x has {len(array)} rows, which is not a multiple of {world_size} ranks; give sizes")
    return (len(array) // world_size,) * world_size, row


def check_sizes(sizes: Sequence[int], world_size: int, total: int | None) -> tuple[int, ...]:
    """Numbers of rows, one for each rank, that add up to `total` if it is given."""
    try:
        counts = tuple(operator.index(size) for size in sizes)
    except TypeError:
        counts = ()
    fits = len(counts) == world_size and min(counts) >= 0 and max(counts) < 2**63
    if not fits or (total is not None and sum(counts) != total):
        must = "" if total is None else f" that add up to {total}, the rows of x"
        raise UsageError(f"sizes must be {world_size} numbers of rows{must}, not {excerpt(sizes)}")
    return counts


def exchange_sizes(
    engine: Engine, rows: tuple[int, ...], expected: tuple[int, ...] | None, row: tuple[int, ...], timeout_s: float
) -> Array:
    """The number of rows that each rank sends to each. If they do not fit, every rank raises before any data is sent.

    It runs as a part of a call, so it does not wait for calls before it.
    """
    size = engine.world_size
    mine = np.array([math.prod(row), *rows, *(expected or [-1] * size)], np.int64)
    found = engine.all_gather(mine, timeout_s, "all_to_all", in_order=False)
    sent, wanted = found[:, 1 : size + 1], found[:, size + 1 :]
    if (found[:, 0] != found[0, 0]).any():
        raise CollectiveMismatch(
            f"all_to_all: a row has {found[:, 0].tolist()} elements by rank; give all ranks the same"
        )
    wrong = np.argwhere((wanted >= 0) & (wanted != sent.T))
    if len(wrong):
        to, source = wrong[0].tolist()
        counts = f"expects {wanted[to, source]} rows from rank {source}, which sends {sent[source, to]}"
        raise CollectiveMismatch(f"all_to_all: rank {to} {counts}")
    return sent
