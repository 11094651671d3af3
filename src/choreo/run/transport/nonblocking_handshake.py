"""The handshake for nonblocking sockets, after which the server also knows which rank has connected.

Each side takes the bytes that came, at most as many as it needs, and returns the bytes to send.
"""

from __future__ import annotations

import struct

from choreo.run.transport.frames import FrameKind, FrameReader
from choreo.run.transport.handshake import (
    HELLO_BYTES,
    MAGIC,
    REPLY_BYTES,
    ClientHandshake,
    RecordKeys,
    ServerHandshake,
)

__all__ = ["NonblockingClient", "NonblockingServer"]

_RANK = struct.Struct(">I")


class NonblockingClient:
    """The side that connects; raises RendezvousError if the server does not hold the key."""

    def __init__(self, key: bytes, rank: int) -> None:
        self._handshake, self._rank = ClientHandshake(key), rank
        self._stages = [len(MAGIC), HELLO_BYTES, REPLY_BYTES]
        self._received = b""

    @property
    def done(self) -> bool:
        """Whether both sides have proved themselves."""
        return not self._stages

    @property
    def record_keys(self) -> RecordKeys:
        """The keys of what follows, once it is done."""
        return self._handshake.record_keys

    @property
    def needs_bytes(self) -> int:
        """The number of bytes that may be read."""
        return self._stages[0] - len(self._received)

    def feed(self, data: bytes) -> bytes:
        """The bytes to send now."""
        self._received += data
        if self.needs_bytes:
            return b""
        stage, self._received = self._received, b""
        del self._stages[0]
        if len(self._stages) == 2:
            self._handshake.check_magic(stage)
            return b""
        if self._stages:
            return self._handshake.answer(stage)
        _, writer = self._handshake.accept(stage)
        return writer.seal(FrameKind.JOIN, _RANK.pack(self._rank))


class NonblockingServer:
    """The side that listens; raises RendezvousError if the client does not hold the key."""

    def __init__(self, key: bytes) -> None:
        self._handshake = ServerHandshake(key)
        self.challenge = self._handshake.challenge
        self._reader: FrameReader | None = None
        self._left = -1  # of the frame that says which rank the client is
        self.rank = -1  # of the client, once it is done

    @property
    def proved(self) -> bool:
        """Whether the client has proved that it holds the key."""
        return self._reader is not None

    @property
    def done(self) -> bool:
        """Whether both sides have proved themselves, and the client has said which rank it is."""
        return self._left == 0

    @property
    def record_keys(self) -> RecordKeys:
        """The keys of what follows, once it is done."""
        return self._handshake.record_keys

    @property
    def needs_bytes(self) -> int:
        """The number of bytes that may be read."""
        return self._handshake.needs_bytes if self._reader is None else self._left

    def feed(self, data: bytes) -> bytes:
        """The bytes to send now."""
        if self._reader is None:
            accepted = self._handshake.feed(data)
            if accepted is None:
                return b""
            reply, self._reader, _ = accepted
            self._left = self._reader.frame_bytes(_RANK.size)
            return reply
        self._left -= len(data)
        for frame in self._reader.feed(data):
            if frame.kind == FrameKind.JOIN and len(frame.payload) == _RANK.size:
                (self.rank,) = _RANK.unpack(frame.payload)
        return b""
