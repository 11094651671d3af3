"""A schedule compiled for one rank: a flat list of operations that an executor runs from the first to the last.

Every rank compiles the same schedule, so both ends of a message know its number, its place and its size. The messages
of a pair of ranks are numbered from 1 in order of steps. A message is one or more operations in a row, one for each
range of bytes; the last of them makes it ready (a send) or counts it as consumed (a receive).

A rank has two buffers: its *input*, which holds the chunks that it contributes, and its *work*, which has room for the
whole logical vector. They may be one array. Until something has been written to a work place, what the rank holds of
that chunk is in its input; so nothing is copied at the start.

Data is handed over in one of two ways, which each sender decides for itself. *Staged*: a send copies its ranges into
the sender's segment, where the receiver finds them; the sender may then overwrite its work at once. *Exposed*: the
receiver reads the sender's buffers where they are (or a socket is written from them); before a range is overwritten
its readers must be through with it, which is what guards are for. Where the message of the very rank that is still to
read comes in (an exchange inside one step) both would wait for each other, so it is taken to scratch first. A receive
knows both places; the sender says during the call which of them it is.

A large call is compiled in *parts*: every chunk is cut into as many pieces, and the whole schedule runs on the first of
each, then on the second, and so on. What is staged then stays in cache until it is read, while the next part is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from choreo.errors import UsageError
from choreo.schedule import Schedule, Transfers

__all__ = ["GUARD", "OP", "Program", "compile_program"]

Ints = npt.NDArray[np.int64]
Key = TypeVar("Key")

# What an operation does.
# The last begins a part: what is staged from here on goes to the other of two slots.
SEND, RECEIVE, TO_SCRATCH, FROM_SCRATCH, KEEP, PART = 0, 1, 2, 3, 4, 5
# Flags: reduce rather than store; the last range of its message; the sender has it in its input; so has this rank what
# the incoming bytes are added to, or what is sent; the message is exposed rather than staged; it was staged already,
# for another rank, which may be reading it.
REDUCE, LAST, THEIR_INPUT, OWN_INPUT, EXPOSED, HELD = 1, 2, 4, 8, 16, 32

OP = np.dtype(
    [
        ("kind", "u1"),
        ("flags", "u1"),
        ("peer", "<u2"),
        ("number", "<u4"),  # of the message among those of this pair in this call, from 1
        ("step", "<u4"),
        ("guards", "<u4"),
        ("first_guard", "<u8"),
        ("at", "<u8"),  # in the own work; of a send, where the data is
        ("base", "<u8"),  # of a reduction, where the other operand is; of KEEP, the place in the input
        ("there", "<u8"),  # in the sender's input or work; of FROM_SCRATCH, in scratch
        ("staged", "<u8"),  # in the sender's staging
        ("length", "<u8"),
    ]
)
GUARD = np.dtype([("peer", "<u4"), ("number", "<u4")])
ALIGNED = 64


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """What one rank does, in order: operations, the guards they refer to, and what it all needs."""

    ops: npt.NDArray[np.void]
    guards: npt.NDArray[np.void]
    sent: npt.NDArray[np.uint32]  # messages to each peer
    received: npt.NDArray[np.uint32]  # messages from each peer
    stage_bytes: int  # of a part
    traffic: Ints  # of a part: bytes that each rank stages, stores and reduces
    scratch_bytes: int
    work_at: int = 0  # where in the logical vector the work array begins

    def as_bytes(self) -> tuple[bytes, bytes, bytes, bytes, int, int]:
        """As executors take it."""
        return (
            self.ops.tobytes(),
            self.guards.tobytes(),
            self.sent.tobytes(),
            self.received.tobytes(),
            self.scratch_bytes,
            self.work_at,
        )

    def within(self, first: int, length: int) -> Program | None:
        """The same with a work array of only these bytes of the logical vector; None, if it needs others as well."""
        kind, flags, size = self.ops["kind"], self.ops["flags"], self.ops["length"]
        ours = (flags & OWN_INPUT) == 0
        writes = (kind == RECEIVE) | (kind == FROM_SCRATCH)
        ops = self.ops.copy()
        for column, used in (
            ("at", writes | (kind == KEEP) | ((kind == SEND) & ours)),
            ("base", writes & ours & ((flags & REDUCE) != 0)),
        ):
            places = ops[column]
            if (used & (size > 0) & ((places < first) | (places + size > first + length))).any():
                return None
            ops[column] = np.where(used, np.where(size > 0, places - np.uint64(first), 0), places)
        return replace(self, ops=ops, work_at=first)


class _Row(NamedTuple):
    src: int
    dst: int
    chunk: int
    span: int  # chunks
    reduce: bool
    from_input: bool


@dataclass(slots=True)
class _Range:
    """One range of a message, with what both of its ends know of it."""

    row: _Row
    number: int
    last: bool
    stage: int


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
    """The program of a rank; chunk c of the logical vector is bytes edges[c] to edges[c + 1].

    A rank's input begins with byte input_at[rank] of the vector. `exposes[peer]` says whether what this rank sends to a
    peer is read where it is, or goes through a socket, rather than being staged. `same`: input and work are one array.
    Elements of `item_bytes` are whole in every part; all ranks must take as many parts.
    """
    pieces = _Pieces(edges, parts, item_bytes) if parts > 1 else None
    return _Compiler(schedule, rank, edges, input_at, exposes, same=same, pieces=pieces).program()


class _Pieces:
    """Every chunk cut into even pieces of whole elements, one for each part."""

    def __init__(self, edges: Ints, parts: int, item_bytes: int) -> None:
        items = np.diff(edges) // item_bytes
        ends = items[:, None] * np.arange(parts + 1) // parts * item_bytes
        self.parts, self.starts, self.lengths = parts, ends[:, :-1], np.diff(ends, axis=1)
        longest = -(-items // parts) * item_bytes
        self.room: list[int] = np.append(0, np.cumsum(longest)).tolist()  # where the longest of each would begin

    def expanded(self, unit: Program, chunks: Ints) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void]]:
        """The operations and guards of all parts, from those for whole chunks; chunks[i] is what operation i is of."""
        kind, reduces = unit.ops["kind"], (unit.ops["flags"] & REDUCE) != 0
        sends = kind == SEND
        messages = np.where(sends, unit.sent[unit.ops["peer"]], unit.received[unit.ops["peer"]])
        all_ops, all_guards = [], []
        for part in range(self.parts):
            ops, guards = unit.ops.copy(), unit.guards.copy()
            start = self.starts[chunks, part].astype(np.uint64)
            ops["length"] = self.lengths[chunks, part]
            ops["at"] += np.where(kind == TO_SCRATCH, 0, start).astype(np.uint64)
            ops["base"] += np.where(reduces | (kind == KEEP), start, 0).astype(np.uint64)
            ops["there"] += np.where((kind == RECEIVE) | (kind == TO_SCRATCH), start, 0).astype(np.uint64)
            ops["number"] += (messages * part).astype(np.uint32)
            ops["first_guard"] += np.uint64(part * len(guards))
            guards["number"] += (unit.sent[guards["peer"]] * part).astype(np.uint32)
            if part and len(ops):
                begin = np.zeros(1, OP)
                begin["kind"], begin["step"] = PART, ops["step"][0]
                all_ops.append(begin)
            all_ops.append(ops)
            all_guards.append(guards)
        return np.concatenate(all_ops), np.concatenate(all_guards)


class _Compiler:
    """Follows every rank through the steps, since where a sender's data lies depends on what it received before."""

    def __init__(
        self,
        schedule: Schedule,
        rank: int,
        edges: Ints,
        input_at: Ints,
        exposes: npt.NDArray[np.bool_],
        *,
        same: bool,
        pieces: _Pieces | None,
    ) -> None:
        ranks, chunks = schedule.ranks, schedule.num_chunks
        self.pieces, self.chunk_of = pieces, list[int]()
        self.schedule, self.rank, self.exposes, self.same = schedule, rank, exposes, same
        self.edges: list[int] = edges.tolist()
        self.input_at: list[int] = input_at.tolist()
        self.written = np.zeros((ranks, chunks), np.bool_)  # before the current step
        self.mine = self.written[rank].copy()  # by now
        self.given = schedule.held_before()[rank]
        self.numbers = np.zeros((ranks, ranks), np.int64)
        self.ops: list[tuple[int, ...]] = []
        self.guards: list[tuple[int, int]] = []
        # Messages that expose the memory of an own work place: peer -> (number, step).
        self.readers: list[dict[int, tuple[int, int]]] = [{} for _ in range(chunks)]
        self.staged, self.stored, self.reduced = [0] * ranks, [0] * ranks, [0] * ranks
        self.copied: set[tuple[int, int]] = set()  # what has been staged: where, and how long
        self.scratch_bytes = 0

    def program(self) -> Program:
        """All steps, and in the end what nobody had to send."""
        for rows in self.schedule.steps():
            self._step(rows)
        if not self.same:
            self._keep_own()
        unit = Program(
            np.array(self.ops, OP),
            np.array(self.guards, GUARD),
            self.numbers[self.rank].astype(np.uint32),
            self.numbers[:, self.rank].astype(np.uint32),
            self.staged[self.rank],
            np.array((self.staged, self.stored, self.reduced)),
            self.scratch_bytes,
        )
        if self.pieces is None:
            return unit
        ops, guards = self.pieces.expanded(unit, np.array(self.chunk_of, np.int64))
        parts = np.uint32(self.pieces.parts)
        return replace(unit, ops=ops, guards=guards, sent=unit.sent * parts, received=unit.received * parts)

    def _step(self, rows: Transfers) -> None:
        """Sends before receives: a step's transfers all read what was there before it."""
        step, ranges = int(rows.step[0]), self._ranges(rows)
        for one in ranges:
            if one.row.src == self.rank:
                self._send(one, step)
        incoming = [one for one in ranges if one.row.dst == self.rank]
        # Writes happen in order of src; so if one has to wait in scratch, all of the step do.
        if any(self._meets(one.row, step) for one in incoming):
            taken = [(one, self._to_scratch(one, step)) for one in incoming]
            for one, scratch in taken:
                self._from_scratch(one, scratch, step)
        else:
            for one in incoming:
                self._receive(one, step)
        for one in ranges:
            self.written[one.row.dst, one.row.chunk : one.row.chunk + one.row.span] = True

    def _ranges(self, rows: Transfers) -> list[_Range]:
        """The rows in order of (src, dst, chunk), numbered by message, each with its place in the sender's staging."""
        columns = (rows.src, rows.dst, rows.chunk, rows.count, rows.reduce, rows.from_input)
        table = sorted(_Row(*values) for values in zip(*(column.tolist() for column in columns), strict=True))
        places: dict[tuple[int, int, int, bool], int] = {}
        found: list[_Range] = []
        for at, row in enumerate(table):
            if self.same and row.from_input and self.written[row.src, row.chunk : row.chunk + row.span].any():
                name = self.schedule.algorithm
                raise UsageError(f"{name} sends inputs after results came in: they cannot share an array; use out=")
            first = at == 0 or table[at - 1][:2] != row[:2]
            last = at + 1 == len(table) or table[at + 1][:2] != row[:2]
            self.numbers[row.src, row.dst] += first
            key = (row.src, row.chunk, row.span, row.from_input)
            if key not in places:  # what goes to several is staged once
                places[key] = self.staged[row.src]
                self.staged[row.src] += _aligned(self._room(row.chunk, row.chunk + row.span))
            (self.reduced if row.reduce else self.stored)[row.dst] += self._room(row.chunk, row.chunk + row.span)
            found.append(_Range(row, int(self.numbers[row.src, row.dst]), last, places[key]))
        return found

    def _send(self, one: _Range, step: int) -> None:
        row = one.row
        for low, high, in_input in self._runs(row, lambda chunk: self._in_input(row.src, chunk, row)):
            at = self.edges[low] - (self.input_at[row.src] if in_input else 0)
            staged, length = self._staged(one, low), self._length(low, high)
            held = not self.exposes[row.dst] and (staged, length) in self.copied
            self._op(SEND, one, step, high, at=at, staged=staged, length=length, own_input=in_input, held=held)
            if not self.exposes[row.dst]:
                self.copied.add((staged, length))
            if self.exposes[row.dst] and (self.same or not in_input):
                for chunk in range(low, high):
                    self.readers[chunk][row.dst] = (one.number, step)

    def _meets(self, row: _Row, step: int) -> bool:
        """Whether a message of this very step exposes what the row would overwrite."""
        return any(when == step for chunk in self._chunks(row) for _, when in self.readers[chunk].values())

    def _receive(self, one: _Range, step: int) -> None:
        """Store or reduce what comes in."""
        row = one.row
        self._guard(row)
        for low, high, (theirs, ours, adds) in self._runs(
            row, lambda chunk: (self._in_input(row.src, chunk, row), not self.mine[chunk], self._adds(row, chunk))
        ):
            figures = {"at": self.edges[low], "base": self._base(low, ours), "length": self._length(low, high)}
            figures |= {"there": self._there(one, low, theirs), "staged": self._staged(one, low)}
            self._op(RECEIVE, one, step, high, reduce=adds, own_input=ours, their_input=theirs, held=False, **figures)
        self.mine[row.chunk : row.chunk + row.span] = True

    def _to_scratch(self, one: _Range, step: int) -> int:
        """Take what comes in to scratch, and say where."""
        row, scratch = one.row, self.scratch_bytes
        self.scratch_bytes += _aligned(self._room(row.chunk, row.chunk + row.span))
        for low, high, theirs in self._runs(row, lambda chunk: self._in_input(row.src, chunk, row)):
            figures = {"at": scratch + self._room(row.chunk, low), "length": self._length(low, high)}
            figures |= {"there": self._there(one, low, theirs), "staged": self._staged(one, low)}
            self._op(
                TO_SCRATCH, one, step, high, reduce=False, own_input=False, their_input=theirs, held=False, **figures
            )
        return scratch

    def _from_scratch(self, one: _Range, scratch: int, step: int) -> None:
        row = one.row
        self._guard(row)
        for low, high, (ours, adds) in self._runs(row, lambda chunk: (not self.mine[chunk], self._adds(row, chunk))):
            figures = {"at": self.edges[low], "base": self._base(low, ours), "length": self._length(low, high)}
            there = scratch + self._room(row.chunk, low)
            self._op(
                FROM_SCRATCH,
                one,
                step,
                high,
                reduce=adds,
                own_input=ours,
                their_input=False,
                there=there,
                held=False,
                **figures,
            )
        self.mine[row.chunk : row.chunk + row.span] = True

    def _adds(self, row: _Row, chunk: int) -> bool:
        """Whether what comes in is added to something: reducing into an empty place stores."""
        return row.reduce and bool(self.mine[chunk] or self.given[chunk])

    def _there(self, one: _Range, low: int, in_input: bool) -> int:
        """Where the sender has the data, in its input or work."""
        return self.edges[low] - (self.input_at[one.row.src] if in_input else 0)

    def _staged(self, one: _Range, low: int) -> int:
        """Where the data is if the sender stages it."""
        return one.stage + self._room(one.row.chunk, low)

    def _keep_own(self) -> None:
        """What the rank was given, must have in the end, and was never written, is copied from input to work.

        That happens before the first wait, when what was staged of it is still in cache.
        """
        given, wanted = self.schedule.held_before()[self.rank], self.schedule.held_after()[self.rank]
        keep = given & wanted & ~self.written[self.rank]
        whole = _Row(self.rank, self.rank, 0, self.schedule.num_chunks, False, False)
        first = next((number for number, op in enumerate(self.ops) if op[0] != SEND), len(self.ops))
        for low, high, kept in self._runs(whole, lambda chunk: bool(keep[chunk])):
            if kept:
                at, base, length = self.edges[low], self._base(low, True), self._length(low, high)
                self.ops.insert(first, (KEEP, OWN_INPUT, self.rank, 0, 0, 0, 0, at, base, 0, 0, length))
                self.chunk_of.insert(first, low)

    def _guard(self, row: _Row) -> None:
        """Wait until what is about to be overwritten has been read."""
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
        one: _Range,
        step: int,
        high: int,
        *,
        at: int,
        length: int,
        there: int = 0,
        staged: int = 0,
        base: int = 0,
        reduce: bool = False,
        own_input: bool = False,
        their_input: bool = False,
        held: bool = False,
    ) -> None:
        row = one.row
        last = one.last and high == row.chunk + row.span
        base = base if reduce else 0
        flags = REDUCE * reduce | LAST * last | OWN_INPUT * own_input | THEIR_INPUT * their_input
        flags |= EXPOSED * (kind == SEND and bool(self.exposes[row.dst])) | HELD * held
        peer = row.dst if kind == SEND else row.src
        self.chunk_of.append(high - 1)
        first_guard, guards = self.pending if kind in (RECEIVE, FROM_SCRATCH) else (0, 0)
        if kind in (RECEIVE, FROM_SCRATCH):
            self.pending = (0, 0)
        self.ops.append((kind, flags, peer, one.number, step, guards, first_guard, at, base, there, staged, length))

    def _in_input(self, rank: int, chunk: int, row: _Row) -> bool:
        return row.from_input or not self.written[rank, chunk]

    def _base(self, low: int, in_input: bool) -> int:
        return self.edges[low] - (self.input_at[self.rank] if in_input else 0)

    def _length(self, low: int, high: int) -> int:
        return self.edges[high] - self.edges[low]

    def _room(self, low: int, high: int) -> int:
        """Bytes that these chunks take where they are staged, or in scratch."""
        return self._length(low, high) if self.pieces is None else self.pieces.room[high] - self.pieces.room[low]

    @staticmethod
    def _chunks(row: _Row) -> range:
        return range(row.chunk, row.chunk + row.span)

    def _runs(self, row: _Row, key: Callable[[int], Key]) -> Iterator[tuple[int, int, Key]]:
        """The row's chunks in runs that have the same key; one by one where each is cut into pieces."""
        if self.pieces is not None:
            yield from ((chunk, chunk + 1, key(chunk)) for chunk in self._chunks(row))
            return
        for value, run in groupby(self._chunks(row), key):
            chunks = list(run)
            yield chunks[0], chunks[-1] + 1, value


def _aligned(length: int) -> int:
    return -(-length // ALIGNED) * ALIGNED
