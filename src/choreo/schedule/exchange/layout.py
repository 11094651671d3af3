"""The layout of a schedule's chunks in a GPU's buffers, and the messages between those places.

The work place of a chunk is in the output if the collective leaves the chunk there, otherwise in scratch. Until
something is written to it, its value is that of the input. What a rank sends from its input after its work place was
written is copied to scratch first: in place, the output is the input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from choreo.errors import RefusedError
from choreo.schedule.exchange.program import COLLECTIVE_NAMES, Buffers, Program
from choreo.schedule.schedule import Schedule
from choreo.schedule.transfers import Transfers
from choreo.units import counted

__all__ = ["Cell", "Layout", "Message", "foreign_name", "lay_out"]

NAMES = {ours: theirs for theirs, ours in reversed(COLLECTIVE_NAMES.items())}


class Cell(NamedTuple):
    """The first chunk of a run in a buffer: input, output or scratch."""

    buffer: str
    offset: int


@dataclass(slots=True)
class Message:
    """A run of chunks, contiguous at both ends: stored at `target`, or added to `base` with the sum in `target`."""

    step: int
    src: int
    dst: int
    chunk: int
    count: int
    source: Cell
    target: Cell
    base: Cell | None
    from_copy: bool  # the source is a copy of the input


@dataclass(slots=True)
class Layout:
    """The messages by step, then pair, then chunk; and the local copies at each rank."""

    schedule: Schedule
    messages: list[Message] = field(default_factory=list)
    saves: list[list[tuple[int, Cell, Cell]]] = field(default_factory=list)  # per rank: chunk, input, scratch
    leaves: list[list[tuple[int, Cell, Cell]]] = field(default_factory=list)  # chunk, input, output
    scratch: list[int] = field(default_factory=list)  # how many chunks each rank needs
    input_chunks: int = 0
    output_chunks: int = 0
    most: int = 1  # chunks in the largest message


def foreign_name(schedule: Schedule, tool: str) -> str:
    """The other tools' name for the schedule's collective; an error if they do not have it."""
    name = NAMES.get(schedule.collective)
    if name is None:
        raise RefusedError(f"{tool} has no collective like {schedule.collective}; it has {', '.join(sorted(NAMES))}")
    if schedule.relays:
        raise RefusedError(
            f"{schedule.collective} by {schedule.label} has {counted(schedule.relays, 'relay')}, which a file for "
            f"{tool} cannot say; synthesize with --no-relays, or take an algorithm of the library"
        )
    if schedule.switches:
        raise RefusedError(
            f"{schedule.collective} by {schedule.label} adds or copies in "
            f"{counted(schedule.switches, 'switch', 'switches')}, which a file for {tool} cannot say; synthesize with "
            "--no-relays, or take another algorithm"
        )
    return name


def lay_out(schedule: Schedule, most: int) -> Layout:
    """Place a schedule's chunks, and cut its transfers into runs of at most `most` chunks."""
    program = Program(schedule.collective, schedule.ranks, schedule.num_chunks, "", schedule.root)
    buffers = Buffers(program, in_place=False)
    layout = Layout(schedule, input_chunks=buffers.input_chunks, output_chunks=buffers.output_chunks, most=most)
    inputs: list[dict[int, Cell]] = [{} for _ in range(schedule.ranks)]
    homes: list[dict[int, Cell]] = [{} for _ in range(schedule.ranks)]
    for lie, places in ((inputs, program.given), (homes, program.due)):
        for place, chunk in places.items():
            rank, buffer, offset = program.places[place]
            lie[rank][chunk] = Cell(buffer, offset)
    steps = [rows.take(np.lexsort((rows.chunk, rows.dst, rows.src))).expanded() for rows in schedule.steps()]
    written, saved = _needs(steps, schedule.ranks)
    for rank in range(schedule.ranks):
        scratch = 0
        for chunk in sorted(written[rank] - homes[rank].keys()):
            homes[rank][chunk] = Cell("s", scratch)
            scratch += 1
        # If the work place does not overlap the input, the input is never overwritten.
        layout.saves.append([])
        for chunk in sorted(c for c in saved[rank] if homes[rank][c].buffer == "o"):
            layout.saves[rank].append((chunk, inputs[rank][chunk], Cell("s", scratch)))
            scratch += 1
        layout.scratch.append(scratch)
    copies = [{chunk: cell for chunk, _, cell in saves} for saves in layout.saves]
    cells = _Cells(inputs, copies, homes, [dict(own) for own in inputs])
    for rows in steps:
        layout.messages.extend(_joined(list(_chunks(schedule, rows, cells)), most))
    for rank in range(schedule.ranks):
        due = sorted((chunk, cell) for chunk, cell in homes[rank].items() if cell.buffer == "o")
        now = cells.now[rank]
        left = [(chunk, now[chunk], cell) for chunk, cell in due if now.get(chunk, cell).buffer == "i"]
        layout.leaves.append(left)
    return layout


