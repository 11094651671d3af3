"""Sockets to ranks of other hosts, as the Python executor uses them; frames are those of `layout`."""

from __future__ import annotations

import os
import socket
from collections import deque
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from choreo.run.execute.layout import PAGE, STRIPE_BYTES, Frame
from choreo.run.transport.records import RECORD_BYTES, REKEY_RECORDS, TAG_BYTES, RecordCipher

__all__ = ["PeerSockets", "Stream", "StreamSpec", "stripes"]

# A descriptor; or, where a stream is sealed, a descriptor, the cipher, the key of what is sent and that of what comes.
# Tests add after how many records keys are replaced.
StreamSpec: TypeAlias = int | tuple[int, str, bytes, bytes] | tuple[int, str, bytes, bytes, int]


def stripes(length: int, num_streams: int) -> list[tuple[int, int]]:
    """Cut a range into stripes, one a stream: the start and the length of each. Both ends derive them alike.

    >>> stripes(3 << 20, 2)
    [(0, 1572864), (1572864, 1572864)]
    """
    most = length // STRIPE_BYTES
    count = 1 if most < 2 else min(most, num_streams)
    if count == 1:
        return [(0, length)]
    each = -(-(length // count) // PAGE) * PAGE
    edges = [min(length, each * number) for number in range(count)] + [length]
    return [(low, high - low) for low, high in pairwise(edges)]


class Stream:
    """A socket, and the ranges that are queued for it, each with the number of its message.

    Where it is sealed, ranges are cut into records. `_sealed` is the one that was sealed last, whose rest is first in
    the queue. `_incoming` is the beginning of one that comes.
    """

    def __init__(self, given: StreamSpec) -> None:
        self.socket = socket.socket(fileno=os.dup(given[0] if isinstance(given, tuple) else given))
        self.queue: deque[tuple[memoryview, int]] = deque()
        self._seals: RecordCipher | None = None
        self._opens: RecordCipher | None = None
        if isinstance(given, tuple):
            rekey_records = given[4] if len(given) == 5 else REKEY_RECORDS
            self._seals = RecordCipher(given[1], given[2], rekey_records)
            self._opens = RecordCipher(given[1], given[3], rekey_records)
        self._sealed, self._incoming = b"", bytearray()

    def write(self) -> None:
        """Write as much as the socket takes."""
        while self.queue:
            part, number = self.queue[0]
            if self._seals is not None and part.obj is not self._sealed:
                rest = part[RECORD_BYTES:]
                self._sealed = self._seals.seal(part[:RECORD_BYTES])
                if len(rest):
                    self.queue[0] = (rest, number)
                else:
                    self.queue.popleft()
                part = memoryview(self._sealed)
                self.queue.appendleft((part, number))
            try:
                sent = self.socket.send(part, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return
            if sent < len(part):
                self.queue[0] = (part[sent:], number)
            else:
                self.queue.popleft()

    def read(self, into: memoryview) -> int:
        """Read what is there, of a range of which this is the rest; 0 at the end. AlteredError if it does not open."""
        if self._opens is None:
            return self.socket.recv_into(into, 0, socket.MSG_DONTWAIT)
        part = min(len(into), RECORD_BYTES)
        missing = part + TAG_BYTES - len(self._incoming)
        data = self.socket.recv(missing, socket.MSG_DONTWAIT)
        if not data:
            return 0
        self._incoming += data
        if len(data) < missing:
            raise BlockingIOError
        into[:part] = self._opens.open(self._incoming)
        self._incoming = bytearray()
        return part


class PeerSockets:
    """The streams to a peer on another host."""

    def __init__(self, streams: tuple[StreamSpec, ...]) -> None:
        self.streams = [Stream(stream) for stream in streams]

    def queue_range(self, frame: Frame, data: npt.NDArray[np.uint8]) -> None:
        """Queue a range of bytes, which is not copied; a long one in stripes. `frame` is for the whole range."""
        for stream, (at, length) in zip(self.streams, stripes(len(data), len(self.streams)), strict=False):
            stream.queue.append((memoryview(frame._replace(length=length).pack()), frame.number))
            if length:
                stream.queue.append((data[at : at + length].data, frame.number))

    def has_queued(self, number: int | None = None) -> bool:
        """Whether anything is queued: from messages up to a number, or from any message."""
        return any(stream.queue and (number is None or stream.queue[0][1] <= number) for stream in self.streams)

    def write(self) -> None:
        """Write as much as the sockets take."""
        for stream in self.streams:
            stream.write()

    def clear(self) -> None:
        """Drop what is queued."""
        for stream in self.streams:
            stream.queue.clear()

    def close(self) -> None:
        """Close these copies of the descriptors."""
        for stream in self.streams:
            stream.socket.close()
