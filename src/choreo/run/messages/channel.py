"""Messages between two ranks of one host, through shared memory.

Each rank has a ring for each peer, in its own segment. A small message is in the ring itself. Of a larger one the ring
says where it is, and the receiver reads it there: in the sender's private memory, in an array of `comm.empty`, or in a
buffer of shared memory. The first two are `exposed`: the send is done when the receiver has read them. A message that
nobody takes for a while is copied into such a buffer, if there is room; then the send is done too, and the message can
be read even after its sender has died.

A receiver claims an exposed message before it reads where the message is. A sender that moves or withdraws one says so
before it looks whether it was claimed. So at least one of them sees what the other did.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from choreo.run.execute.arrays import Array
from choreo.run.execute.processes import ended_processes
from choreo.run.messages.matching import GONE, NOT_TAKEN, Matcher, Message, Send
from choreo.run.messages.ring import BESIDE, NONSENSE, RING_BYTES, WANTS_ROOM, Entry, ring_ends
from choreo.run.messages.send_buffers import SendBuffers
from choreo.run.messages.words import WORDS, MessageCore, Words

__all__ = ["CHANNEL_BYTES", "CHANNEL_WORDS", "EAGER_BYTES", "Channel", "LocalPeer", "SenderMemory"]

SLOTS = 64  # out-of-line messages to one peer at once
# A message up to this size goes into the ring (eager), if there is room. One up to the larger size is copied into a
# buffer at once, so that nobody waits.
EAGER_BYTES, BUFFERED_BYTES = 8 << 10, 256 << 10
# How much a rank keeps of one peer's unexpected small messages; then the peer waits.
KEPT_BYTES = 64 << 20
# Words after the bell and whether this rank sleeps: those of the ring, and whether this rank has closed. Then one for
# each slot: the message that it has claimed, and finished, of the peer's; and of its own messages how to read one, and
# where that is when exposed, and when in a buffer.
CLOSED = 4
CLAIMED, FINISHED, STATE, EXPOSED_AT, BUFFERED_AT = (WORDS + number * SLOTS for number in range(5))
CHANNEL_WORDS = WORDS + 5 * SLOTS
_RING_AT = -(-8 * CHANNEL_WORDS // 64) * 64
CHANNEL_BYTES = _RING_AT + RING_BYTES
# How to read a message: in bits 0 and 1 of its state. Its number is above them.
PRIVATE, REGISTERED, BUFFERED, WITHDRAWN = 0, 1, 2, 3


@dataclass(slots=True, eq=False)
class SenderMemory:
    """The memory of a rank's sent messages: its segment, its buffers, and whether peers may read its private memory."""

    segment: Any  # the map of it
    at: int  # its address in this process
    readable: bool
    buffers: SendBuffers


@dataclass(slots=True, eq=False)
class LocalPeer:
    """A rank on this host: its process, the map of its segment, and where its channel to this rank begins there."""

    rank: int
    index: int  # among the ranks of this host
    pid: int
    pidfd: int
    segment: Any
    at: int


