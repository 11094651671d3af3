"""The executor in Python: what `_core.c` does, slowly and in the open, in the same segments and on the same sockets.

It runs where there is no compiler, and the tests hold the compiled one to it; ranks of either kind can talk to each
other. Words of a segment are written whole, in the order of the program; that is enough where stores are seen in order
(x86), and a lock taken before each counter is the barrier elsewhere. Nobody is woken: who waits here looks again, and
who sleeps in the compiled one does so after 2 ms.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from choreo.run.execute.failures import BROKEN, INTERRUPTED, LEFT, MISMATCHED, PEER_DIED, PEER_GAVE_UP, TIMED_OUT
from choreo.run.execute.program import (
    EXPOSED,
    FROM_SCRATCH,
    LAST,
    OWN_INPUT,
    PART,
    RECEIVE,
    REDUCE,
    SEND,
    THEIR_INPUT,
    TO_SCRATCH,
)
from choreo.run.execute.twin.frames import FRAME, FRAME_BYTES, GOODBYE, Frame, Outbox, Stream, parts
from choreo.run.execute.twin.program import MOST, MOST_RANKS, NUMBERED, Op, Program
from choreo.run.execute.twin.reductions import ITEM_BYTES, Reduction, reduction_of

__all__ = ["Endpoint", "Program", "prepare"]

Bytes = npt.NDArray[np.uint8]

MAGIC = int.from_bytes(b"Choreo02", "little")
PAGE, CHANNEL_BYTES, CALLS, CALL_BYTES, SLOTS = 4096, 576, 8, 64, 8
# Words of 8 bytes in the header, in a channel and in a letter, and of 4 bytes where two share one.
MAGIC_AT, BYTES_AT, STAGE_AT, STAGE_BYTES_AT, HEAP_AT, GAVE_UP_IN_AT, RETURNED_AT = 0, 2, 3, 4, 5, 7, 16
RANK_AT, WORLD_AT, GAVE_UP_AT, CULPRIT_AT = 2, 3, 12, 13
CALLS_AT = (PAGE - CALLS * CALL_BYTES) // 8
NUMBER, SIGNATURE, CHAIN = 0, 1, 2
CONSUMED, TOLD_IN, LETTER_WORDS = 64, 65, 8
TOLD = 132  # in halves
READY, LETTER_CHAIN, MODES, WORK, INPUT = range(5)
LETTER_DATA_AT = 24
STAGED, REGISTERED, PRIVATE = 0, 1, 2
# Of a letter: its modes are of work and input, 8 bits each, and these.
ENCLOSED, COUNTED = 1 << 16, 2 << 16
LOOK_S, AWAKE_S, LONGEST_SLEEP_S = 0.02, 0.0005, 0.001
SLICE = 1 << 20
# A call's signature is mixed into the chain of all before it.
MIX = 0x9E3779B97F4A7C15
# What says most when several peers are not well.
WEIGHT = {PEER_GAVE_UP: 1, MISMATCHED: 2, PEER_DIED: 3}

_forks = 0


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - one for the process, as the forks are
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class _Stop(Exception):  # noqa: N818 - an outcome rather than an error
    """A call cannot go on."""

    def __init__(self, outcome: int, culprit: int) -> None:
        super().__init__(outcome, culprit)
        self.outcome, self.culprit = outcome, culprit


class _Words:
    """The header and channels of a segment, as words that are read and written whole."""

    def __init__(self, segment: object, world: int) -> None:
        head = memoryview(segment)[: _staging_at(world)]  # type: ignore[arg-type]
        self.whole, self.halves = head.cast("Q"), head.cast("I")

    def call(self, number: int, column: int) -> int:
        """A field of the descriptor of a call."""
        return self.whole[CALLS_AT + number % CALLS * 8 + column]

    def channel(self, peer: int, which: int) -> int:
        """A word of the channel to a peer."""
        return self.whole[(PAGE + peer * CHANNEL_BYTES) // 8 + which]

    def ends(self, call: int) -> bool:
        """Whether its rank stopped in this call or before; who left after this one has done its part."""
        outcome = self.halves[GAVE_UP_AT]
        return _ends(outcome, self.whole[GAVE_UP_IN_AT], call)

    def release(self) -> None:
        """Let go of the segment."""
        self.whole.release()
        self.halves.release()


@dataclass(slots=True, eq=False)
class _Peer:
    rank: int
    words: _Words | None
    data: Bytes | None
    pid: int
    pidfd: int
    outbox: Outbox | None
    posted: int = 0  # the last message that was made ready
    parted: list[int] = field(default_factory=lambda: [0, 0])  # and in the last two parts
    lettered: int = 0  # the last call whose letter was written
    verified: int = 0  # the last call of which it was seen that both do the same
    told: tuple[int, int, int] | None = None


@dataclass(slots=True, eq=False)
class _Task:
    program: Program
    given: Bytes
    work: Bytes
    scratch: Bytes
    deadline: float
    reduction: Reduction
    modes: int
    places: tuple[int, int]
    slot: int = 0
    slot_at: int = 0
    parts: int = 0  # that have begun after the first


class Endpoint:
    """One rank's end of a communicator.

    `peers` holds (segment, pid, descriptor of the process or -1, ()) for every rank of this machine, and (None, pid,
    control connection or -1, streams) for every other. After header and channels a segment has `stage_bytes` of
    staging. The descriptors of processes and control connections are closed with it.
    """

    def __init__(  # noqa: PLR0917 - called as the compiled one is, by position
        self,
        rank: int,
        world: int,
        own: object,
        stage_bytes: int,
        peers: list[tuple[Any, int, int, tuple[int, ...]]],
        spins: int,
        /,
    ) -> None:
        if not 0 <= rank < world or len(peers) != world:
            raise ValueError("there must be one peer a rank")
        self._rank, self._world, self._stage_bytes, self._forks = rank, world, stage_bytes, _forks
        self._own = _data(own)
        if not _is_of(self._own, own, rank, world, stage_bytes):
            raise ValueError("the own segment has not been prepared for this communicator")
        self._words: _Words | None = _Words(own, world)
        self._stage_at, self._slot_bytes = _staging_at(world), stage_bytes // SLOTS // 64 * 64
        self._peers: list[_Peer] = []
        for number, (segment, pid, _, _) in enumerate(peers):
            there = segment is not None and number != rank
            data = _data(segment) if there else None
            if data is not None and not _is_of(data, segment, number, world, stage_bytes):
                raise ValueError(f"the segment of rank {number} is not one of this communicator")
            words = _Words(segment, world) if there else None
            self._peers.append(_Peer(number, words, data, pid, -1, None))
        for peer, (_, _, pidfd, streams) in zip(self._peers, peers, strict=True):
            if peer.rank != rank:
                peer.pidfd = pidfd
                peer.outbox = Outbox(pidfd, streams) if streams and peer.words is None else None
        self._call = self._done = 0
        self._used = [0] * SLOTS  # the last call that sent something from each slot
        self._chain = 0
        self._chains: dict[int, int] = {}
        self._looked = 0.0
        self._hands_over: WeakKeyDictionary[Program, tuple[bool, bool]] = WeakKeyDictionary()
        self._failed_op = -1
        self._busy, self._fence = threading.Lock(), threading.Lock()

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
        if self._forks != _forks:
            raise RuntimeError("this communicator was made before a fork, and belongs to the parent")
        if not isinstance(program, Program):
            raise TypeError("run takes a Program")
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("another thread is in a call of this communicator")
        try:
            if not self._call < call < 2 ** (64 - NUMBERED) or not 0 <= signature < 2**64 or math.isnan(timeout_s):
                raise ValueError("calls are numbered upwards from 1, and their timeout is a number")
            if outcome := self._words.halves[GAVE_UP_AT]:
                return outcome, self._words.halves[CULPRIT_AT], -1
            task = self._task(program, given, work, dtype, operation, timeout_s, stages)
            return self._run(task, call, signature, stages)
        finally:
            self._busy.release()

    @property
    def calls(self) -> int:
        """The number of the last call."""
        return self._call

    def told(self, peer: int, /) -> tuple[int, int, int] | None:
        """Why a rank gave up, whom it blames, and in which call; None if it has not said so."""
        if self._words is None or not 0 <= peer < self._world:
            raise IndexError("there is no such rank")
        words = self._words if peer == self._rank else self._peers[peer].words
        if words is None:
            return self._peers[peer].told
        outcome = words.halves[GAVE_UP_AT]
        return (outcome, words.halves[CULPRIT_AT], words.whole[GAVE_UP_IN_AT]) if outcome else None

    def noted(self, peer: int, /) -> tuple[int, int]:
        """The last calls that a peer elsewhere has said it has the result of, and has returned from."""
        if self._words is None or not 0 <= peer < self._world:
            raise IndexError("there is no such rank")
        outbox = self._peers[peer].outbox
        return (0, 0) if outbox is None else (outbox.noted[0], outbox.noted[1])

    def close(self) -> None:
        """Leave, and let go of the segments."""
        if self._words is None:
            return
        ours = self._forks == _forks
        if ours and self._busy.locked():
            raise RuntimeError("another thread is in a call of this communicator")
        if ours and not self._words.halves[GAVE_UP_AT]:
            self._call = self._done
            self._give_up(LEFT, self._rank)
            self._say_goodbye(LEFT, self._rank)
        self._words.release()
        self._words = None
        self._own = np.empty(0, np.uint8)
        for peer in self._peers:
            if peer.words is not None:
                peer.words.release()
            peer.words = peer.data = None
            if peer.pidfd >= 0:
                os.close(peer.pidfd)
            if peer.outbox is not None:
                peer.outbox.close()
        self._peers = []

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, RuntimeError):
            self.close()

    # Running.

    def _task(  # noqa: PLR0917 - likewise
        self, program: Program, given: Any, work: Any, dtype: int, operation: int, timeout_s: float, stages: bool
    ) -> _Task:
        reduction = reduction_of(dtype, operation)
        if reduction is None:
            raise ValueError("this operation is not defined for this type")
        handed = self._hands_over.get(program)
        if handed is None:
            local = [peer.words is not None for peer in self._peers]
            sockets = [peer.outbox is not None for peer in self._peers]
            handed = program.hands_over(self._rank, local, sockets, self._slot_bytes)
            self._hands_over[program] = handed
        staged, exposed = handed
        if exposed if stages else staged:
            raise ValueError("a program stages what this call exposes, or the other way round")
        inside, outside = _data(given), _data(work, writable=True)
        if len(outside) < program.work_bytes or len(inside) < program.input_bytes:
            raise ValueError("a program goes beyond its arrays")
        if program.grain % ITEM_BYTES[dtype]:
            raise ValueError("a program cuts elements in two")
        scratch = np.empty(program.scratch_bytes, np.uint8)
        (mode, place), (input_mode, input_place) = (_place(self._own, one, stages) for one in (work, given))
        place = (place - program.work_at) % 2**64  # peers count from the beginning of the vector
        modes = mode | input_mode << 8 | (COUNTED if not stages or program.has_parts else 0)
        end_s = time.monotonic() + timeout_s
        return _Task(program, inside, outside, scratch, end_s, reduction, modes, (place, input_place))

    def _run(self, task: _Task, call: int, signature: int, stages: bool) -> tuple[int, int, int] | None:
        self._failed_op = -1
        try:
            self._call = call
            self._begin(task, signature)
            for at, (op, enclosed) in enumerate(zip(task.program.ops, task.program.enclosed, strict=True)):
                self._failed_op = at
                self._do(task, op, enclosed)
            self._failed_op = -1
            self._finish(task, not stages)
            self._return(task)
        except _Stop as stop:
            self._give_up(stop.outcome, stop.culprit)
            self._say_goodbye(stop.outcome, stop.culprit)
            return stop.outcome, stop.culprit, self._failed_op
        except BaseException:
            self._give_up(INTERRUPTED, self._rank)
            self._say_goodbye(INTERRUPTED, self._rank)
            raise
        return None

    def _return(self, task: _Task) -> None:
        """Say that nothing of this call is read any more."""
        assert self._words is not None
        slot = self._call % SLOTS
        self._used[slot] = self._done = self._call
        if task.parts:
            self._used[slot ^ 1] = self._call
        with self._fence:
            self._words.whole[RETURNED_AT] = self._call

    def _numbered(self, number: int) -> int:
        """A message of this call, as counters have it."""
        return self._call << NUMBERED | number

    def _begin(self, task: _Task, signature: int) -> None:
        """Wait until nobody needs what this call is going to overwrite, and tell what it is."""
        self._chain = (self._chain ^ signature) * MIX % 2**64
        self._chains = {number: one for number, one in self._chains.items() if number > self._call - CALLS}
        self._chains[self._call] = self._chain
        self._still_well(self._rank, math.inf, None)
        self._take_slot(task, self._call % SLOTS)
        assert self._words is not None
        words, at = self._words.whole, CALLS_AT + self._call % CALLS * 8
        with self._fence:
            words[at + NUMBER] = 0
        words[at + SIGNATURE], words[at + CHAIN] = signature, self._chain
        with self._fence:
            words[at + NUMBER] = self._call

    def _take_slot(self, task: _Task, slot: int) -> None:
        """Wait until a slot, and the letters that go with it, may be written again, and take it."""
        for peer in self._peers:
            if peer.words is not None and self._used[slot]:
                words, call = peer.words.whole, self._used[slot]
                self._wait_until(lambda words=words, call=call: words[RETURNED_AT] >= call, peer, task.deadline)  # type: ignore[misc]
        task.slot, task.slot_at = slot, slot * self._slot_bytes

    def _begin_part(self, task: _Task) -> None:
        """Take the other of two slots, when what was sent from there in this call has been consumed."""
        slot = task.slot ^ 1
        for peer in self._peers:
            peer.parted[task.slot & 1] = peer.posted
            if peer.words is not None and task.parts and peer.parted[slot & 1] > self._numbered(0):
                self._wait_consumed(peer, peer.parted[slot & 1], task.deadline)
        if task.parts == 0:
            self._take_slot(task, slot)
        task.slot, task.slot_at = slot, slot * self._slot_bytes
        task.parts += 1

    def _finish(self, task: _Task, exposes: bool) -> None:
        """What must have happened before the caller may touch its arrays again, and believe what is in them."""
        for peer in self._peers:
            sent = task.program.sent[peer.rank]
            if peer.words is not None and exposes and sent:
                self._wait_consumed(peer, self._numbered(sent), task.deadline)
            while peer.outbox is not None and peer.outbox.has_queued():
                self._wait_for_sockets(None, peer.rank, task.deadline)
        for peer in self._peers:
            if peer.words is not None and peer.words.ends(self._call):
                raise _Stop(PEER_GAVE_UP, peer.rank)

    def _do(self, task: _Task, op: Op, enclosed: int | None) -> None:
        peer = self._peers[op.peer]
        if op.kind == SEND:
            self._send(task, op, peer, enclosed)
        elif op.kind in (RECEIVE, TO_SCRATCH):
            if peer.words is None:
                self._receive_from_socket(task, op, peer)
            else:
                self._receive(task, op, peer, enclosed)
        elif op.kind == FROM_SCRATCH:
            self._wait_guards(task, op)
            _put(task, op, task.scratch[op.there : op.there + op.length], 0)
        elif op.kind == PART:
            self._failed_op = -1  # a wait for whoever still reads the slot, not for the peer of an operation
            self._begin_part(task)
        else:
            task.work[op.at : op.at + op.length] = task.given[op.base : op.base + op.length]

    def _send(self, task: _Task, op: Op, peer: _Peer, enclosed: int | None) -> None:
        data = (task.given if op.has(OWN_INPUT) else task.work)[op.at : op.at + op.length]
        if peer.outbox is not None:
            frame = Frame(FRAME, op.number, self._call, self._chain, op.length)
            peer.outbox.queue_range(frame, data)
            if op.has(LAST):
                self._write(peer)
            return
        letter = _letter_at(peer.rank, self._call)
        if enclosed is not None:
            at = 8 * letter + LETTER_DATA_AT + enclosed
            self._own[at : at + op.length] = data
        elif not op.has(EXPOSED):  # once more where it is HELD: it may have travelled in letters so far
            at = self._stage_at + task.slot_at + op.staged
            self._own[at : at + op.length] = data
        if op.has(LAST):
            assert self._words is not None
            words = self._words.whole
            if peer.lettered != self._call:
                words[letter + LETTER_CHAIN] = self._chain
                words[letter + MODES] = task.modes | (0 if enclosed is None else ENCLOSED)
                if enclosed is None:
                    words[letter + WORK], words[letter + INPUT] = task.places
                peer.lettered = self._call
            peer.posted = self._numbered(op.number)
            with self._fence:
                words[letter + READY] = peer.posted

    def _receive(self, task: _Task, op: Op, peer: _Peer, enclosed: int | None) -> None:
        assert peer.words is not None
        assert peer.data is not None
        letter, words, number = _letter_at(self._rank, self._call), peer.words.whole, self._numbered(op.number)
        self._wait_until(lambda: words[letter + READY] >= number, peer, task.deadline)
        if words[letter + LETTER_CHAIN] != self._chain:
            raise _Stop(MISMATCHED, peer.rank)
        self._wait_guards(task, op)
        modes, in_input = words[letter + MODES], op.has(THEIR_INPUT)
        mode = modes >> 8 * in_input & 255
        if mode == STAGED and modes & ENCLOSED and op.number == 1:
            if enclosed is None:
                raise _Stop(BROKEN, peer.rank)
            place = 8 * letter + LETTER_DATA_AT + enclosed
        elif mode == STAGED and op.staged + op.length <= self._slot_bytes:
            place = self._stage_at + task.slot_at + op.staged
        elif mode in (REGISTERED, PRIVATE) and not modes & ENCLOSED:
            place = (words[letter + (INPUT if in_input else WORK)] + op.there) % 2**64
        else:
            raise _Stop(BROKEN, peer.rank)
        if op.length and mode != PRIVATE and place + op.length > len(peer.data):
            raise _Stop(BROKEN, peer.rank)
        for at in range(0, op.length, SLICE):
            length = min(SLICE, op.length - at)
            if mode == PRIVATE:
                data = self._read_memory(peer, place + at, length)
            else:
                data = peer.data[place + at : place + at + length]
            _take(task, op, data, at)
        if op.has(LAST) and modes & COUNTED:
            assert self._words is not None
            with self._fence:
                self._words.whole[(PAGE + peer.rank * CHANNEL_BYTES) // 8 + CONSUMED] = number

    def _receive_from_socket(self, task: _Task, op: Op, peer: _Peer) -> None:
        assert peer.outbox is not None
        waits = True
        for stream, (start, whole) in zip(
            peer.outbox.streams, parts(op.length, len(peer.outbox.streams)), strict=False
        ):
            head = bytearray(FRAME_BYTES)
            self._read(peer, stream, memoryview(head), task.deadline)
            frame = Frame.unpack(head)
            if frame.magic != FRAME:
                raise _Stop(BROKEN, peer.rank)
            if (frame.call, frame.signature) != (self._call, self._chain):
                raise _Stop(MISMATCHED, peer.rank)
            if (frame.number, frame.length) != (op.number, whole):
                raise _Stop(BROKEN, peer.rank)
            if waits:
                self._wait_guards(task, op)
                waits = False
            for at in range(start, start + whole, SLICE):
                data = np.empty(min(SLICE, start + whole - at), np.uint8)
                self._read(peer, stream, data.data, task.deadline)
                _take(task, op, data, at)

    def _read_memory(self, peer: _Peer, address: int, length: int) -> Bytes:
        data = np.empty(length, np.uint8)
        try:
            with open(f"/proc/{peer.pid}/mem", "rb", buffering=0) as memory:  # noqa: PTH123 - not a file with a path
                done = 0
                while done < length:
                    got = os.preadv(memory.fileno(), [data[done:].data], address + done)
                    if not got:
                        raise _Stop(BROKEN, peer.rank)
                    done += got
        except (OSError, OverflowError) as error:
            raise _Stop(PEER_DIED if isinstance(error, FileNotFoundError) else BROKEN, peer.rank) from None
        # The number of a process that died may belong to another by now.
        if _is_dead(peer.pidfd):
            raise _Stop(PEER_DIED, peer.rank)
        return data

    # Waiting.

    def _wait_guards(self, task: _Task, op: Op) -> None:
        for rank, number in task.program.guards[op.first_guard : op.first_guard + op.guards]:
            peer = self._peers[rank]
            if peer.words is not None:
                self._wait_consumed(peer, self._numbered(number), task.deadline)
            while peer.outbox is not None and peer.outbox.has_queued(number):
                self._wait_for_sockets(None, rank, task.deadline)

    def _wait_consumed(self, peer: _Peer, number: int, deadline: float) -> None:
        words = peer.words
        assert words is not None
        self._wait_until(lambda: words.channel(self._rank, CONSUMED) >= number, peer, deadline)

    def _wait_until(self, over: Callable[[], bool], peer: _Peer, deadline: float) -> None:
        began, pause = time.monotonic(), 0.0
        while not over():
            # A peer may have done its part of this call before it died or stopped.
            self._still_well(peer.rank, deadline, over)
            self._push(None, 0)
            time.sleep(pause)
            if time.monotonic() - began > AWAKE_S:
                pause = min(LONGEST_SLEEP_S, pause + 0.0001)
        with self._fence:
            pass

    def _wait_for_sockets(self, reading: Stream | None, waited_for: int, deadline: float) -> None:
        self._push(reading, 10)
        self._still_well(waited_for, deadline, None)

    def _push(self, reading: Stream | None, milliseconds: int) -> None:
        """Write what is queued; wait at most so long for a socket to take it, or to have something to read."""
        poller, found = select.poll(), {}
        for peer in self._peers:
            for stream in () if peer.outbox is None else peer.outbox.streams:
                events = (select.POLLOUT if stream.queue else 0) | (select.POLLIN if stream is reading else 0)
                if events:
                    poller.register(stream.socket, events)
                    found[stream.socket.fileno()] = peer
        if not found:
            return
        for descriptor, events in poller.poll(milliseconds):
            if events & ~select.POLLIN:
                self._write(found[descriptor])

    def _write(self, peer: _Peer) -> None:
        assert peer.outbox is not None
        try:
            peer.outbox.write()
        except OSError:
            raise self._lost(peer) from None

    def _read(self, peer: _Peer, stream: Stream, into: memoryview, deadline: float) -> None:
        while len(into):
            try:
                got = stream.socket.recv_into(into, 0, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                self._wait_for_sockets(stream, peer.rank, deadline)
                continue
            except OSError:
                got = 0
            if not got:
                raise self._lost(peer)
            into = into[got:]
            self._push(None, 0)

    def _lost(self, peer: _Peer) -> _Stop:
        """A stream has ended: its peer is gone, or has said before why."""
        return _Stop(self._look_at_control(peer) or PEER_DIED, peer.rank)

    def _still_well(self, waited_for: int, deadline: float, over: Callable[[], bool] | None) -> None:
        now = time.monotonic()
        if now - self._looked > LOOK_S:
            self._looked = now
            found = self._look_around()
            if found is not None and not (over is not None and over()):
                raise found
        if now > deadline and not (over is not None and over()):
            raise _Stop(TIMED_OUT, waited_for)

    def _look_around(self) -> _Stop | None:
        """Has anybody died, stopped or left? Everybody is looked at, not only the one that is waited for."""
        found = None
        for peer in self._peers:
            if peer.rank == self._rank:
                continue
            dead = peer.words is not None and _is_dead(peer.pidfd)
            outcome = 0
            if peer.words is None:
                outcome = self._look_at_control(peer)
            elif not self._same_calls(peer):
                outcome = MISMATCHED
            elif peer.words.ends(self._call):
                outcome = PEER_GAVE_UP
            elif dead and not peer.words.halves[GAVE_UP_AT]:
                outcome = PEER_DIED
            if outcome and (found is None or WEIGHT[outcome] > WEIGHT[found.outcome]):
                found = _Stop(outcome, peer.rank)
        return found

    def _look_at_control(self, peer: _Peer) -> int:
        if peer.outbox is None:
            return 0
        try:
            frame = peer.outbox.look()
        except (OSError, EOFError):
            return PEER_DIED
        if frame is None:
            return 0
        if frame.magic != GOODBYE:
            return PEER_GAVE_UP
        peer.told = (frame.number, frame.signature & 0xFFFFFFFF, frame.call)
        return PEER_GAVE_UP if _ends(frame.number, frame.call, self._call) else 0

    def _same_calls(self, peer: _Peer) -> bool:
        """Whether a peer made the calls that we made, as far as it has come."""
        assert peer.words is not None
        for call in range(max(peer.verified + 1, self._call - CALLS + 1, 1), self._call + 1):
            number = peer.words.call(call, NUMBER)
            if number < call:
                return True
            chain, known = peer.words.call(call, CHAIN), self._chains.get(call)
            if number == call == peer.words.call(call, NUMBER) and known is not None and chain != known:
                return False
            peer.verified = call
        return True

    # Telling.

    def _give_up(self, outcome: int, culprit: int) -> None:
        assert self._words is not None
        if self._words.halves[GAVE_UP_AT]:
            return
        self._words.halves[CULPRIT_AT] = culprit
        self._words.whole[GAVE_UP_IN_AT] = self._call
        with self._fence:
            self._words.halves[GAVE_UP_AT] = outcome
        for peer in range(self._world):
            at = (PAGE + peer * CHANNEL_BYTES) // 8
            self._words.whole[at + TOLD_IN] = self._call
            with self._fence:
                self._words.halves[2 * at + TOLD] = outcome

    def _say_goodbye(self, outcome: int, culprit: int) -> None:
        """Tell those who are reached through sockets."""
        for peer in self._peers:
            if peer.outbox is not None:
                peer.outbox.say_goodbye(Frame(GOODBYE, outcome, self._call, culprit, 0))


def prepare(own: object, rank: int, world: int, stage_bytes: int, /) -> None:
    """Write the header of an own segment, so that peers may open it."""
    data = _data(own, writable=True)
    if not 0 <= rank < world or not _has_room(len(data), world, stage_bytes):
        raise ValueError("the segment is too small, or the rank is none of the world's")
    words = _Words(own, world)
    words.halves[RANK_AT], words.halves[WORLD_AT] = rank, world
    at = _staging_at(world)
    words.whole[BYTES_AT], words.whole[STAGE_AT], words.whole[STAGE_BYTES_AT] = len(data), at, stage_bytes
    words.whole[HEAP_AT] = at + stage_bytes
    words.whole[MAGIC_AT] = MAGIC
    words.release()


def _put(task: _Task, op: Op, data: Bytes, at: int) -> None:
    if not len(data):
        return
    to = task.work[op.at + at : op.at + at + len(data)]
    if op.has(REDUCE):
        base = (task.given if op.has(OWN_INPUT) else task.work)[op.base + at : op.base + at + len(data)]
        data = task.reduction(base, data)
    to[:] = data


def _take(task: _Task, op: Op, data: Bytes, at: int) -> None:
    if op.kind == TO_SCRATCH:
        task.scratch[op.at + at : op.at + at + len(data)] = data
    else:
        _put(task, op, data, at)


def _ends(outcome: int, told_in: int, call: int) -> bool:
    return told_in < call if outcome == LEFT else bool(outcome) and told_in <= call


def _is_dead(pidfd: int) -> bool:
    if pidfd < 0:
        return False
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def _letter_at(peer: int, call: int) -> int:
    """The word at which the letter to a peer of a call begins."""
    return (PAGE + peer * CHANNEL_BYTES) // 8 + call % CALLS * LETTER_WORDS


def _staging_at(world: int) -> int:
    return PAGE + -(-CHANNEL_BYTES * world // PAGE) * PAGE


def _has_room(length: int, world: int, stage_bytes: int) -> bool:
    return 0 < world <= MOST_RANKS and 0 <= stage_bytes <= MOST and _staging_at(world) + stage_bytes <= length


def _is_of(data: Bytes, segment: object, rank: int, world: int, stage_bytes: int) -> bool:
    if not _has_room(len(data), world, stage_bytes):
        return False
    words = _Words(segment, world)
    head = words.whole[MAGIC_AT], words.whole[BYTES_AT], words.whole[STAGE_BYTES_AT]
    fine = head == (MAGIC, len(data), stage_bytes) and tuple(words.halves[RANK_AT : WORLD_AT + 1]) == (rank, world)
    words.release()
    return fine


def _data(array: Any, *, writable: bool = False) -> Bytes:
    """The bytes of an array, or of anything that has a buffer; none of None."""
    if array is None:
        return np.empty(0, np.uint8)
    if isinstance(array, np.ndarray):
        if not array.flags.c_contiguous or (writable and not array.flags.writeable):
            raise ValueError("an array is not contiguous, or cannot be written")
        flat: Bytes = array.reshape(-1).view(np.uint8)
        return flat
    held = memoryview(array)
    if not held.c_contiguous or (writable and held.readonly):
        raise BufferError("a buffer is not contiguous, or cannot be written")
    return np.frombuffer(held, np.uint8)


def _place(own: Bytes, array: Any, stages: bool) -> tuple[int, int]:
    """How peers may read an array: an offset in the segment, an address, or not at all."""
    if array is None or stages:
        return STAGED, 0
    at = _address(_data(array)) - _address(own)
    return (REGISTERED, at) if 0 <= at < len(own) else (PRIVATE, _address(_data(array)))


def _address(data: Bytes) -> int:
    return int(data.__array_interface__["data"][0])
