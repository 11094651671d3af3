"""What the twin says through a socket: frames, in the layout of `_core.c`, and those that are still to be written."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections import deque
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["FRAME", "FRAME_BYTES", "GOODBYE", "Frame", "Outbox"]

FRAME = int.from_bytes(b"FRAM", "little")
# `number` is why its sender goes, `signature` whom it blames.
GOODBYE = int.from_bytes(b"BYE!", "little")
_LAYOUT = struct.Struct("<IIQQQ")
FRAME_BYTES = _LAYOUT.size


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


class Outbox:
    """A socket, and what is queued for it: ranges, each with the number of the message that it ends, or 0."""

    def __init__(self, descriptor: int) -> None:
        self.socket = socket.socket(fileno=os.dup(descriptor))
        self.queue: deque[tuple[memoryview, int]] = deque()
        self.messages_written = 0

    def queue_frame(self, frame: Frame, data: npt.NDArray[np.uint8], number: int) -> None:
        """Queue a range of bytes, which stay where they are."""
        self.queue.append((memoryview(frame.pack()), 0))
        self.queue.append((data.data if len(data) else memoryview(b""), number))

    def write(self) -> None:
        """As much as the socket takes."""
        while self.queue:
            part, number = self.queue[0]
            if len(part):
                try:
                    sent = self.socket.send(part, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                except (BlockingIOError, InterruptedError):
                    return
                part = part[sent:]
            if len(part):
                self.queue[0] = (part, number)
            else:
                self.queue.popleft()
                self.messages_written = number or self.messages_written

    def say_goodbye(self, frame: Frame) -> None:
        """The last that is written."""
        with contextlib.suppress(OSError):
            if not self.queue:
                self.socket.send(frame.pack(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        self.queue.clear()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Let go of this end's copy of the descriptor."""
        self.socket.close()
