"""One sealed connection from a rank to rank 0, where every wait ends."""

from __future__ import annotations

import socket

from choreo.run.transport.addresses import Target
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.frames import Frame, FrameReader, FrameWriter, Kind
from choreo.run.transport.handshake import MAGIC, NONCE_BYTES, VERDICT_BYTES, Visitor

__all__ = ["Connection", "knock"]

_PIECE_BYTES = 1 << 16


class Connection:
    """A socket on which both sides have proved themselves."""

    def __init__(self, sock: socket.socket, reader: FrameReader, writer: FrameWriter) -> None:
        self._socket = sock
        self._reader = reader
        self._writer = writer
        self._frames: list[Frame] = []

    @property
    def own_address(self) -> str:
        """The address of this machine that the connection uses."""
        return str(self._socket.getsockname()[0])

    def send(self, kind: Kind, payload: bytes, deadline: Deadline) -> None:
        """Say something; an OSError where it cannot be said in time or at all."""
        self._socket.settimeout(max(deadline.left_s, 1e-3))
        self._socket.sendall(self._writer.seal(kind, payload))

    def receive(self, deadline: Deadline) -> Frame:
        """What is said next; TimeoutError if that is nothing, EOFError if it never will be anything."""
        while not self._frames:
            self._socket.settimeout(max(deadline.left_s, 1e-3))
            try:
                data = self._socket.recv(_PIECE_BYTES)
            except TimeoutError:
                raise
            except OSError:
                data = b""
            if not data:
                raise EOFError
            self._frames.extend(self._reader.feed(data))
        return self._frames.pop(0)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def knock(target: Target, secret: bytes, deadline: Deadline) -> Connection:
    """A connection to rank 0, once each side has proved to the other that it holds the secret."""
    sock = socket.socket(target.family, socket.SOCK_STREAM)
    try:
        sock.settimeout(max(deadline.left_s, 1e-3))
        sock.connect(target.address)
        _refuse_oneself(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        visitor = Visitor(secret)
        visitor.recognise(_exactly(sock, len(MAGIC), deadline))
        sock.sendall(visitor.answer(_exactly(sock, NONCE_BYTES, deadline)))
        reader, writer = visitor.accept(_exactly(sock, VERDICT_BYTES, deadline))
        return Connection(sock, reader, writer)
    except BaseException:
        sock.close()
        raise


def _refuse_oneself(sock: socket.socket) -> None:
    """Where nobody listens the system may happen to give a socket the very port that it looks for."""
    if sock.getsockname() == sock.getpeername():
        raise ConnectionRefusedError("nobody listens there")


def _exactly(sock: socket.socket, size_bytes: int, deadline: Deadline) -> bytes:
    data = b""
    while len(data) < size_bytes:
        sock.settimeout(max(deadline.left_s, 1e-3))
        more = sock.recv(size_bytes - len(data))
        if not more:
            raise ConnectionResetError("it hung up before it said who it is")
        data += more
    return data
