"""Frames between two authenticated processes, each with a bounded length and a seal.

A frame is the length of its payload (4 bytes, big-endian), its kind (1 byte), and the payload. Where both processes
have a cipher, header and payload are encrypted records (`records`), so that not even the kind can be read. Elsewhere 16
bytes of HMAC-SHA256 over the frame's number and all of the above follow it. Either is under the key of this connection
and direction. So no frame can be forged, changed, repeated, dropped or reordered unnoticed. The length is checked
before memory is allocated for the payload, and that memory grows only with what has arrived.
"""

from __future__ import annotations

import enum
import hmac
import struct
from typing import NamedTuple

from choreo.run.transport.errors import FrameError
from choreo.run.transport.limits import MAX_FRAME_BYTES
from choreo.run.transport.records import TAG_BYTES, AlteredError, RecordCipher

__all__ = ["FrameKind", "FrameReader", "FrameWriter", "SealedFrame"]

SEAL_BYTES = 16
_HEADER = struct.Struct(">IB")
_NUMBER = struct.Struct(">Q")


class FrameKind(enum.IntEnum):
    """The kinds of frames."""

    JOIN = 1  # a rank registers with rank 0
    WELCOME = 2  # rank 0 sends the list of members
    BLOB = 3  # one rank's blob of an exchange
    ALL = 4  # the blobs of all ranks
    ABORT = 5  # rank 0 ends the rendezvous, and says why
    LEAVE = 6  # a side leaves, and says why
    REQUEST_ADMISSION = 7  # a process asks to join a running job
    GOODBYE = 8  # on a control connection: a rank's executor has given up, or left
    PROGRESS = 9  # on a control connection: how far a rank has come


class SealedFrame(NamedTuple):
    """A kind and its payload."""

    kind: FrameKind
    payload: bytes


class FrameWriter:
    """Seals one direction of a connection; encrypts it if there is a cipher."""

    def __init__(self, key: bytes, cipher: str = "") -> None:
        self._key = key
        self._number = 0
        self._cipher = RecordCipher(cipher, key) if cipher else None

    def seal(self, kind: FrameKind, payload: bytes) -> bytes:
        """The bytes of the next frame."""
        assert len(payload) <= MAX_FRAME_BYTES, "the caller bounds its payload"
        header = _HEADER.pack(len(payload), kind)
        if self._cipher is not None:
            return self._cipher.seal(header) + (self._cipher.seal(payload) if payload else b"")
        sealed = b"".join((header, payload, _seal(self._key, self._number, header, payload)))
        self._number += 1
        return sealed


class FrameReader:
    """Parses one direction of a connection, in whatever pieces it arrives."""

    def __init__(self, key: bytes, limit_bytes: int = MAX_FRAME_BYTES, cipher: str = "") -> None:
        self.limit_bytes = limit_bytes  # of a payload, at this point of the protocol
        self._key = key
        self._number = 0
        self._cipher = RecordCipher(cipher, key) if cipher else None
        self._header: tuple[int, FrameKind] | None = None  # of an encrypted frame whose payload is still to come
        self._buffer = bytearray()
        self._broken: FrameError | None = None

    def frame_bytes(self, payload_bytes: int) -> int:
        """The length on the wire of a frame with a payload of this many bytes (at least one)."""
        return _HEADER.size + payload_bytes + (SEAL_BYTES if self._cipher is None else 2 * TAG_BYTES)

    def feed(self, data: bytes) -> list[SealedFrame]:
        """The frames that these bytes complete; after a FrameError the connection must be closed."""
        if self._broken is not None:
            raise self._broken
        self._buffer += data
        found = []
        try:
            next_frame = self._next if self._cipher is None else self._next_encrypted
            while (frame := next_frame()) is not None:
                found.append(frame)
        except FrameError as error:
            self._broken = error
            self._buffer.clear()
            raise
        return found

    def _next(self) -> SealedFrame | None:
        if len(self._buffer) < _HEADER.size:
            return None
        length, kind = self._parse_header(bytes(self._buffer[: _HEADER.size]))
        end = _HEADER.size + length
        if len(self._buffer) < end + SEAL_BYTES:
            return None
        with memoryview(self._buffer) as view:
            header, payload = bytes(view[: _HEADER.size]), bytes(view[_HEADER.size : end])
            sealed = bytes(view[end : end + SEAL_BYTES])
        if not hmac.compare_digest(sealed, _seal(self._key, self._number, header, payload)):
            raise self._unsealed()
        del self._buffer[: end + SEAL_BYTES]
        self._number += 1
        return SealedFrame(kind, payload)

    def _next_encrypted(self) -> SealedFrame | None:
        if self._header is None:
            header = self._open(_HEADER.size)
            if header is None:
                return None
            self._header = self._parse_header(header)
        length, kind = self._header
        payload = self._open(length) if length else b""
        if payload is None:
            return None
        self._header = None
        self._number += 1
        return SealedFrame(kind, payload)

    def _open(self, length: int) -> bytes | None:
        """Open the next record, which has this many bytes; None if not all of it has arrived."""
        end = length + TAG_BYTES
        if len(self._buffer) < end:
            return None
        assert self._cipher is not None
        try:
            opened = self._cipher.open(bytes(self._buffer[:end]))
        except AlteredError:
            raise self._unsealed() from None
        del self._buffer[:end]
        return opened

    def _parse_header(self, header: bytes) -> tuple[int, FrameKind]:
        length, number = _HEADER.unpack(header)
        if length > self.limit_bytes:
            raise FrameError(f"a frame of {length} bytes was announced; at most {self.limit_bytes} are allowed")
        if number not in FrameKind.__members__.values():
            raise FrameError(f"a frame of unknown kind {number} came")
        return length, FrameKind(number)

    def _unsealed(self) -> FrameError:
        return FrameError(f"frame {self._number} does not carry the seal of this job")


def _seal(key: bytes, number: int, header: bytes, payload: bytes) -> bytes:
    seal = hmac.new(key, _NUMBER.pack(number) + header, "sha256")
    seal.update(payload)
    return seal.digest()[:SEAL_BYTES]
