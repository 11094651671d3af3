"""The bytes of a message connection between hosts.

A connection carries messages one way. It begins with a handshake. Then each message is a header and its data. On a
sealed network both are cut into records (`transport/records.py`).
"""

from __future__ import annotations

import socket
import struct
import zlib
from collections import deque

from choreo.run.transport.handshake import RecordKeys
from choreo.run.transport.records import RECORD_BYTES, TAG_BYTES, RecordCipher

__all__ = [
    "ALTERED",
    "HEADER",
    "MessageBytes",
    "SealedBytes",
    "family_of",
    "message_bytes",
    "pack_header",
    "parse_header",
]

ALTERED = "sent what arrived altered: something between the hosts changed, dropped, repeated or moved bytes of it"

HEADER = struct.Struct("<4sIqQI")  # magic, element type, tag, bytes, and a checksum of these
MESSAGE_MAGIC = b"MESG"


def pack_header(dtype: int, tag: int, length: int) -> bytes:
    """The header of a message."""
    plain = struct.pack("<4sIqQ", MESSAGE_MAGIC, dtype, tag, length)
    return plain + struct.pack("<I", zlib.crc32(plain))


def parse_header(head: bytes) -> tuple[int, int, int]:
    """The element type, tag and length in a header; ValueError if these bytes are not a header."""
    magic, dtype, tag, length, checksum = HEADER.unpack(head)
    if magic != MESSAGE_MAGIC or zlib.crc32(head[:-4]) != checksum:
        raise ValueError("not a message")
    return dtype, tag, length


class MessageBytes:
    """The messages of a connection as plain bytes, after the handshake. No method waits: BlockingIOError instead."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def read(self, length: int) -> bytes:
        """Some of the rest of a range, which is this long; empty at the end of the connection."""
        return self._socket.recv(length)

    def read_into(self, rest: memoryview) -> int:
        """Read some of the rest of a range to where it belongs; 0 at the end of the connection."""
        return self._socket.recv_into(rest)

    def write(self, ranges: deque[memoryview]) -> None:
        """Write these ranges; what is written is taken out of them."""
        while ranges:
            sent = self._socket.sendmsg(list(ranges), [], socket.MSG_NOSIGNAL)
            while ranges and sent >= len(ranges[0]):
                sent -= len(ranges.popleft())
            if ranges:
                ranges[0] = ranges[0][sent:]


class SealedBytes(MessageBytes):
    """The same as sealed records. Only whole records are read; AlteredError if one does not open."""

    def __init__(self, sock: socket.socket, cipher: str, keys: RecordKeys) -> None:
        super().__init__(sock)
        self._seals, self._opens = RecordCipher(cipher, keys.sends), RecordCipher(cipher, keys.receives)
        self._incoming, self._outgoing = bytearray(), memoryview(b"")

    def read(self, length: int) -> bytes:
        """The next record of a range, of which this much is left."""
        wanted = min(length, RECORD_BYTES) + TAG_BYTES
        while len(self._incoming) < wanted:
            data = self._socket.recv(wanted - len(self._incoming))
            if not data:
                return b""
            self._incoming += data
        record, self._incoming = self._incoming, bytearray()
        return self._opens.open(record)

    def read_into(self, rest: memoryview) -> int:
        """Put the next record of a range to where it belongs."""
        data = self.read(len(rest))
        rest[: len(data)] = data
        return len(data)

    def write(self, ranges: deque[memoryview]) -> None:
        """Seal and write these ranges; what is sealed is taken out of them, and written before anything else."""
        while ranges or len(self._outgoing):
            if not len(self._outgoing):
                sealed = bytearray()
                while ranges and len(sealed) < RECORD_BYTES:
                    sealed += self._seals.seal(ranges[0][:RECORD_BYTES])
                    ranges[0] = ranges[0][RECORD_BYTES:]
                    if not len(ranges[0]):
                        ranges.popleft()
                self._outgoing = memoryview(sealed)
            self._outgoing = self._outgoing[self._socket.send(self._outgoing, socket.MSG_NOSIGNAL) :]


def message_bytes(sock: socket.socket, cipher: str, keys: RecordKeys) -> MessageBytes:
    """The messages of a connection after the handshake: sealed, unless there is no cipher."""
    return SealedBytes(sock, cipher, keys) if cipher else MessageBytes(sock)


def family_of(host: str) -> socket.AddressFamily:
    """The socket family for a host's address."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET
