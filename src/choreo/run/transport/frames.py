"""What two processes that know each other say: frames with a length that is bounded and a seal that is checked.

A frame is the length of its payload (4 bytes, big-endian), its kind (1 byte), the payload, and a seal: 16 bytes of
HMAC-SHA256, under the key of this connection and direction, over the frame's number and all of the above. So nothing
can be forged, changed, repeated, left out or reordered unnoticed. The length is checked before there is memory for
the payload, and that memory grows only with what has arrived.
"""

from __future__ import annotations

import enum
import hmac
import struct
from typing import NamedTuple

from choreo.run.transport.errors import FrameError
from choreo.run.transport.limits import MAX_FRAME_BYTES

__all__ = ["OVERHEAD_BYTES", "Frame", "FrameReader", "FrameWriter", "Kind"]

SEAL_BYTES = 16
_HEADER = struct.Struct(">IB")
_NUMBER = struct.Struct(">Q")
OVERHEAD_BYTES = _HEADER.size + SEAL_BYTES


class Kind(enum.IntEnum):
    """What a frame is about."""

    JOIN = 1  # a rank says who it is
    WELCOME = 2  # rank 0 says who all the others are
    BLOB = 3  # a rank's share of an exchange
    ALL = 4  # everybody's shares
    VERDICT = 5  # rank 0 says why the meeting is over
    LEAVE = 6  # a side says that it goes, and why
    NEWCOMER = 7  # somebody asks to be let into a job that runs


class Frame(NamedTuple):
    """One thing said."""

    kind: Kind
    payload: bytes


class FrameWriter:
    """Seals one direction of a connection."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def seal(self, kind: Kind, payload: bytes) -> bytes:
        """The bytes of the next frame."""
        assert len(payload) <= MAX_FRAME_BYTES, "whoever makes a payload keeps it in bounds"
        header = _HEADER.pack(len(payload), kind)
        sealed = b"".join((header, payload, _seal(self._key, self._number, header, payload)))
        self._number += 1
        return sealed


class FrameReader:
    """Takes one direction of a connection apart, in whatever pieces it arrives."""

    def __init__(self, key: bytes, limit_bytes: int = MAX_FRAME_BYTES) -> None:
        self.limit_bytes = limit_bytes  # of a payload, at this point of the conversation
        self._key = key
        self._number = 0
        self._buffer = bytearray()
        self._broken: FrameError | None = None

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete with these bytes; after a FrameError the connection is of no more use."""
        if self._broken is not None:
            raise self._broken
        self._buffer += data
        found = []
        try:
            while (frame := self._next()) is not None:
                found.append(frame)
        except FrameError as error:
            self._broken = error
            self._buffer.clear()
            raise
        return found

    def _next(self) -> Frame | None:
        if len(self._buffer) < _HEADER.size:
            return None
        length, number = _HEADER.unpack_from(self._buffer)
        if length > self.limit_bytes:
            raise FrameError(f"a frame of {length} bytes was announced, where at most {self.limit_bytes} may come")
        if number not in Kind.__members__.values():
            raise FrameError(f"a frame of kind {number} came, which there is not")
        end = _HEADER.size + length
        if len(self._buffer) < end + SEAL_BYTES:
            return None
        with memoryview(self._buffer) as view:
            header, payload = bytes(view[: _HEADER.size]), bytes(view[_HEADER.size : end])
            sealed = bytes(view[end : end + SEAL_BYTES])
        if not hmac.compare_digest(sealed, _seal(self._key, self._number, header, payload)):
            raise FrameError(f"frame {self._number} does not carry the seal of this job")
        del self._buffer[: end + SEAL_BYTES]
        self._number += 1
        return Frame(Kind(number), payload)


def _seal(key: bytes, number: int, header: bytes, payload: bytes) -> bytes:
    seal = hmac.new(key, _NUMBER.pack(number) + header, "sha256")
    seal.update(payload)
    return seal.digest()[:SEAL_BYTES]
