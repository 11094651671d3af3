"""The chunk matrix over simulated time: which rank holds which part of the data.

A cell is a rank's place for a chunk. Its value counts contributions: the ranks in a sum, or one for data that is only
moved. If there are too many cells to send, neighbours are merged, and frames of some moments are sent. If there are too
many to replay, some chunks stand for their neighbours.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from choreo.errors import UsageError
from choreo.explore.fields import FieldError, Fields, case_of, transfers_of
from choreo.explore.views.moment import MOST_DRAWN, run_of
from choreo.schedule import Schedule, message_of

__all__ = ["MOST_EVENTS", "ChunkData", "chunks", "replayed"]

# The most events sent one by one, and the size and number of frames beyond that.
MOST_EVENTS = 40_000
MOST_SIDE, FRAMES = 64, 48
# The most cells that are replayed, and how many if only some chunks are followed.
MOST_CELLS, FOLLOWED = 1 << 23, 1 << 20

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class ChunkData(TypedDict):
    """The matrix: `rows` of `ranks_per_row` ranks, `columns` of `chunks_per_column` chunks.

    `whole` is what a complete cell holds; `wanted` has for each row the cells that the contract requires, as 0 or 1.
    Events are columns: at `time_us` the `cell` (row * columns + column) holds `value`, brought by `message` of the
    run. If `frames` is not empty there are no events: each frame is base64 of one byte per cell, from 0 (nothing) to
    255 (complete), at equal intervals, the first at the start and the last at the end. One in every `follows_one_of`
    chunks is followed.
    """

    rows: int
    columns: int
    ranks_per_row: int
    chunks_per_column: int
    whole: int
    start: list[int]
    wanted: list[int]
    time_us: list[float]
    cell: list[int]
    value: list[int]
    message: list[int]
    frames: list[str]
    follows_one_of: int


@dataclass(frozen=True, slots=True, eq=False)
class _Events:
    """The value of a cell after each write, and the increase, in the order of the schedule."""

    cell: Ints
    value: Ints
    more: Ints
    message: Ints
    start: Ints


def chunks(fields: Fields) -> ChunkData:
    """The chunk matrix of a case.

    >>> found = chunks(Fields(ranks=4))
    >>> found["rows"], found["columns"], found["whole"], len(found["cell"])
    (4, 4, 4, 24)
    """
    case = case_of(fields)
    schedule = case.schedule
    if transfers_of(schedule, MOST_DRAWN) > MOST_DRAWN:
        message = f"{schedule.label} over {schedule.ranks} ranks has too many transfers to follow; use fewer ranks"
        raise FieldError("ranks", UsageError(message))
    run = run_of(case, keep=True)
    cells = schedule.members * schedule.num_chunks
    every = 1 if cells <= MOST_CELLS else min(schedule.num_chunks, -(-cells // FOLLOWED))
    events = replayed(schedule, every)
    written_us = run.messages.written_s * 1e6
    whole = schedule.ranks if schedule.contract.reduces else 1
    ranks, width = schedule.ranks, len(events.start) // schedule.members
    if every == 1 and len(events.cell) <= MOST_EVENTS and ranks * width <= 4 * MOST_EVENTS:
        wanted = schedule.held_after(0, schedule.num_chunks)[:ranks]
        written = written_us[events.message]
        order = np.argsort(written, kind="stable")
        seen = order[events.cell[order] < ranks * width]  # not what switches hold
        return {
            "rows": ranks,
            "columns": width,
            "ranks_per_row": 1,
            "chunks_per_column": 1,
            "whole": whole,
            "start": events.start[: ranks * width].tolist(),
            "wanted": wanted.reshape(-1).astype(int).tolist(),
            "time_us": written[seen].tolist(),
            "cell": events.cell[seen].tolist(),
            "value": events.value[seen].tolist(),
            "message": events.message[seen].tolist(),
            "frames": [],
            "follows_one_of": 1,
        }
    return _frames(schedule, every, written_us, run.time_s * 1e6, whole)


def _of_some(held: Callable[[int, int], Bools], chunks: int, every: int) -> Bools:
    """Who holds the chunks that are followed: one in `every`."""
    if every == 1:
        return held(0, chunks)
    return np.concatenate([held(chunk, chunk + 1) for chunk in range(0, chunks, every)], axis=1)


@lru_cache(maxsize=2)
def replayed(schedule: Schedule, every: int) -> _Events:
    """Replay the steps; a transfer brings what its source held before the step, or what it started with.

    Chunks are independent, so some of them can be followed without the others: one in `every`.
    """
    given_to = _of_some(schedule.held_before, schedule.num_chunks, every)
    width = given_to.shape[1]
    start = np.zeros((schedule.members, width), np.int64)
    start[: schedule.ranks] = given_to[: schedule.ranks]
    held, inputs = start.reshape(-1).copy(), start.reshape(-1)
    cells, values, more, numbers = [], [], [], []
    first = 0
    for rows in schedule.blocks():
        message = message_of(rows) + first
        first = int(message.max(initial=first - 1)) + 1
        edges = np.concatenate(([0], np.flatnonzero(np.diff(rows.step)) + 1, [len(rows)]))
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            begin = -(-rows.chunk[low:high] // every)
            count = -(-(rows.chunk[low:high] + rows.count[low:high]) // every) - begin
            single = bool((count == 1).all())
            nth = (
                np.zeros(high - low, np.int64)
                if single
                else np.arange(count.sum()) - np.repeat(count.cumsum() - count, count)
            )
            row = np.arange(low, high) if single else np.repeat(np.arange(low, high), count)
            source = rows.src[row] * width + begin[row - low] + nth
            into = rows.dst[row] * width + begin[row - low] + nth
            brought = np.where(rows.from_input[row], inputs[source], held[source])
            adds = rows.reduce[row]
            order = np.argsort(rows.src[row], kind="stable")  # writes to one place are in order of src
            row, into, brought, adds = row[order], into[order], brought[order], adds[order]
            after = _added(held, into, brought, adds) if adds.any() else brought
            more.append(_gained(held, into, after))
            held[into] = after
            cells.append(into)
            values.append(after)
            numbers.append(message[row])
    join = [np.concatenate([np.zeros(0, np.int64), *parts]) for parts in (cells, values, more, numbers)]
    return _Events(join[0], join[1], join[2], join[3], inputs)


def _added(held: Ints, into: Ints, brought: Ints, adds: Bools) -> Ints:
    """What places hold after each of one step's writes; several may add to one place, one after another."""
    order = np.argsort(into, kind="stable")
    place, more = into[order], brought[order]
    opens = np.diff(place, prepend=-1) != 0
    total = np.cumsum(more)
    before = (total - more)[opens][np.cumsum(opens) - 1]
    base = np.where(adds[order], held[place], 0)
    after = np.empty_like(brought)
    after[order] = base + total - before
    return after


