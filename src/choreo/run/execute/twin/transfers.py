"""Sending and receiving in Python, as in `core/shared_memory.h` and `core/sockets/receive.h`.

Words of a segment are written whole, in the order of the program. That is enough where stores are seen in order (x86);
elsewhere a lock that is taken before each counter is the barrier.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from choreo.run.execute.failures import BROKEN, MISMATCHED, PEER_DIED
from choreo.run.execute.layout import (
    ACKNOWLEDGED,
    CHANNEL,
    EXPOSED,
    FRAME,
    FRAME_BYTES,
    INLINED,
    LAST,
    MAILBOX,
    OWN_INPUT,
    PRIVATE,
    REDUCE,
    REGISTERED,
    SLOT_BIT,
    STAGED,
    STAGING_SLOTS,
    THEIR_INPUT,
    TO_SCRATCH,
    Frame,
    channel_at,
    offset_of,
    staging_at,
)
from choreo.run.execute.twin.peers import Peer, PeerWatch, Stop, is_dead
from choreo.run.execute.twin.program import Op, Program
from choreo.run.execute.twin.reductions import Reduction
from choreo.run.execute.twin.segment import Bytes, SegmentWords, bytes_of, mailbox_at
from choreo.run.execute.twin.sockets import stripes

__all__ = ["Task", "Transfers", "store"]

BUFFER_BYTES = 1 << 20
READY, CHAIN, MODES = (offset_of(MAILBOX, field) for field in ("ready", "chain", "modes"))
ADDRESSES, INLINE_DATA = offset_of(MAILBOX, "addresses"), offset_of(MAILBOX, "data")


@dataclass(slots=True, eq=False)
class Task:
    """The call that is running."""

    program: Program
    given: Bytes
    work: Bytes
    scratch: Bytes
    deadline_s: float
    reduction: Reduction
    modes: int
    addresses: tuple[int, int]
    slot: int = 0
    parts: int = 0  # begun after the first


class Transfers(PeerWatch):
    """Moves the ranges of a program between this rank and its peers."""

    def __init__(self, rank: int, world: int, own: object, stage_bytes: int, peers: list[Peer]) -> None:
        super().__init__(rank, world, SegmentWords(own, world), peers)
        self._data = bytes_of(own)
        self._stage_at, self._slot_bytes = staging_at(world), stage_bytes // STAGING_SLOTS // 64 * 64
        self._chain = 0

    def _send(self, task: Task, op: Op, peer: Peer, inline_at: int | None) -> None:
        data = (task.given if op.has(OWN_INPUT) else task.work)[op.at : op.at + op.length]
        if peer.sockets is not None:
            frame = Frame(FRAME, op.number, self._call, self._chain, op.length)
            peer.sockets.queue_range(frame, data)
            if op.has(LAST):
                self._write(peer)
            return
        mailbox = mailbox_at(peer.rank, self._call)
        if inline_at is not None:
            at = mailbox + INLINE_DATA + inline_at
            self._data[at : at + op.length] = data
        elif not op.has(EXPOSED):  # also where it is ALREADY_STAGED: it may have been inlined so far
            at = self._stage_at + task.slot * self._slot_bytes + op.staged
            self._data[at : at + op.length] = data
        if op.has(LAST):
            if peer.mailbox_written != self._call:
                self._own.set_word(mailbox + CHAIN, self._chain)
                self._own.set_word(mailbox + MODES, task.modes | (0 if inline_at is None else INLINED))
                if inline_at is None:
                    for number, address in enumerate(task.addresses):
                        self._own.set_word(mailbox + ADDRESSES + 8 * number, address)
                peer.mailbox_written = self._call
            peer.posted = self._counter(op.number)
            self._publish(mailbox + READY, peer.posted)

    def _receive(self, task: Task, op: Op, peer: Peer, inline_at: int | None) -> None:
        words, data = peer.words, peer.data
        assert words is not None
        assert data is not None
        mailbox, counter = mailbox_at(self._rank, self._call), self._counter(op.number)
        self._wait_until(lambda: words.word(mailbox + READY) >= counter, peer, task.deadline_s)
        if words.word(mailbox + CHAIN) != self._chain:
            raise Stop(MISMATCHED, peer.rank)
        self._wait_guards(task, op)
        modes, in_input = words.word(mailbox + MODES), op.has(THEIR_INPUT)
        mode = modes >> 8 * in_input & 255
        if mode == STAGED and modes & INLINED and op.number == 1:
            if inline_at is None:
                raise Stop(BROKEN, peer.rank)
            address = mailbox + INLINE_DATA + inline_at
        elif mode == STAGED and op.staged + op.length <= self._slot_bytes:
            slot = (modes >> SLOT_BIT) % STAGING_SLOTS ^ task.parts & 1
            address = self._stage_at + slot * self._slot_bytes + op.staged
        elif mode in (REGISTERED, PRIVATE) and not modes & INLINED:
            address = (words.word(mailbox + ADDRESSES + 8 * in_input) + op.there) % 2**64
        else:
            raise Stop(BROKEN, peer.rank)
        if op.length and mode != PRIVATE and address + op.length > len(data):
            raise Stop(BROKEN, peer.rank)
        for at in range(0, op.length, BUFFER_BYTES):
            length = min(BUFFER_BYTES, op.length - at)
            if mode == PRIVATE:
                came = self._read_memory(peer, address + at, length)
            else:
                came = data[address + at : address + at + length]
            _take_in(task, op, came, at)
        if op.has(LAST) and modes & ACKNOWLEDGED:
            self._publish(channel_at(peer.rank) + offset_of(CHANNEL, "consumed"), counter)

    def _receive_from_socket(self, task: Task, op: Op, peer: Peer) -> None:
        assert peer.sockets is not None
        waits = True
        for stream, (start, whole) in zip(
            peer.sockets.streams, stripes(op.length, len(peer.sockets.streams)), strict=False
        ):
            head = bytearray(FRAME_BYTES)
            self._read(peer, stream, memoryview(head), task.deadline_s)
            frame = Frame.unpack(head)
            if frame.magic != FRAME:
                raise Stop(BROKEN, peer.rank)
            if (frame.call, frame.signature) != (self._call, self._chain):
                raise Stop(MISMATCHED, peer.rank)
            if (frame.number, frame.length) != (op.number, whole):
                raise Stop(BROKEN, peer.rank)
            if waits:
                self._wait_guards(task, op)
                waits = False
            for at in range(start, start + whole, BUFFER_BYTES):
                data = np.empty(min(BUFFER_BYTES, start + whole - at), np.uint8)
                self._read(peer, stream, data.data, task.deadline_s)
                _take_in(task, op, data, at)

    def _read_memory(self, peer: Peer, address: int, length: int) -> Bytes:
        data = np.empty(length, np.uint8)
        try:
            with open(f"/proc/{peer.pid}/mem", "rb", buffering=0) as memory:  # noqa: PTH123 - not a file with a path
                done = 0
                while done < length:
                    got = os.preadv(memory.fileno(), [data[done:].data], address + done)
                    if not got:
                        raise Stop(BROKEN, peer.rank)
                    done += got
        except (OSError, OverflowError) as error:
            raise Stop(PEER_DIED if isinstance(error, FileNotFoundError) else BROKEN, peer.rank) from None
        # The pid of a peer that died may belong to another process by now.
        if is_dead(peer.pidfd):
            raise Stop(PEER_DIED, peer.rank)
        return data

    def _wait_guards(self, task: Task, op: Op) -> None:
        for rank, number in task.program.guards[op.first_guard : op.first_guard + op.guards]:
            peer = self._peers[rank]
            if peer.words is not None:
                self._wait_consumed(peer, self._counter(number), task.deadline_s)
            while peer.sockets is not None and peer.sockets.has_queued(number):
                self._wait_for_sockets(None, rank, task.deadline_s)


def store(task: Task, op: Op, data: Bytes, at: int) -> None:
    """Store data that came in, or reduce it into what is there."""
    if not len(data):
        return
    to = task.work[op.at + at : op.at + at + len(data)]
    if op.has(REDUCE):
        base = (task.given if op.has(OWN_INPUT) else task.work)[op.base + at : op.base + at + len(data)]
        data = task.reduction(base, data)
    to[:] = data


def _take_in(task: Task, op: Op, data: Bytes, at: int) -> None:
    if op.kind == TO_SCRATCH:
        task.scratch[op.at + at : op.at + at + len(data)] = data
    else:
        store(task, op, data, at)
