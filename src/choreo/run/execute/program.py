"""A rank's program: a flat list of operations that an executor runs from the first to the last.

Every rank compiles the same schedule, so both ends of a message know its number, address and size. The messages of a
pair of ranks are numbered from 1 in order of steps. A message is one or more operations in a row, one for each range
of bytes. The last of them makes it ready (a send) or counts it as consumed (a receive).

A rank has two buffers. Its *input* holds the chunks that it contributes. Its *work* has room for the whole logical
vector. They may be one array. Until something was written to a chunk of work, the rank's data is in its input; so
nothing is copied at the start.

Each sender decides how it hands over its data. *Staged*: a send copies its ranges into the sender's segment, where the
receiver finds them; the sender may then overwrite its work at once. *Exposed*: the receiver reads the sender's buffers
in place, or a socket is written from them. Then a *guard* waits until a range has been read before it is overwritten.
Two ranks that exchange data within one step would wait for each other, so what comes in goes to scratch first. A
receive knows both addresses; the sender says during the call which one it is.

A large call is compiled in *parts*. Every chunk is cut into as many pieces, and the whole schedule runs on the first
pieces, then on the second, and so on. What is staged stays in cache until it is read, while the next part is copied.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from choreo.run.execute.layout import COPY, FROM_SCRATCH, NEXT_PART, OP, OWN_INPUT, RECEIVE, REDUCE, SEND, TO_SCRATCH

__all__ = ["Ints", "Parts", "Program"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """One rank's program: operations, the guards they refer to, and the memory that they need."""

    ops: npt.NDArray[np.void]
    guards: npt.NDArray[np.void]
    sent: npt.NDArray[np.uint32]  # messages to each peer
    received: npt.NDArray[np.uint32]  # messages from each peer
    stage_bytes: int  # of one part
    traffic: Ints  # of one part: bytes that each rank stages, stores and reduces
    scratch_bytes: int
    work_at: int = 0  # where in the logical vector the work array begins

    def as_bytes(self) -> tuple[bytes, bytes, bytes, bytes, int, int]:
        """The arguments of an executor's program."""
        return (
            self.ops.tobytes(),
            self.guards.tobytes(),
            self.sent.tobytes(),
            self.received.tobytes(),
            self.scratch_bytes,
            self.work_at,
        )

    def within(self, first: int, length: int) -> Program | None:
        """The same program on a work array of only these bytes of the vector; None if it needs others as well."""
        kind, flags, size = self.ops["kind"], self.ops["flags"], self.ops["length"]
        ours = (flags & OWN_INPUT) == 0
        writes = (kind == RECEIVE) | (kind == FROM_SCRATCH)
        ops = self.ops.copy()
        for column, used in (
            ("at", writes | (kind == COPY) | ((kind == SEND) & ours)),
            ("base", writes & ours & ((flags & REDUCE) != 0)),
        ):
            at = ops[column]
            if (used & (size > 0) & ((at < first) | (at + size > first + length))).any():
                return None
            ops[column] = np.where(used, np.where(size > 0, at - np.uint64(first), 0), at)
        return replace(self, ops=ops, work_at=first)


class Parts:
    """Every chunk cut into even pieces of whole elements, one a part."""

    def __init__(self, edges: Ints, parts: int, item_bytes: int) -> None:
        items = np.diff(edges) // item_bytes
        ends = items[:, None] * np.arange(parts + 1) // parts * item_bytes
        self.parts, self.starts, self.lengths = parts, ends[:, :-1], np.diff(ends, axis=1)
        longest = -(-items // parts) * item_bytes
        self.room: list[int] = np.append(0, np.cumsum(longest)).tolist()  # where each chunk's longest piece begins

    def expanded(self, unit: Program, chunks: Ints) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void]]:
        """The operations and guards of all parts, from those for whole chunks; chunks[i] is that of operation i."""
        kind, reduces = unit.ops["kind"], (unit.ops["flags"] & REDUCE) != 0
        sends = kind == SEND
        messages = np.where(sends, unit.sent[unit.ops["peer"]], unit.received[unit.ops["peer"]])
        all_ops, all_guards = [], []
        for part in range(self.parts):
            ops, guards = unit.ops.copy(), unit.guards.copy()
            start = self.starts[chunks, part].astype(np.uint64)
            ops["length"] = self.lengths[chunks, part]
            ops["at"] += np.where(kind == TO_SCRATCH, 0, start).astype(np.uint64)
            ops["base"] += np.where(reduces | (kind == COPY), start, 0).astype(np.uint64)
            ops["there"] += np.where((kind == RECEIVE) | (kind == TO_SCRATCH), start, 0).astype(np.uint64)
            ops["number"] += (messages * part).astype(np.uint32)
            ops["first_guard"] += np.uint64(part * len(guards))
            guards["number"] += (unit.sent[guards["peer"]] * part).astype(np.uint32)
            if part and len(ops):
                begin = np.zeros(1, OP)
                begin["kind"], begin["step"] = NEXT_PART, ops["step"][0]
                all_ops.append(begin)
            all_ops.append(ops)
            all_guards.append(guards)
        return np.concatenate(all_ops), np.concatenate(all_guards)