class Channel:
    """The messages from this rank to a peer, and from the peer to this rank."""

    def __init__(
        self,
        core: MessageCore,
        words: Words,
        matcher: Matcher,
        *,
        memory: SenderMemory,
        peer: LocalPeer,
        at: int,  # where this rank's channel to the peer begins in its segment
    ) -> None:
        self._core, self._words, self._matcher, self._memory = core, words, matcher, memory
        self.peer, self._index, self._pid = peer.rank, peer.index, peer.pid
        self._process = [peer.pidfd]
        self._theirs = memoryview(peer.segment)
        reader, writer = ring_ends(words)
        self._reader = reader(self._theirs[peer.at + _RING_AT :][:RING_BYTES], words, self._index)
        self._writer = writer(memoryview(memory.segment)[at + _RING_AT :][:RING_BYTES], words, self._index)
        self.queue: deque[Send] = deque()  # that the ring has no room for
        self.exposed: dict[int, Send] = {}  # by number
        self._buffered: dict[int, Array] = {}
        self._numbers = 0
        self.gone = False

    # Sending

    def send(self, send: Send) -> None:
        """Send a message, now or when there is room."""
        if self.queue or not self._put(send):
            self.queue.append(send)
            self._words.write(self._index, WANTS_ROOM, 1)
            self.flush()

    def send_now(self, data: memoryview, dtype: int, tag: int) -> bool:
        """Send a message that need not wait for its receiver, if there is room and no message is waiting for room."""
        if self.queue:
            return False
        if len(data) <= EAGER_BYTES:
            return self._writer.send(dtype, tag, data)
        return len(data) <= BUFFERED_BYTES and self._put_buffered(data, dtype, tag)

    def flush(self) -> None:
        """Send what is queued, as far as there is room."""
        if not self.queue:
            return
        while self.queue and self._put(self.queue[0]):
            self.queue.popleft()
        if not self.queue:
            self._words.write(self._index, WANTS_ROOM, 0)

    def collect(self) -> bool:
        """Complete the sends that the peer has read, and free their buffers; returns whether there were any."""
        ended = False
        for number in [sent for sent in self.exposed if self._is_finished(sent)]:
            self.exposed.pop(number).end(self.peer)
            ended = True
        self._collect_buffers()
        return ended

    def _collect_buffers(self) -> None:
        for number in [sent for sent in self._buffered if self._is_finished(sent)]:
            self._memory.buffers.give_back(self._buffered.pop(number))

    def _is_finished(self, number: int) -> bool:
        return self._words.read(self._index, FINISHED + number % SLOTS) == number

    def has_seen(self, send: Send) -> bool:
        """Whether the peer has come to this message in the ring."""
        return self._writer.has_been_read(send.ends_at)

    def buffer(self, send: Send) -> None:
        """Copy a message that nobody receives, so that its send is done; if there is room, and nobody claims it now."""
        number, words, slot = send.number, self._words, send.number % SLOTS
        if number not in self.exposed or words.read(self._index, CLAIMED + slot) == number:
            return
        if not self._keep(number, send.data):
            return
        words.write(self._index, STATE + slot, number << 2 | BUFFERED)
        if words.read(self._index, CLAIMED + slot) != number:
            self.exposed.pop(number).end(self.peer)

    def withdraw(self, send: Send) -> None:
        """Withdraw a message whose deadline has passed. The peer drops it, even if it is just reading it."""
        number, shortage = send.number, self._memory.buffers.shortage
        if send in self.queue:
            self.queue.remove(send)
            send.fail(f"{NOT_TAKEN}: {shortage}" if shortage and not self._memory.readable else NOT_TAKEN)
        elif number in self.exposed:
            self._words.write(self._index, STATE + number % SLOTS, number << 2 | WITHDRAWN)
            del self.exposed[number]
            send.fail(NOT_TAKEN)

    def _put(self, send: Send) -> bool:
        """Put a message into the ring; False if there is no room."""
        length = len(send.data)
        if length <= EAGER_BYTES and self._writer.send(send.dtype, send.tag, send.data):
            send.end(self.peer)
            return True
        return self._put_beside(send, length)

    def _put_beside(self, send: Send, length: int) -> bool:
        memory = self._memory
        address = self._core.address_of(send.data)
        registered = memory.at <= address < memory.at + len(memory.segment)
        readable = registered or memory.readable
        if (length <= BUFFERED_BYTES or not readable) and self._put_buffered(send.data, send.dtype, send.tag):
            send.end(self.peer)
            return True
        number = self._next_number()
        if not (readable and number and self._writer.put(BESIDE, send.dtype, send.tag, length, number, None)):
            return False
        self._words.write(self._index, EXPOSED_AT + number % SLOTS, address - memory.at if registered else address)
        self._show(number, REGISTERED if registered else PRIVATE)
        send.number, send.ends_at = number, self._writer.written
        self.exposed[number] = send
        return True

    def _put_buffered(self, data: memoryview, dtype: int, tag: int) -> bool:
        """Send a copy of a message; False if there is no room for it, or none in the ring."""
        number = self._next_number()
        if not number or not self._keep(number, data):
            return False
        if not self._writer.put(BESIDE, dtype, tag, len(data), number, None):
            self._memory.buffers.give_back(self._buffered.pop(number))
            return False
        self._show(number, BUFFERED)
        return True

    def _next_number(self) -> int:
        """The number of the next out-of-line message; 0 if its slot is in use."""
        number = self._numbers + 1
        return number if number <= SLOTS or self._is_finished(number - SLOTS) else 0

    def _show(self, number: int, state: int) -> None:
        """Let the peer see an out-of-line message, and how to read it."""
        self._numbers = number
        self._words.write(self._index, STATE + number % SLOTS, number << 2 | state)
        self._writer.tell()

    def _keep(self, number: int, data: memoryview) -> bool:
        """Copy a message into a buffer; False if there is none."""
        self._collect_buffers()
        buffer = self._memory.buffers.take(len(data))
        if buffer is None:
            return False
        self._core.copy(buffer.data[: len(data)], data, True)
        self._buffered[number] = buffer
        at = self._core.address_of(buffer.data) - self._memory.at
        self._words.write(self._index, BUFFERED_AT + number % SLOTS, at)
        return True

    # Receiving

    def read_one(self, bounded: bool = True) -> bool:
        """Take one message out of the peer's ring, if there is one; ValueError if it is not valid."""
        if bounded and self.is_full:
            return False
        entry = self._reader.look()
        if entry is None:
            return False
        self._on_message(entry)
        self._reader.advance()
        return True

    def take_now(self, into: memoryview, dtype: int, tag: int) -> bool | None:
        """Take the peer's next message if it matches; None if there is none. ValueError as above."""
        taken = self._reader.take(dtype, tag, into)
        if taken is not False or len(into) <= EAGER_BYTES:
            return taken
        entry = self._reader.look()
        if entry is None or tuple(entry[:4]) != (BESIDE, dtype, tag, len(into)):
            return False
        try:
            taken = self.fetch(entry[4], into, len(into))
        except ConnectionError as error:  # its sender is gone; `_look_for_dead` reports that
            raise ValueError(error) from None
        self._reader.advance()
        return True if taken else None  # None: it was withdrawn

    def _on_message(self, entry: Entry) -> None:
        kind, dtype, tag, length, number, data = entry
        if kind == BESIDE:
            self._matcher.arrive(self.peer, OutOfLineMessage(self, tag, dtype, length, number))
            return
        receive = self._matcher.find(self.peer, tag)
        if receive is None:
            self._matcher.arrive(self.peer, Message(tag, dtype, length, [bytes(data)]))
        elif len(receive.into) == length and receive.dtype == dtype:
            receive.into[:] = data
            receive.complete(self.peer)
        else:
            receive.end(error=self._matcher.mismatch(self.peer, Message(tag, dtype, length), receive))

    def fetch(self, number: int, into: memoryview | None, length: int) -> bool:
        """Read a message that is not in the ring, unless nobody wants it; False if it was withdrawn."""
        words, peer, slot = self._words, self._index, number % SLOTS
        words.write(peer, CLAIMED + slot, number)
        state = words.read(peer, STATE + slot)
        if state >> 2 != number:
            raise ConnectionAbortedError(NONSENSE)
        mode = state & 3
        if into is not None and mode != WITHDRAWN:
            self._read_beside(mode, slot, into, length)
            mode = words.read(peer, STATE + slot) & 3  # it may have been withdrawn while it was read
        words.tell(peer, FINISHED + slot, number)
        return mode != WITHDRAWN

    def _read_beside(self, mode: int, slot: int, into: memoryview, length: int) -> None:
        at = self._words.read(self._index, (BUFFERED_AT if mode == BUFFERED else EXPOSED_AT) + slot)
        if mode != BUFFERED and (self.gone or self.has_ended):
            raise ConnectionResetError(GONE)
        if mode != PRIVATE:
            if at > len(self._theirs) or length > len(self._theirs) - at:
                raise ConnectionAbortedError(NONSENSE)
            self._core.copy(into, self._theirs[at : at + length])
        else:
            try:
                self._core.read_process(into, self._pid, at)
            except OSError:
                raise ConnectionResetError("died in the middle of a message") from None
        # What was read counts only if the sender kept it until now.
        if mode != BUFFERED and self.has_ended:
            raise ConnectionResetError("died in the middle of a message")

    @property
    def has_ended(self) -> bool:
        """Whether the peer has closed its communicator, or died."""
        return bool(self._words.read(self._index, CLOSED) or ended_processes(self._process))

    @property
    def is_full(self) -> bool:
        """Whether so many of the peer's messages are kept that no more are read."""
        return self._matcher.kept_bytes[self.peer] > KEPT_BYTES

    # The end

    def lose(self, reason: str) -> None:
        """The peer is gone, and everything it sent has been read: its sends and ours end."""
        self.gone = True
        sends = [*self.exposed.values(), *self.queue]
        self.exposed.clear()
        self.queue.clear()
        for number in list(self._buffered):
            self._memory.buffers.give_back(self._buffered.pop(number))
        for send in sends:
            send.fail(reason)

    def say_closed(self) -> None:
        """Tell the peer that nothing more comes."""
        self._words.tell(self._index, CLOSED, 1)


class OutOfLineMessage(Message):
    """An out-of-line message: its data is in the sender's memory, not in the ring."""

    def __init__(self, channel: Channel, tag: int, dtype: int, length: int, number: int) -> None:
        super().__init__(tag, dtype, length)
        self._channel, self._number = channel, number

    @property
    def kept_bytes(self) -> int:
        """Nothing: the sender has it."""
        return 0

    def fetch(self, into: memoryview) -> bool:
        """Copy it to where it was asked for; False if it was withdrawn. ConnectionError if its sender is gone."""
        return self._channel.fetch(self._number, into, self.length)

    def discard(self) -> None:
        """Drop it: no receive will take it."""
        self._channel.fetch(self._number, None, 0)
