"""The bytes of a message connection, and how a process on the same host is identified.

A connection carries messages one way. It begins with a hello, or between hosts with a handshake. Then each message is a
header and its data.
"""

from __future__ import annotations

import os
import socket
import struct
import zlib
from typing import TypeAlias

from choreo.run.transport.peer_info import PeerInfo

__all__ = ["HEADER", "HELLO", "Address", "check_process", "family_of", "pack_header", "parse_header", "parse_hello"]

Address: TypeAlias = str | tuple[str, int]  # an abstract Unix socket on this host, or a host and port
HELLO = struct.Struct("<8sI")  # magic, and the rank of the client
HEADER = struct.Struct("<4sIqQI")  # magic, element type, tag, bytes, and a checksum of these
HELLO_MAGIC, MESSAGE_MAGIC = b"ChoreoP2", b"MESG"
_CREDENTIALS = struct.Struct("3i")  # pid, user, group


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


def parse_hello(head: bytes, world_size: int) -> int:
    """The rank in a hello; ValueError if these bytes are not a hello."""
    magic, peer = HELLO.unpack(head)
    if magic != HELLO_MAGIC or peer >= world_size:
        raise ValueError("not a rank of this communicator")
    return int(peer)


def check_process(sock: socket.socket, peer: PeerInfo) -> None:
    """Raise OSError unless the process at the other end of a Unix socket is this rank's."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(credentials)
    if pid != peer.pid or user != os.geteuid():
        raise PermissionError(f"process {pid} of user {user} is not rank {peer.rank}")


def family_of(host: str | None) -> socket.AddressFamily:
    """The socket family for a host's address, or for this host if it is None."""
    if host is None:
        return socket.AF_UNIX
    return socket.AF_INET6 if ":" in host else socket.AF_INET
