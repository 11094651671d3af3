"""Split chunks of different sizes into equal ones, because other tools' files have one chunk size.

A block is split into N equal parts, and every chunk becomes one or more of them. N is the number of chunks, or the
smallest power of two, at which no chunk is off by more than `TOLERANCE` of its size, or of half the mean chunk size if
that is larger: errors in the smallest chunks matter little. If there is no such N, the one at which the least data is
in the wrong chunk is taken. Chunks of no size are left out. The order of the steps stays the same.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from choreo.errors import RefusedError
from choreo.schedule.schedule import Schedule
from choreo.schedule.steps import Steps
from choreo.schedule.transfers import IntColumn
from choreo.schedule.weights import Floats

__all__ = ["equal_chunks"]

TOLERANCE = 0.1  # of a chunk's size, or of half the mean size if that is larger
MAX_PARTS = 1 << 10  # parts per block


def equal_chunks(schedule: Schedule, most_chunks: int | None = None) -> Schedule:
    """The same schedule on equal chunks, at most `most_chunks`; an error if blocks differ in size.

    >>> import numpy as np
    >>> from choreo import Schedule, move
    >>> body = Schedule.from_list("broadcast", 2, [move(0, 1, [0, 1])], num_chunks=2).body
    >>> equal_chunks(Schedule("broadcast", body, weights=np.array([1, 3])))
    <Schedule broadcast by unnamed: 2 ranks, root 0, 4 chunks, 1 step>
    """
    if schedule.weights is None:
        return schedule
    blocks = schedule.weights.reshape(-1, schedule.chunks_a_block)
    if (blocks.sum(axis=1) != blocks[0].sum()).any():
        raise RefusedError(
            f"{schedule.collective} by {schedule.label} has blocks of different sizes, and in other tools' files all "
            "ranks have the same share"
        )
    most = MAX_PARTS if most_chunks is None else min(MAX_PARTS, most_chunks // len(blocks))
    parts = _parts(blocks, most).reshape(-1)
    first = np.concatenate(([0], np.cumsum(parts)))
    rows = schedule.columns()
    count = first[rows.chunk + rows.count] - first[rows.chunk]
    finer = replace(rows, chunk=first[rows.chunk], count=count).take(count > 0)
    steps, number = np.unique(finer.step, return_inverse=True)
    body = Steps.from_transfers(schedule.members, int(first[-1]), len(steps), replace(finer, step=number))
    return replace(schedule, body=body, weights=None, phases=())


def _parts(blocks: IntColumn, most: int) -> IntColumn:
    """The number of parts of each chunk of each block. Every block has the same number of parts, at most `most`."""
    share = blocks / blocks.sum(axis=1, keepdims=True)
    chunks = int((blocks > 0).sum(axis=1).max())
    allowed = TOLERANCE * np.maximum(share, 0.5 / (blocks > 0).sum(axis=1, keepdims=True))
    powers = [1 << n for n in range((chunks - 1).bit_length(), most.bit_length())]
    tried: list[tuple[float, int, IntColumn]] = []
    for total in (chunks, *(power for power in powers if chunks < power <= most)):
        parts = _rounded(share * total)
        wrong = np.abs(parts / total - share)
        if (wrong <= allowed).all():
            return parts
        tried.append((float(wrong.sum()), total, parts))
    return min(tried, key=lambda one: one[:2])[2]


def _rounded(wanted: Floats) -> IntColumn:
    """Whole numbers of parts with the same sum in each row; a chunk that has a size gets one at least."""
    parts: IntColumn = np.maximum(wanted > 0, np.floor(wanted).astype(np.int64))
    for row, exact in zip(parts, wanted, strict=True):
        total = round(float(exact.sum()))
        while row.sum() != total:  # add one where the shortfall is largest, or take one where the excess is
            off = exact - row
            if row.sum() < total:
                row[np.argmax(off)] += 1
            else:
                row[np.argmin(np.where(row > 1, off, np.inf))] -= 1
    return parts
