"""Compile a schedule for one rank: the schedule's transfers become the operations of a `Program`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from choreo.errors import UsageError
from choreo.run.execute.layout import (
    ALREADY_STAGED,
    COPY,
    EXPOSED,
    FROM_SCRATCH,
    GUARD,
    LAST,
    OP,
    OWN_INPUT,
    RECEIVE,
    REDUCE,
    SEND,
    THEIR_INPUT,
    TO_SCRATCH,
)
from choreo.run.execute.program import Ints, Parts, Program
from choreo.schedule import Schedule, Transfers, message_of

__all__ = ["compile_program"]

Key = TypeVar("Key")
ALIGNED_BYTES = 64


class _Row(NamedTuple):
    src: int
    dst: int
    chunk: int
    span: int  # chunks
    reduce: bool
    from_input: bool


@dataclass(slots=True)
class _Range:
    """One range of a message, as both of its ends know it."""

    row: _Row
    number: int
    last: bool
    stage: int  # its offset in the sender's staging


def compile_program(
    schedule: Schedule,
    rank: int,
    edges: Ints,
    input_at: Ints,
    exposes: npt.NDArray[np.bool_],
    *,
    same: bool,
    parts: int = 1,
    item_bytes: int = 1,
) -> Program:
    """Compile a schedule for one rank. Chunk c of the logical vector is bytes edges[c] to edges[c + 1].

    A rank's input begins with byte input_at[rank] of the vector. `exposes[peer]`: what this rank sends to a peer is
    read in place or goes through a socket, rather than being staged. `same`: input and work are one array. With several
    `parts`, which must be as many on all ranks, no element of `item_bytes` is cut in two.

    >>> from choreo.algorithms import build
    >>> ring = build("all_reduce", "ring", 4)
    >>> edges = np.arange(5) * 2000
    >>> program = compile_program(ring, 1, edges, np.zeros(4, np.int64), np.zeros(4, np.bool_), same=True)
    >>> len(program.ops), program.stage_bytes
    (12, 12288)
    """
    cut = Parts(edges, parts, item_bytes) if parts > 1 else None
    return _Compiler(schedule, rank, edges, input_at, exposes, same=same, parts=cut).program()


class _Compiler:
    """Follows every rank through the steps, because where a sender's data is depends on what it received before."""

    def __init__(
        self,
        schedule: Schedule,
        rank: int,
        edges: Ints,
        input_at: Ints,
        exposes: npt.NDArray[np.bool_],
        *,
        same: bool,
        parts: Parts | None,
    ) -> None:
        ranks, chunks = schedule.ranks, schedule.num_chunks
        self.parts, self.chunk_of = parts, list[int]()
        self.schedule, self.rank, self.exposes, self.same = schedule, rank, exposes, same
        self.edges: list[int] = edges.tolist()
        self.input_at: list[int] = input_at.tolist()
        self.written = np.zeros((ranks, chunks), np.bool_)  # before the current step
        self.mine = self.written[rank].copy()  # by now
        self.given = schedule.held_before()[rank]
        self.numbers = np.zeros((ranks, ranks), np.int64)
        self.ops: list[tuple[int, ...]] = []
        self.guards: list[tuple[int, int]] = []
        # Of each chunk of the own work, the messages that expose it: peer -> (number, step).
        self.readers: list[dict[int, tuple[int, int]]] = [{} for _ in range(chunks)]
        self.staged, self.stored, self.reduced = [0] * ranks, [0] * ranks, [0] * ranks
        self.copied: set[tuple[int, int]] = set()  # what has been staged: where, and how long
        self.scratch_bytes = 0

    def program(self) -> Program:
        """All steps, and a copy of what the rank keeps of its own input."""
        for rows in self.schedule.steps():
            self._step(rows)
        if not self.same:
            self._copy_own()
        unit = Program(
            np.array(self.ops, OP),
            np.array(self.guards, GUARD),
            self.numbers[self.rank].astype(np.uint32),
            self.numbers[:, self.rank].astype(np.uint32),
            self.staged[self.rank],
            np.array((self.staged, self.stored, self.reduced)),
            self.scratch_bytes,
        )
        if self.parts is None:
            return unit
        ops, guards = self.parts.expanded(unit, np.array(self.chunk_of, np.int64))
        parts = np.uint32(self.parts.parts)
        return replace(unit, ops=ops, guards=guards, sent=unit.sent * parts, received=unit.received * parts)

    def _step(self, rows: Transfers) -> None:
        """Sends before receives: a step's transfers all read what was there before it."""
        step, ranges = int(rows.step[0]), self._ranges(rows)
        for transfer in ranges:
            if transfer.row.src == self.rank:
                self._send(transfer, step)
        incoming = [transfer for transfer in ranges if transfer.row.dst == self.rank]
        # Writes happen in order of src, so if one must wait in scratch, all in the step must.
        if any(self._is_exposed(transfer.row, step) for transfer in incoming) or self._is_split(incoming):
            taken = [(transfer, self._to_scratch(transfer, step)) for transfer in incoming]
            for transfer, scratch in taken:
                self._from_scratch(transfer, scratch, step)
        else:
            for transfer in incoming:
                self._receive(transfer, step)
        for transfer in ranges:
            self.written[transfer.row.dst, transfer.row.chunk : transfer.row.chunk + transfer.row.span] = True

    def _ranges(self, rows: Transfers) -> list[_Range]:
        """The rows in order of (src, dst, chunk), numbered by message, each with its offset in the sender's staging."""
        order = (rows.from_input, rows.reduce, rows.count, rows.chunk, rows.dst, rows.src)
        rows = rows.take(np.lexsort(order))
        columns = (rows.src, rows.dst, rows.chunk, rows.count, rows.reduce, rows.from_input)
        table = [_Row(*values) for values in zip(*(column.tolist() for column in columns), strict=True)]
        message = [-1, *message_of(rows).tolist(), len(rows)]  # the ends differ from every row's
        offsets: dict[tuple[int, int, int, bool], int] = {}
        found: list[_Range] = []
        for at, row in enumerate(table):
            if self.same and row.from_input and self.written[row.src, row.chunk : row.chunk + row.span].any():
                name = self.schedule.algorithm
                raise UsageError(f"{name} sends inputs after results came in: they cannot share an array; use out=")
            first, last = message[at] != message[at + 1], message[at + 1] != message[at + 2]
            self.numbers[row.src, row.dst] += first
            key = (row.src, row.chunk, row.span, row.from_input)
            if key not in offsets:  # what goes to several is staged once
                offsets[key] = self.staged[row.src]
                self.staged[row.src] += _aligned(self._room(row.chunk, row.chunk + row.span))
            (self.reduced if row.reduce else self.stored)[row.dst] += self._room(row.chunk, row.chunk + row.span)
            found.append(_Range(row, int(self.numbers[row.src, row.dst]), last, offsets[key]))
        return found

    def _send(self, transfer: _Range, step: int) -> None:
        row = transfer.row
        for low, high, in_input in self._frames(row):
            at = self.edges[low] - (self.input_at[row.src] if in_input else 0)
            staged, length = self._staged(transfer, low), self._length(low, high)
            flags = OWN_INPUT * in_input
            if self.exposes[row.dst]:
                flags |= EXPOSED
            elif (staged, length) in self.copied:
                flags |= ALREADY_STAGED
            self._op(SEND, transfer, step, high, flags, at=at, staged=staged, length=length)
            if not self.exposes[row.dst]:
                self.copied.add((staged, length))
            if self.exposes[row.dst] and (self.same or not in_input):
                for chunk in range(low, high):
                    self.readers[chunk][row.dst] = (transfer.number, step)

    def _is_exposed(self, row: _Row, step: int) -> bool:
        """Whether a message of the same step exposes what the row would overwrite."""
        return any(when == step for chunk in self._chunks(row) for _, when in self.readers[chunk].values())

    def _frames(self, row: _Row) -> Iterator[tuple[int, int, bool]]:
        """The runs of a row that its sender has in one array, so that each is one range to send, and in which array."""
        return self._runs(row, lambda chunk: self._in_input(row.src, chunk, row))

    def _is_split(self, incoming: list[_Range]) -> bool:
        """Whether what a sender sends as one is added here to an array in one part, and to another in the next.

        A frame on a stream is received as it was sent. The sender does not know what its parts are added to.
        """
        mine = self.mine.copy()
        for row in (transfer.row for transfer in incoming):
            if row.reduce and row.span > 1:
                for low, high, _ in self._frames(row):
                    if len({self._adds(row, chunk, mine) for chunk in range(low, high)}) > 1:
                        return True
            mine[row.chunk : row.chunk + row.span] = True
        return False

    def _receive(self, transfer: _Range, step: int) -> None:
        """Store or reduce what comes in."""
        row = transfer.row
        self._guard(row)
        for low, high, (theirs, (adds, ours)) in self._runs(
            row, lambda chunk: (self._in_input(row.src, chunk, row), self._adds(row, chunk, self.mine))
        ):
            at, length = self.edges[low], self._length(low, high)
            there, staged = self._there(transfer, low, theirs), self._staged(transfer, low)
            base = self._base(low, ours) if adds else 0
            flags = OWN_INPUT * ours | THEIR_INPUT * theirs | REDUCE * adds
            self._op(RECEIVE, transfer, step, high, flags, at=at, base=base, there=there, staged=staged, length=length)
        self.mine[row.chunk : row.chunk + row.span] = True

    def _to_scratch(self, transfer: _Range, step: int) -> int:
        """Take what comes in to scratch, and return where."""
        row, scratch = transfer.row, self.scratch_bytes
        self.scratch_bytes += _aligned(self._room(row.chunk, row.chunk + row.span))
        for low, high, theirs in self._frames(row):
            at, length = scratch + self._room(row.chunk, low), self._length(low, high)
            there, staged = self._there(transfer, low, theirs), self._staged(transfer, low)
            flags = THEIR_INPUT * theirs
            self._op(TO_SCRATCH, transfer, step, high, flags, at=at, there=there, staged=staged, length=length)
        return scratch

    def _from_scratch(self, transfer: _Range, scratch: int, step: int) -> None:
        row = transfer.row
        self._guard(row)
        for low, high, (adds, ours) in self._runs(row, lambda chunk: self._adds(row, chunk, self.mine)):
            at, length, there = self.edges[low], self._length(low, high), scratch + self._room(row.chunk, low)
            base = self._base(low, ours) if adds else 0
            flags = OWN_INPUT * ours | REDUCE * adds
            self._op(FROM_SCRATCH, transfer, step, high, flags, at=at, base=base, there=there, length=length)
        self.mine[row.chunk : row.chunk + row.span] = True

    def _adds(self, row: _Row, chunk: int, mine: npt.NDArray[np.bool_]) -> tuple[bool, bool]:
        """Whether what comes in is added to something, and whether to the input: into an empty chunk it is stored.

        `mine` are the chunks that have been written to the work.
        """
        adds = row.reduce and bool(mine[chunk] or self.given[chunk])
        return adds, adds and not mine[chunk]

    def _there(self, transfer: _Range, low: int, in_input: bool) -> int:
        """The offset of the data at the sender, in its input or work."""
        return self.edges[low] - (self.input_at[transfer.row.src] if in_input else 0)

    def _staged(self, transfer: _Range, low: int) -> int:
        """The offset of the data in the sender's staging."""
        return transfer.stage + self._room(transfer.row.chunk, low)

    def _copy_own(self) -> None:
        """Copy from input to work what the rank must have in the end and nobody writes.

        It happens before the first wait, when what was staged of it is still in cache.
        """
        given, wanted = self.schedule.held_before()[self.rank], self.schedule.held_after()[self.rank]
        keep = given & wanted & ~self.written[self.rank]
        whole = _Row(self.rank, self.rank, 0, self.schedule.num_chunks, False, False)
        first = next((number for number, op in enumerate(self.ops) if op[0] != SEND), len(self.ops))
        for low, high, kept in self._runs(whole, lambda chunk: bool(keep[chunk])):
            if kept:
                at, base, length = self.edges[low], self._base(low, True), self._length(low, high)
                self.ops.insert(first, (COPY, OWN_INPUT, self.rank, 0, 0, 0, 0, at, base, 0, 0, length))
                self.chunk_of.insert(first, low)

    def _guard(self, row: _Row) -> None:
        """Make the next operation wait until what it overwrites has been read."""
        due: dict[int, int] = {}
        for chunk in self._chunks(row):
            for peer, (number, _) in self.readers[chunk].items():
                due[peer] = max(due.get(peer, 0), number)
            self.readers[chunk].clear()
        self.pending = (len(self.guards), len(due))
        self.guards += due.items()

    def _op(
        self,
        kind: int,
        transfer: _Range,
        step: int,
        high: int,
        flags: int,
        *,
        at: int,
        length: int,
        there: int = 0,
        staged: int = 0,
        base: int = 0,
    ) -> None:
        row = transfer.row
        flags |= LAST * (transfer.last and high == row.chunk + row.span)
        peer = row.dst if kind == SEND else row.src
        self.chunk_of.append(high - 1)
        first_guard, guards = self.pending if kind in (RECEIVE, FROM_SCRATCH) else (0, 0)
        if kind in (RECEIVE, FROM_SCRATCH):
            self.pending = (0, 0)
        self.ops.append(
            (kind, flags, peer, transfer.number, step, guards, first_guard, at, base, there, staged, length)
        )

    def _in_input(self, rank: int, chunk: int, row: _Row) -> bool:
        return row.from_input or not self.written[rank, chunk]

    def _base(self, low: int, in_input: bool) -> int:
        return self.edges[low] - (self.input_at[self.rank] if in_input else 0)

    def _length(self, low: int, high: int) -> int:
        return self.edges[high] - self.edges[low]

    def _room(self, low: int, high: int) -> int:
        """Bytes that these chunks take where they are staged, or in scratch."""
        return self._length(low, high) if self.parts is None else self.parts.room[high] - self.parts.room[low]

    @staticmethod
    def _chunks(row: _Row) -> range:
        return range(row.chunk, row.chunk + row.span)

    def _runs(self, row: _Row, key: Callable[[int], Key]) -> Iterator[tuple[int, int, Key]]:
        """The row's chunks in runs that have the same key; one by one where each is cut into pieces."""
        if self.parts is not None:
            yield from ((chunk, chunk + 1, key(chunk)) for chunk in self._chunks(row))
            return
        for value, run in groupby(self._chunks(row), key):
            chunks = list(run)
            yield chunks[0], chunks[-1] + 1, value


def _aligned(length: int) -> int:
    return -(-length // ALIGNED_BYTES) * ALIGNED_BYTES
