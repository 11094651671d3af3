"""A program of the Python executor, checked once, in the same order as in `core/program.h`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_

import numpy as np

from choreo.run.execute.layout import (
    COPY,
    EXPOSED,
    FROM_SCRATCH,
    GUARD,
    INLINE_BYTES,
    LAST,
    MESSAGE_BITS,
    NEXT_PART,
    OP,
    OWN_INPUT,
    RECEIVE,
    REDUCE,
    SEND,
    TO_SCRATCH,
)

__all__ = ["Op", "Program"]

MAX_BYTES = (2**63 - 1) // 4
KINDS = (SEND, RECEIVE, TO_SCRATCH, FROM_SCRATCH, COPY, NEXT_PART)
ALL_FLAGS = 63
MAX_RANKS = 0xFFFF


@dataclass(frozen=True, slots=True)
class Op:
    """One operation; the fields are those of `layout.OP`."""

    kind: int
    flags: int
    peer: int
    number: int
    step: int
    guards: int
    first_guard: int
    at: int
    base: int
    there: int
    staged: int
    length: int

    def has(self, flag: int) -> bool:
        """Whether a flag is set."""
        return bool(self.flags & flag)


class Program:
    """One rank's program in a call, checked once. `runs` counts how often it has run to its end."""

    runs = 0

    def __init__(  # noqa: PLR0917 - called as the compiled one is, by position
        self, ops: bytes, guards: bytes, sent: bytes, received: bytes, scratch_bytes: int, work_at: int, /
    ) -> None:
        if (
            len(ops) % OP.itemsize
            or len(guards) % GUARD.itemsize
            or len(sent) % 4
            or not 0 < len(sent) == len(received) <= 4 * MAX_RANKS
            or not 0 <= scratch_bytes <= MAX_BYTES
        ):
            raise ValueError("a program's columns do not fit each other")
        self.ops = [Op(*row) for row in np.frombuffer(ops, OP).tolist()]
        self.guards: list[tuple[int, int]] = np.frombuffer(guards, GUARD).tolist()
        self.sent: list[int] = np.frombuffer(sent, "<u4").tolist()
        self.received: list[int] = np.frombuffer(received, "<u4").tolist()
        self.scratch_bytes, self.work_at = scratch_bytes, work_at
        self._check_ops()
        reduced = [op for op in self.ops if op.kind in (RECEIVE, FROM_SCRATCH) and op.has(REDUCE)]
        self.grain = reduce(or_, (op.length for op in reduced), 0)  # whole elements divide it
        own = [(op, op.at) for op in self.ops if op.kind == SEND] + [(op, op.base) for op in reduced]
        self.input_bytes = _reach(
            [(op, at) for op, at in own if op.has(OWN_INPUT)] + [(op, op.base) for op in self.ops if op.kind == COPY]
        )
        written = [(op, op.at) for op in self.ops if op.kind in (RECEIVE, FROM_SCRATCH, COPY)]
        self.work_bytes = _reach(written + [(op, at) for op, at in own if not op.has(OWN_INPUT)])
        self.has_parts = any(op.kind == NEXT_PART for op in self.ops)
        self.inline_at = self._inline_at()

    def hands_over(self, rank: int, local: list[bool], sockets: list[bool], stage_bytes: int) -> tuple[bool, bool]:
        """Whether the program stages, and exposes, anything for peers on this host; raises if it cannot run here."""
        if len(self.sent) != len(local):
            raise ValueError("a program is for another number of ranks")
        staged = exposed = False
        for op in self.ops:
            if op.kind in (COPY, FROM_SCRATCH, NEXT_PART):
                continue
            if op.peer == rank or not (local[op.peer] or sockets[op.peer]):
                raise ValueError("a program talks to a rank that cannot be reached")
            if op.kind != SEND:
                continue
            if not local[op.peer]:
                if not op.has(EXPOSED):
                    raise ValueError("what goes through a socket cannot be staged")
            elif op.has(EXPOSED):
                exposed = True
            else:
                staged = True
                if op.staged + op.length > stage_bytes:
                    raise ValueError("a program goes beyond the staging")
        return staged, exposed

    def _inline_at(self) -> list[int | None]:
        """The offset of each range in a mailbox: first messages to a peer that are small and not exposed.

        Of a receive it is where the range would be, because the sender decides whether it is inlined.
        """
        whole, sent, received = ([0] * len(self.sent) for _ in range(3))
        for op in self.ops:
            if op.kind == SEND and op.number == 1:
                whole[op.peer] += INLINE_BYTES + 1 if op.has(EXPOSED) else op.length
        found: list[int | None] = []
        for op in self.ops:
            at = None
            if op.kind in (SEND, RECEIVE, TO_SCRATCH) and op.number == 1:
                before = sent if op.kind == SEND else received
                end = whole[op.peer] if op.kind == SEND else before[op.peer] + op.length
                at = before[op.peer] if end <= INLINE_BYTES else None
                before[op.peer] += op.length
            found.append(at)
        return found

    def _check_ops(self) -> None:
        """Refuse operations that cannot be run, one by one, in the compiled executor's order."""
        sends, receives = [0] * len(self.sent), [0] * len(self.sent)
        unfinished: set[tuple[bool, int]] = set()
        for op in self.ops:
            self._check_bounds(op)
            if op.kind in (SEND, RECEIVE, TO_SCRATCH):
                count, which = (sends if op.kind == SEND else receives), (op.kind == SEND, op.peer)
                if op.number != count[op.peer] + 1 or op.number >> MESSAGE_BITS:
                    raise ValueError("messages do not follow each other")
                count[op.peer] += op.has(LAST)
                unfinished = unfinished - {which} if op.has(LAST) else unfinished | {which}
            for peer, number in self.guards[op.first_guard : op.first_guard + op.guards]:
                if peer >= len(sends) or number > sends[peer]:
                    raise ValueError("a guard waits for what is not sent")
        if sends != self.sent or receives != self.received or unfinished:
            raise ValueError("a program says that it sends or receives what it does not")

    def _check_bounds(self, op: Op) -> None:
        if op.kind not in KINDS or op.flags & ~ALL_FLAGS or op.peer >= len(self.sent):
            raise ValueError("an operation is not one")
        scratch = {TO_SCRATCH: op.at, FROM_SCRATCH: op.there}.get(op.kind)
        if (
            max(op.at, op.base, op.there, op.staged, op.length) > MAX_BYTES
            or (scratch is not None and scratch + op.length > self.scratch_bytes)
            or op.first_guard + op.guards > len(self.guards)
        ):
            raise ValueError("an operation goes beyond its arrays, scratch or guards")


def _reach(ranges: list[tuple[Op, int]]) -> int:
    return max((at + op.length for op, at in ranges if op.length), default=0)
