"""One rank's end of a communicator, in Python: it runs programs as `core/call.h` does."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from choreo.run.execute.failures import INTERRUPTED, LEFT, PEER_GAVE_UP
from choreo.run.execute.layout import (
    ACKNOWLEDGED,
    CALL_RECORD,
    CHAIN_FACTOR,
    FROM_SCRATCH,
    HEADER,
    MESSAGE_BITS,
    NEXT_PART,
    RECEIVE,
    SEND,
    SLOT_BIT,
    STAGING_SLOTS,
    TO_SCRATCH,
    WINDOW,
    offset_of,
)
from choreo.run.execute.twin.peers import Peer, Stop
from choreo.run.execute.twin.program import Op, Program
from choreo.run.execute.twin.reductions import ITEM_BYTES, reduction_of
from choreo.run.execute.twin.segment import SegmentWords, address_for_peers, belongs_to, bytes_of, call_record_at
from choreo.run.execute.twin.sockets import PeerSockets
from choreo.run.execute.twin.transfers import Task, Transfers, store

__all__ = ["Endpoint"]


class Endpoint(Transfers):
    """One rank's end of a communicator.

    `peers` holds (segment, pid, descriptor of the process or -1, ()) for every rank of this host, and (None, pid,
    descriptor of the control connection or -1, streams, control connection) for every other. After header and channels
    a segment has `stage_bytes` of staging. The descriptors of processes and control connections are closed with the
    endpoint.
    """

    def __init__(  # noqa: PLR0917 - called as the compiled one is, by position
        self,
        rank: int,
        world: int,
        own: object,
        stage_bytes: int,
        peers: list[tuple[Any, ...]],
        spins: int,
        apart: bool = False,
        /,
    ) -> None:
        if not 0 <= rank < world or len(peers) != world:
            raise ValueError("there must be one peer a rank")
        self._process = os.getpid()  # a fork must leave the segments alone
        if not belongs_to(bytes_of(own), own, rank, world, stage_bytes):
            raise ValueError("the own segment has not been prepared for this communicator")
        known: list[Peer] = []
        for number, (segment, pid, *_) in enumerate(peers):
            there = segment is not None and number != rank
            data = bytes_of(segment) if there else None
            if data is not None and not belongs_to(data, segment, number, world, stage_bytes):
                raise ValueError(f"the segment of rank {number} is not one of this communicator")
            words = SegmentWords(segment, world) if there else None
            known.append(Peer(number, words, data, pid, -1, None))
        for peer, (_, _, pidfd, streams, *control) in zip(known, peers, strict=True):
            if peer.rank != rank:
                peer.pidfd = pidfd
            if peer.rank != rank and peer.words is None:
                peer.sockets = PeerSockets(streams) if streams else None
                peer.control = control[0] if control else None
        super().__init__(rank, world, own, stage_bytes, known)
        self._done = 0
        self._used = [0] * STAGING_SLOTS  # the last call that sent something from each slot
        self._hands_over: WeakKeyDictionary[Program, tuple[bool, bool]] = WeakKeyDictionary()
        self._failed_op = -1
        self._busy = threading.Lock()
        self._watched = np.zeros(0)

    def watch(self, count: int, /) -> None:
        """Note from now on when the first `count` operations of each call are done; 0: no longer."""
        self._watched = np.zeros(count + 1 if count else 0)

    def watched(self) -> bytes:
        """The times when the last call began and its operations were done, in seconds of the monotonic clock, as
        doubles.
        """
        return self._watched.tobytes()

    def run(  # noqa: PLR0917 - likewise
        self,
        call: int,
        signature: int,
        program: Program,
        given: Any,
        work: Any,
        dtype: int,
        operation: int,
        timeout_s: float,
        stages: bool,
        /,
    ) -> tuple[int, int, int] | None:
        """Run a program; None, or (outcome, culprit, operation)."""
        if self._words is None:
            raise ValueError("this communicator is closed")
        if os.getpid() != self._process:
            raise RuntimeError("this communicator was made before a fork, and belongs to the parent")
        if not isinstance(program, Program):
            raise TypeError("run takes a Program")
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("another thread is in a call of this communicator")
        try:
            if not self._call < call < 2 ** (64 - MESSAGE_BITS) or not 0 <= signature < 2**64 or math.isnan(timeout_s):
                raise ValueError("calls are numbered upwards from 1, and their timeout is a number")
            if report := self._words.report:
                return report[0], report[1], -1
            task = self._task(program, given, work, dtype, operation, timeout_s, stages)
            failed = self._run(task, call, signature, stages)
            program.runs += failed is None
            return failed
        finally:
            self._busy.release()

    @property
    def calls(self) -> int:
        """The number of the last call."""
        return self._call

    def outcome_of(self, peer: int, /) -> tuple[int, int, int] | None:
        """The reason why a rank stopped, the rank it blames, and the call; None if it has not."""
        if self._words is None or not 0 <= peer < self._world:
            raise IndexError("there is no such rank")
        words = self._words if peer == self._rank else self._peers[peer].words
        return self._peers[peer].report if words is None else words.report

    def abort(self) -> None:
        """End the call under way, and let none follow that waits."""
        self._aborted = True

    def close(self) -> None:
        """Leave, and release the segments."""
        if self._words is None:
            return
        ours = os.getpid() == self._process
        if ours and self._busy.locked():
            raise RuntimeError("another thread is in a call of this communicator")
        if ours and not self._words.outcome:
            self._call = self._done
            self._give_up(LEFT, self._rank)
        self._words.release()
        self._words = None
        self._data = np.empty(0, np.uint8)
        for peer in self._peers:
            if peer.words is not None:
                peer.words.release()
            peer.words = peer.data = None
            if peer.pidfd >= 0:
                os.close(peer.pidfd)
            if peer.sockets is not None:
                peer.sockets.close()
        self._peers = []

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, RuntimeError):
            self.close()

    # Running

    def _task(  # noqa: PLR0917 - likewise
        self, program: Program, given: Any, work: Any, dtype: int, operation: int, timeout_s: float, stages: bool
    ) -> Task:
        reduction = reduction_of(dtype, operation)
        if reduction is None:
            raise ValueError("this operation is not defined for this type")
        handed = self._hands_over.get(program)
        if handed is None:
            local = [peer.words is not None for peer in self._peers]
            sockets = [peer.sockets is not None for peer in self._peers]
            handed = program.hands_over(self._rank, local, sockets, self._slot_bytes)
            self._hands_over[program] = handed
        staged, exposed = handed
        if exposed if stages else staged:
            raise ValueError("a program stages what this call exposes, or the other way round")
        inside, outside = bytes_of(given), bytes_of(work, writable=True)
        if len(outside) < program.work_bytes or len(inside) < program.input_bytes:
            raise ValueError("a program goes beyond its arrays")
        if program.grain % ITEM_BYTES[dtype]:
            raise ValueError("a program cuts elements in two")
        scratch = np.empty(program.scratch_bytes, np.uint8)
        mode, address = address_for_peers(self._data, work, stages)
        input_mode, input_address = address_for_peers(self._data, given, stages)
        address = (address - program.work_at) % 2**64  # peers count from the start of the vector
        modes = mode | input_mode << 8 | (ACKNOWLEDGED if not stages or program.has_parts else 0)
        end_s = time.monotonic() + timeout_s
        return Task(program, inside, outside, scratch, end_s, reduction, modes, (address, input_address))

    def _run(self, task: Task, call: int, signature: int, stages: bool) -> tuple[int, int, int] | None:
        self._failed_op = -1
        try:
            self._call = call
            self._watched[:1] = time.monotonic()
            self._begin(task, signature)
            for at, (op, inline_at) in enumerate(zip(task.program.ops, task.program.inline_at, strict=True)):
                self._failed_op = at
                self._do(task, op, inline_at)
                self._watched[at + 1 : at + 2] = time.monotonic()
            self._failed_op = -1
            self._finish(task, not stages)
            self._return(task)
        except Stop as stop:
            self._give_up(stop.outcome, stop.culprit)
            return stop.outcome, stop.culprit, self._failed_op
        except BaseException:
            self._give_up(INTERRUPTED, self._rank)
            raise
        return None

    def _return(self, task: Task) -> None:
        """Announce that this rank has read everything it needs for this call."""
        slot = self._call % STAGING_SLOTS
        self._used[slot] = self._done = self._call
        if task.parts:
            self._used[slot ^ 1] = self._call
        self._publish(offset_of(HEADER, "returned"), self._call)

    def _begin(self, task: Task, signature: int) -> None:
        """Wait until no peer needs what this call will overwrite, and record the call."""
        self._chain = (self._chain ^ signature) * CHAIN_FACTOR % 2**64
        self._chains = {number: chain for number, chain in self._chains.items() if number > self._call - WINDOW}
        self._chains[self._call] = self._chain
        self._check_health(self._rank, math.inf, None)
        self._claim_slot(task, self._call % STAGING_SLOTS)
        task.modes |= task.slot << SLOT_BIT
        at = call_record_at(self._call)
        self._publish(at + offset_of(CALL_RECORD, "number"), 0)
        self._own.set_word(at + offset_of(CALL_RECORD, "signature"), signature)
        self._own.set_word(at + offset_of(CALL_RECORD, "chain"), self._chain)
        self._publish(at + offset_of(CALL_RECORD, "number"), self._call)

    def _claim_slot(self, task: Task, slot: int) -> None:
        """Wait until all peers have returned from the call that used this slot and its mailboxes last."""
        used, at = self._used[slot], offset_of(HEADER, "returned")
        for peer in self._peers:
            if (words := peer.words) is not None and used:
                self._wait_until(lambda words=words: words.word(at) >= used, peer, task.deadline_s)  # type: ignore[misc]
        task.slot = slot

    def _next_part(self, task: Task) -> None:
        """Take the other of two slots, once its last contents have been consumed."""
        slot = task.slot ^ 1
        for peer in self._peers:
            peer.part_ends[task.slot & 1] = peer.posted
            if peer.words is not None and task.parts and peer.part_ends[slot & 1] > self._counter(0):
                self._wait_consumed(peer, peer.part_ends[slot & 1], task.deadline_s)
        if task.parts == 0:
            self._claim_slot(task, slot)
        task.slot = slot
        task.parts += 1

    def _finish(self, task: Task, exposes: bool) -> None:
        """Wait until the caller may use its arrays again, and check that their contents are valid."""
        for peer in self._peers:
            sent = task.program.sent[peer.rank]
            if peer.words is not None and exposes and sent:
                self._wait_consumed(peer, self._counter(sent), task.deadline_s)
            while peer.sockets is not None and peer.sockets.has_queued():
                self._wait_for_sockets(None, peer.rank, task.deadline_s)
        for peer in self._peers:
            if peer.words is not None and peer.words.ends(self._call):
                raise Stop(PEER_GAVE_UP, peer.rank)

    def _do(self, task: Task, op: Op, inline_at: int | None) -> None:
        peer = self._peers[op.peer]
        if op.kind == SEND:
            self._send(task, op, peer, inline_at)
        elif op.kind in (RECEIVE, TO_SCRATCH):
            if peer.words is None:
                self._receive_from_socket(task, op, peer)
            else:
                self._receive(task, op, peer, inline_at)
        elif op.kind == FROM_SCRATCH:
            self._wait_guards(task, op)
            store(task, op, task.scratch[op.there : op.there + op.length], 0)
        elif op.kind == NEXT_PART:
            self._failed_op = -1  # this waits for readers of the slot, not for the peer of an operation
            self._next_part(task)
        else:
            task.work[op.at : op.at + op.length] = task.given[op.base : op.base + op.length]
