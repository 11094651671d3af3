"""Sockets to ranks of other hosts, as the Python executor uses them; frames are those of `layout`."""

from __future__ import annotations

import contextlib
import os
import socket
from collections import deque
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from choreo.run.execute.layout import FRAME_BYTES, PAGE, PROGRESS, STRIPE_BYTES, Frame

__all__ = ["PeerSockets", "Stream", "stripes"]


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
    """A socket, and the ranges that are queued for it, each with the number of its message."""

    def __init__(self, descriptor: int) -> None:
        self.socket = socket.socket(fileno=os.dup(descriptor))
        self.queue: deque[tuple[memoryview, int]] = deque()

    def write(self) -> None:
        """Write as much as the socket takes."""
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


class PeerSockets:
    """The streams to a peer on another host, and the control connection beside them."""

    def __init__(self, control: int, descriptors: tuple[int, ...]) -> None:
        self.control = None if control < 0 else socket.socket(fileno=os.dup(control))
        self.streams = [Stream(one) for one in descriptors]
        self.progress = [0, 0]

    def queue_range(self, frame: Frame, data: npt.NDArray[np.uint8]) -> None:
        """Queue a range of bytes, which is not copied; a long one in stripes. `frame` is for the whole range."""
        for stream, (at, length) in zip(self.streams, stripes(len(data), len(self.streams)), strict=False):
            stream.queue.append((memoryview(frame._replace(length=length).pack()), frame.number))
            if length:
                stream.queue.append((data[at : at + length].data, frame.number))

    def has_queued(self, number: int | None = None) -> bool:
        """Whether anything is queued: from messages up to a number, or from any message."""
        return any(one.queue and (number is None or one.queue[0][1] <= number) for one in self.streams)

    def write(self) -> None:
        """Write as much as the sockets take."""
        for stream in self.streams:
            stream.write()

    def peek_control(self) -> Frame | None:
        """The next frame on the control connection, without consuming it. PROGRESS frames are consumed and recorded.

        OSError or EOFError if the peer is gone.
        """
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
            if frame.magic != PROGRESS:
                return frame
            self.control.recv(FRAME_BYTES, socket.MSG_DONTWAIT)
            self.progress[frame.number & 1] = frame.call
        return None

    def say_goodbye(self, frame: Frame) -> None:
        """Drop what is queued, and say goodbye."""
        for stream in self.streams:
            stream.queue.clear()
        if self.control is not None:
            with contextlib.suppress(OSError):
                self.control.send(frame.pack(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def _all(self) -> Iterator[socket.socket]:
        """The streams and the control connection."""
        if self.control is not None:
            yield self.control
        yield from (stream.socket for stream in self.streams)

    def close(self) -> None:
        """Close these copies of the descriptors."""
        for one in self._all():
            one.close()
