"""Connect to a server and shake hands, with a deadline."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from choreo.run.transport.addresses import Target
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.frames import FrameReader, FrameWriter
from choreo.run.transport.handshake import HELLO_BYTES, MAGIC, REPLY_BYTES, ClientHandshake, RecordKeys

__all__ = ["AuthenticatedSocket", "dial"]


@dataclass(slots=True, eq=False)
class AuthenticatedSocket:
    """A socket on which both sides have proved themselves, and the frames of each direction."""

    socket: socket.socket
    reader: FrameReader
    writer: FrameWriter
    record_keys: RecordKeys = field(default=RecordKeys(b"", b""), repr=False)  # for what follows its frames


def dial(target: Target, secret: bytes, deadline: Deadline) -> AuthenticatedSocket:
    """Connect, and prove to each other that both sides hold the secret; an OSError or RendezvousError if that fails."""
    sock = socket.socket(target.family, socket.SOCK_STREAM)
    try:
        sock.settimeout(max(deadline.left_s, 1e-3))
        sock.connect(target.address)
        _refuse_self_connection(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        handshake = ClientHandshake(secret)
        handshake.check_magic(_receive_exactly(sock, len(MAGIC), deadline))
        sock.sendall(handshake.answer(_receive_exactly(sock, HELLO_BYTES, deadline)))
        reader, writer = handshake.accept(_receive_exactly(sock, REPLY_BYTES, deadline))
        return AuthenticatedSocket(sock, reader, writer, handshake.record_keys)
    except BaseException:
        sock.close()
        raise


def _refuse_self_connection(sock: socket.socket) -> None:
    """Where nobody listens, the system may give a socket the very port that it connects to."""
    if sock.getsockname() == sock.getpeername():
        raise ConnectionRefusedError("nobody listens there")


def _receive_exactly(sock: socket.socket, size_bytes: int, deadline: Deadline) -> bytes:
    data = b""
    while len(data) < size_bytes:
        sock.settimeout(max(deadline.left_s, 1e-3))
        more = sock.recv(size_bytes - len(data))
        if not more:
            raise ConnectionResetError("it hung up during the handshake")
        data += more
    return data