def _gained(held: Ints, into: Ints, after: Ints) -> Ints:
    """How much more places hold after each of one step's writes than just before it."""
    order = np.argsort(into, kind="stable")
    place, now = into[order], after[order]
    opens = np.diff(place, prepend=-1) != 0
    before = np.concatenate((np.zeros(1, np.int64), now[:-1]))
    before[opens] = held[place[opens]]
    gained = np.empty_like(after)
    gained[order] = now - before
    return gained


@dataclass(frozen=True, slots=True, eq=False)
class _Groups:
    """Groups of merged cells, and what each message's writes add to which group."""

    rows: int
    columns: int
    per_row: int
    per_column: int
    cells: Ints
    start: Floats
    wanted: Ints
    message: Ints
    group: Ints
    more: Floats


@lru_cache(maxsize=2)
def _grouped(schedule: Schedule, every: int) -> _Groups:
    """Cached per schedule: changing the size changes only the times of writes."""
    events = replayed(schedule, every)
    wanted = _of_some(schedule.held_after, schedule.num_chunks, every)[: schedule.ranks]
    ranks, width = wanted.shape
    per_row, per_column = -(-ranks // MOST_SIDE), -(-width // MOST_SIDE)
    rows, columns = -(-ranks // per_row), -(-width // per_column)
    rank, chunk = np.divmod(np.arange(ranks * width), width)
    group = rank // per_row * columns + chunk // per_column
    own = events.cell < ranks * width  # not what switches hold
    return _Groups(
        rows,
        columns,
        per_row,
        per_column,
        cells=np.bincount(group, minlength=rows * columns),
        start=np.bincount(group, events.start[: ranks * width], rows * columns).astype(np.float64),
        wanted=(np.bincount(group, wanted.reshape(-1)) > 0).astype(np.int64),
        message=events.message[own],
        group=group[events.cell[own]],
        more=events.more[own].astype(np.float64),
    )


def _frames(schedule: Schedule, every: int, written_us: Floats, total_us: float, whole: int) -> ChunkData:
    """Frames of some moments, with neighbours merged: what each write adds to its group, summed over time."""
    found = _grouped(schedule, every)
    groups = found.rows * found.columns
    # A write shows in the first frame that is not before it; rounding may put the last one after the end.
    nth = written_us * ((FRAMES - 1) / total_us if total_us else 0.0)
    frame = np.minimum(np.ceil(nth - 1e-9), FRAMES - 1).astype(np.int64)[found.message]
    added = np.bincount(frame * groups + found.group, found.more, FRAMES * groups).reshape(FRAMES, -1)
    added[0] += found.start
    share = np.rint(255 * np.clip(added.cumsum(axis=0) / (found.cells * whole), 0, 1)).astype(np.uint8)
    return {
        "rows": found.rows,
        "columns": found.columns,
        "ranks_per_row": found.per_row,
        "chunks_per_column": found.per_column * every,
        "whole": whole,
        "start": [],
        "wanted": found.wanted.tolist(),
        "time_us": [],
        "cell": [],
        "value": [],
        "message": [],
        "frames": [base64.b64encode(bits.tobytes()).decode() for bits in share],
        "follows_one_of": every,
    }
