"""The handshake of two ranks on different machines (`meeting.handshake`), for sockets on which nobody waits.

Both sides are given the bytes that came, at most as many as they need, and return those to be sent. In the end each
knows that the other holds the key, and the one that was called knows, sealed, which rank calls.
"""

from __future__ import annotations

import struct

from choreo.run.transport.frames import OVERHEAD_BYTES, FrameReader, Kind
from choreo.run.transport.handshake import MAGIC, NONCE_BYTES, VERDICT_BYTES, Doorkeeper, Visitor

__all__ = ["Caller", "Host"]

_WHO = struct.Struct(">I")


class Caller:
    """The side that connects; a MeetingError if the other does not hold the key."""

    def __init__(self, key: bytes, rank: int) -> None:
        self._visitor, self._rank = Visitor(key), rank
        self._stages = [len(MAGIC), NONCE_BYTES, VERDICT_BYTES]
        self._have = b""

    @property
    def over(self) -> bool:
        """Whether both sides have proved themselves."""
        return not self._stages

    @property
    def needs_bytes(self) -> int:
        """How many bytes may be read."""
        return self._stages[0] - len(self._have)

    def feed(self, data: bytes) -> bytes:
        """What is to be sent now."""
        self._have += data
        if self.needs_bytes:
            return b""
        told, self._have = self._have, b""
        del self._stages[0]
        if len(self._stages) == 2:
            self._visitor.recognise(told)
            return b""
        if self._stages:
            return self._visitor.answer(told)
        _, writer = self._visitor.accept(told)
        return writer.seal(Kind.JOIN, _WHO.pack(self._rank))


class Host:
    """The side that listens; a MeetingError if the other does not hold the key."""

    def __init__(self, key: bytes) -> None:
        self._door = Doorkeeper(key)
        self.greeting = self._door.greeting
        self._reader: FrameReader | None = None
        self._left = OVERHEAD_BYTES + _WHO.size
        self.rank = -1  # who calls, in the end

    @property
    def over(self) -> bool:
        """Whether both sides have proved themselves, and it is known who calls."""
        return self._left == 0

    @property
    def needs_bytes(self) -> int:
        """How many bytes may be read."""
        return self._door.needs_bytes if self._reader is None else self._left

    def feed(self, data: bytes) -> bytes:
        """What is to be sent now."""
        if self._reader is None:
            accepted = self._door.feed(data)
            if accepted is None:
                return b""
            verdict, self._reader, _ = accepted
            return verdict
        self._left -= len(data)
        for frame in self._reader.feed(data):
            if frame.kind == Kind.JOIN and len(frame.payload) == _WHO.size:
                (self.rank,) = _WHO.unpack(frame.payload)
        return b""
