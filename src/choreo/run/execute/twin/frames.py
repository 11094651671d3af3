"""What the twin says through sockets: frames, in the layout of `_sockets.h`, and those that are still to be written."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["FRAME", "FRAME_BYTES", "GOODBYE", "MAX_STREAMS", "NOTE", "SEALED", "Frame", "Outbox", "Stream", "parts"]

FRAME = int.from_bytes(b"FRAM", "little")
# On the control connection. `number` is why its sender goes, `signature` whom it blames.
GOODBYE = int.from_bytes(b"BYE!", "little")
# `call` has been reduced (number 0), or returned from (1).
NOTE = int.from_bytes(b"NOTE", "little")
# A sealed frame of `length` bytes follows.
SEALED = int.from_bytes(b"SEAL", "little")
_LAYOUT = struct.Struct("<IIQQQ")
FRAME_BYTES = _LAYOUT.size
MAX_STREAMS, STRIPE, PAGE = 8, 512 << 10, 4096


class Frame(NamedTuple):
    """What stands before each range of bytes."""

    magic: int
    number: int
    call: int
    signature: int
    length: int

    def pack(self) -> bytes:
        """As it goes over the wire."""
        return _LAYOUT.pack(*self)

    @classmethod
    def unpack(cls, head: bytes | bytearray) -> Frame:
        """From the wire."""
        return cls(*_LAYOUT.unpack(head))


def parts(length: int, num_streams: int) -> list[tuple[int, int]]:
    """How a range is cut up for the streams: where each part begins, and its length. Both ends derive it alike."""
    most = length // STRIPE
    count = 1 if most < 2 else min(most, num_streams)
    if count == 1:
        return [(0, length)]
    each = -(-(length // count) // PAGE) * PAGE
    edges = [min(length, each * number) for number in range(count)] + [length]
    return [(low, high - low) for low, high in pairwise(edges)]


class Stream:
    """A socket, and what is queued for it: ranges, each with the number of the message that it belongs to."""

    def __init__(self, descriptor: int) -> None:
        self.socket = socket.socket(fileno=os.dup(descriptor))
        self.queue: deque[tuple[memoryview, int]] = deque()

    def write(self) -> None:
        """As much as the socket takes."""
        while self.queue:
            part, number = self.queue[0]
            try:
                sent = self.socket.send(part, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return
            if sent < len(part):
                self.queue[0] = (part[sent:], number)
            else:
                self.queue.popleft()


class Outbox:
    """The streams to a peer elsewhere, and the control connection, on which it says what is not data."""

    def __init__(self, control: int, descriptors: tuple[int, ...]) -> None:
        self.control = None if control < 0 else socket.socket(fileno=os.dup(control))
        self.streams = [Stream(one) for one in descriptors]
        self.noted = [0, 0]

    def queue_range(self, frame: Frame, data: npt.NDArray[np.uint8]) -> None:
        """Queue a range of bytes, which stay where they are; a long one in parts. `frame` is that of the whole."""
        for stream, (at, length) in zip(self.streams, parts(len(data), len(self.streams)), strict=False):
            stream.queue.append((memoryview(frame._replace(length=length).pack()), frame.number))
            if length:
                stream.queue.append((data[at : at + length].data, frame.number))

    def has_queued(self, number: int | None = None) -> bool:
        """Whether something waits to be written: of the messages up to a number, or of any."""
        return any(one.queue and (number is None or one.queue[0][1] <= number) for one in self.streams)

    def write(self) -> None:
        """As much as the sockets take."""
        for stream in self.streams:
            stream.write()

    def look(self) -> Frame | None:
        """What the peer says next that is not a note; it stays there. OSError or EOFError if it is gone."""
        while self.control is not None:
            try:
                head = self.control.recv(FRAME_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return None
            if not head:
                raise EOFError
            if len(head) < FRAME_BYTES:
                return None
            frame = Frame.unpack(head)
            if frame.magic != NOTE:
                return frame
            self.control.recv(FRAME_BYTES, socket.MSG_DONTWAIT)
            self.noted[frame.number & 1] = frame.call
        return None

    def say_goodbye(self, frame: Frame) -> None:
        """The last that is said."""
        for stream in self.streams:
            stream.queue.clear()
        if self.control is not None:
            with contextlib.suppress(OSError):
                self.control.send(frame.pack(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def sockets(self) -> Iterator[socket.socket]:
        """All that there are."""
        if self.control is not None:
            yield self.control
        yield from (stream.socket for stream in self.streams)

    def close(self) -> None:
        """Let go of this end's copies of the descriptors."""
        for one in self.sockets():
            one.close()
