"""Connections on which messages come in."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from choreo.errors import RendezvousError
from choreo.run.messages.matching import Matcher, Message, Receive
from choreo.run.messages.wire import HEADER, HELLO, check_process, family_of, parse_header, parse_hello
from choreo.run.transport.handshake import HANDSHAKE_S
from choreo.run.transport.nonblocking_handshake import NonblockingServer
from choreo.run.transport.peer_info import PeerInfo

__all__ = ["Incoming", "IncomingConnection"]

# A message that no receive waits for is stored in chunks as it arrives: a length alone allocates nothing.
CHUNK_BYTES = 1 << 20


@dataclass(slots=True, eq=False)
class IncomingConnection:
    """One connection, and the message that is coming in on it."""

    socket: socket.socket
    handshake: NonblockingServer | None  # until it is done; between hosts only
    expires_s: float  # unless it has identified itself
    peer: int = -1  # until it has identified itself
    head: bytearray = field(default_factory=bytearray)
    message: Message | None = None


class Incoming:
    """A rank's listener, and the connections that it has accepted."""

    def __init__(self, rank: int, peers: tuple[PeerInfo, ...], matcher: Matcher, *, local: bool) -> None:
        self._peers, self._matcher = peers, matcher
        self.key: bytes | None = None  # of the communicator, if it spans several hosts
        self._identified: set[int] = set()  # ranks that have connected: none does so twice
        self.connections: dict[int, IncomingConnection] = {}  # by descriptor
        self.ended: list[IncomingConnection] = []  # of ranks; `PointToPoint` takes them from here
        self.listener = socket.socket(family_of(None if local else peers[rank].address), socket.SOCK_STREAM)
        self.listener.bind(f"\0choreo-{os.urandom(12).hex()}" if local else (peers[rank].address, 0))
        self.listener.listen(max(128, 2 * len(peers)))
        self.listener.setblocking(False)

    @property
    def address(self) -> str | int:
        """Where this rank listens: the name of an abstract socket, or a port."""
        name = self.listener.getsockname()
        return name[1:].decode() if isinstance(name, bytes) else int(name[1])

    def accept(self) -> None:
        """Accept all clients that wait."""
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            sock.setblocking(False)
            one = IncomingConnection(sock, None, time.monotonic() + HANDSHAKE_S)
            if self.key is not None:
                one.handshake = NonblockingServer(self.key)
                with contextlib.suppress(OSError):
                    sock.send(one.handshake.challenge)
            self.connections[sock.fileno()] = one
            self.read(one)

    def read(self, one: IncomingConnection) -> None:
        """Read all that has arrived on a connection."""
        try:
            while self._read_some(one):
                pass
        except BlockingIOError:
            return
        except (OSError, ValueError, RendezvousError):
            self.end(one)

    def read_from(self, peer: int) -> None:
        """Accept and read all that a rank has sent so far."""
        self.accept()
        for one in [one for one in self.connections.values() if one.peer == peer]:
            self.read(one)

    def end(self, one: IncomingConnection) -> None:
        """Close a connection."""
        self.connections.pop(one.socket.fileno(), None)
        one.socket.close()
        if one.peer >= 0:
            self.ended.append(one)

    def expire(self, now_s: float) -> None:
        """Close connections that have not identified themselves in time."""
        for one in [one for one in self.connections.values() if one.peer < 0 and one.expires_s < now_s]:
            self.end(one)

    def receives(self) -> Iterator[Receive]:
        """The receives into whose buffers messages are coming in."""
        for one in self.connections.values():
            if one.message is not None and one.message.receive is not None:
                yield one.message.receive

    def take_back(self, receive: Receive) -> None:
        """Detach a receive from its message, which is kept for the next receive."""
        for one in self.connections.values():
            if one.message is not None and one.message.receive is receive:
                one.message.receive = None
                one.message.pieces.append(bytes(receive.into[: one.message.got]))

    def close(self) -> None:
        """Close everything."""
        for sock in (self.listener, *(one.socket for one in self.connections.values())):
            sock.close()
        self.connections.clear()

    def _read_some(self, one: IncomingConnection) -> bool:
        """Read once; whether there may be more."""
        if one.handshake is not None:
            data = one.socket.recv(one.handshake.needs_bytes)
            if data:
                self._continue_handshake(one, one.handshake, data)
        elif one.message is None:
            wanted = (HELLO if one.peer < 0 else HEADER).size
            data = one.socket.recv(wanted - len(one.head))
            one.head += data
            if len(one.head) == wanted:
                self._on_head(one)
        else:
            return self._read_data(one, one.message)
        if not data:
            self.end(one)
        return bool(data)

    def _read_data(self, one: IncomingConnection, message: Message) -> bool:
        if message.receive is not None:
            count = one.socket.recv_into(message.receive.into[message.got :])
        else:
            message.pieces.append(one.socket.recv(min(CHUNK_BYTES, message.length - message.got)))
            count = len(message.pieces[-1])
        if not count:
            self.end(one)
            return False
        message.got += count
        if message.got == message.length:
            one.message = None
            self._matcher.complete(one.peer, message)
        return True

    def _continue_handshake(self, one: IncomingConnection, handshake: NonblockingServer, data: bytes) -> None:
        one.socket.send(handshake.feed(data))
        if handshake.done:
            self._identify(one, handshake.rank)
            one.handshake = None

    def _on_head(self, one: IncomingConnection) -> None:
        """A hello or a header is complete."""
        head = bytes(one.head)
        one.head.clear()
        if one.peer < 0:
            peer = parse_hello(head, len(self._peers))
            check_process(one.socket, self._peers[peer])
            self._identify(one, peer)
            return
        dtype, tag, length = parse_header(head)
        message = Message(tag, dtype, length)
        self._matcher.begin(one.peer, message)
        if length:
            one.message = message
        else:
            self._matcher.complete(one.peer, message)

    def _identify(self, one: IncomingConnection, peer: int) -> None:
        if peer in self._identified or not 0 <= peer < len(self._peers):
            raise ValueError("not a rank of this communicator, or one that is connected already")
        self._identified.add(peer)
        one.peer = peer
