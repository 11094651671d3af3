"""The bytes of a message connection between hosts.

A connection carries messages one way. It begins with a handshake. Then each message is a header and its data.
"""

from __future__ import annotations

import socket
import struct
import zlib

__all__ = ["HEADER", "family_of", "pack_header", "parse_header"]

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


def family_of(host: str) -> socket.AddressFamily:
    """The socket family for a host's address."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET
