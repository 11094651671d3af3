"""Messages between a sweep and its workers: a length, and a pickle. Both ends are processes of one sweep."""

from __future__ import annotations

import pickle
import socket
import struct

__all__ = ["receive", "send"]


def send(connection: socket.socket, message: object) -> None:
    """Send one message."""
    content = pickle.dumps(message)
    connection.sendall(struct.pack("!I", len(content)) + content)


def receive(connection: socket.socket) -> object:
    """Receive one message; EOFError if the other end is closed."""
    (length,) = struct.unpack("!I", _exactly(connection, 4))
    return pickle.loads(_exactly(connection, length))


def _exactly(connection: socket.socket, count: int) -> bytes:
    content = bytearray()
    while len(content) < count:
        part = connection.recv(count - len(content))
        if not part:
            raise EOFError
        content += part
    return bytes(content)