def _needs(steps: list[Transfers], ranks: int) -> tuple[list[set[int]], list[set[int]]]:
    """For each rank, the chunks that are written there, and those of them that are sent from the input afterwards."""
    written: list[set[int]] = [set() for _ in range(ranks)]
    saved: list[set[int]] = [set() for _ in range(ranks)]
    for rows in steps:
        own = np.flatnonzero(rows.from_input)
        for src, chunk in zip(rows.src[own].tolist(), rows.chunk[own].tolist(), strict=True):
            if chunk in written[src]:
                saved[src].add(chunk)
        for dst, chunk in zip(rows.dst.tolist(), rows.chunk.tolist(), strict=True):
            written[dst].add(chunk)
    return written, saved


@dataclass(slots=True)
class _Cells:
    """The locations of each chunk at each rank: its input, a copy of that, its work place, and its value now."""

    inputs: list[dict[int, Cell]]
    copies: list[dict[int, Cell]]
    homes: list[dict[int, Cell]]
    now: list[dict[int, Cell]]


def _chunks(schedule: Schedule, rows: Transfers, cells: _Cells) -> Iterator[Message]:
    """The messages of a step, one per chunk: all read what was there before the step."""
    before: list[tuple[Cell, bool]] = []
    for row in rows:
        held = cells.now[row.src].get(row.chunk)
        own = cells.inputs[row.src].get(row.chunk)
        if row.from_input and held != own:
            held = cells.copies[row.src].get(row.chunk, own)
        if held is None:
            raise RefusedError(
                f"{schedule.collective} by {schedule.label} cannot be written: in step {row.step} rank {row.src} sends "
                f"chunk {row.chunk}, which it does not have; choreo prove tells more"
            )
        before.append((held, cells.copies[row.src].get(row.chunk) == held))
    for row, (source, from_copy) in zip(rows, before, strict=True):
        target = cells.homes[row.dst][row.chunk]
        base = cells.now[row.dst].get(row.chunk) if row.reduce else None
        yield Message(row.step, row.src, row.dst, row.chunk, 1, source, target, base, from_copy)
        cells.now[row.dst][row.chunk] = target


def _joined(chunks: list[Message], most: int) -> list[Message]:
    """Messages of neighbouring chunks as one, where they are neighbours at both ends."""
    messages: list[Message] = []
    for chunk in chunks:
        last = messages[-1] if messages else None
        if last is not None and last.count < most and _goes_on(last, chunk):
            last.count += 1
        else:
            messages.append(chunk)
    return messages


def _goes_on(last: Message, message: Message) -> bool:
    if (last.src, last.dst, last.from_copy, last.chunk + last.count) != (
        message.src,
        message.dst,
        message.from_copy,
        message.chunk,
    ):
        return False
    ends = ((last.source, message.source), (last.target, message.target), (last.base, message.base))
    return all(
        a is b is None or (a is not None and b is not None and (a.buffer, a.offset + last.count) == b) for a, b in ends
    )
