"""Runs of neighbouring blocks on a circle, and rows left out where there is nothing to send."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from choreo.schedule import Move, move

__all__ = ["around", "present"]


def present(
    src: npt.ArrayLike,
    dst: npt.ArrayLike,
    chunk: npt.ArrayLike,
    count: npt.ArrayLike,
) -> Move:
    """A move without the rows whose count is not positive."""
    columns = np.broadcast_arrays(src, dst, chunk, count)
    kept = columns[3] > 0
    return move(*(column[kept] for column in columns))


def around(
    src: npt.NDArray[np.int64],
    dst: npt.NDArray[np.int64],
    chunk: npt.NDArray[np.int64],
    count: int,
    total: int,
) -> list[Move]:
    """`count` chunks from `chunk` on, modulo `total`: one range, or two if it wraps."""
    start = chunk % total
    before_end = np.minimum(total - start, count)
    return [move(src, dst, start, before_end), present(src, dst, np.zeros_like(start), count - before_end)]
