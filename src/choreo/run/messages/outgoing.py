"""Connections on which messages go out: one to each rank that this one sends to or waits for."""

from __future__ import annotations

import contextlib
import socket
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass

from choreo.run.messages.matching import Send
from choreo.run.messages.wire import HELLO, HELLO_MAGIC, Address, check_process, family_of
from choreo.run.transport.nonblocking_handshake import NonblockingClient
from choreo.run.transport.peer_info import PeerInfo

__all__ = ["Outgoing", "OutgoingConnection"]


@dataclass(slots=True, eq=False)
class OutgoingConnection:
    """One connection. `handshake` is None once it is done, and always on one host."""

    socket: socket.socket
    handshake: NonblockingClient | None = None
    connecting: bool = False


class Outgoing:
    """The connections and what is queued for each rank. An OSError of a method means that the rank is lost."""

    def __init__(self, rank: int, peers: tuple[PeerInfo, ...]) -> None:
        self._rank, self._peers = rank, peers
        self.addresses: list[Address] = []
        self.key: bytes | None = None
        self.connections: dict[int, OutgoingConnection] = {}  # by rank
        self.queues: defaultdict[int, deque[Send]] = defaultdict(deque)
        self.truncated: set[int] = set()  # ranks that got half a message: nothing can follow it

    def connect(self, peer: int, deadline_s: float) -> None:
        """Begin to connect to a rank, unless it is connected."""
        if peer in self.connections or peer in self.truncated:
            return
        address = self.addresses[peer]
        sock = socket.socket(family_of(None if isinstance(address, str) else address[0]), socket.SOCK_STREAM)
        made = OutgoingConnection(sock)
        try:
            if isinstance(address, str):
                sock.settimeout(max(0.01, deadline_s - time.monotonic()))
                sock.connect(f"\0{address}")
                check_process(sock, self._peers[peer])
                sock.sendall(HELLO.pack(HELLO_MAGIC, self._rank))
                sock.setblocking(False)
            else:
                assert self.key is not None
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with contextlib.suppress(BlockingIOError):  # it has begun to connect
                    sock.connect(address)
                made.handshake, made.connecting = NonblockingClient(self.key, self._rank), True
        except OSError:
            sock.close()
            raise
        self.connections[peer] = made

    def continue_handshake(self, peer: int, one: OutgoingConnection, handshake: NonblockingClient) -> None:
        """The socket is connected, or the other side has answered."""
        one.connecting = False
        try:
            while not handshake.done:
                data = one.socket.recv(handshake.needs_bytes)
                if not data:
                    raise ConnectionResetError("it hung up during the handshake")
                answer = handshake.feed(data)
                if answer:
                    one.socket.send(answer)
        except BlockingIOError:
            return
        one.handshake = None
        self.write(peer, one.socket)

    def write(self, peer: int, sock: socket.socket) -> None:
        """Write what is queued, as far as the socket takes it."""
        queue = self.queues[peer]
        try:
            while queue:
                rest = queue[0].rest
                while rest:
                    sent = sock.sendmsg(list(rest), [], socket.MSG_NOSIGNAL)
                    while rest and sent >= len(rest[0]):
                        sent -= len(rest.popleft())
                    if rest:
                        rest[0] = rest[0][sent:]
                queue.popleft().work.end()
        except BlockingIOError:
            return

    def sends(self) -> Iterator[Send]:
        """All sends under way."""
        for queue in self.queues.values():
            yield from queue

    def truncate(self, peer: int) -> list[Send]:
        """Close the connection to a rank in the middle of a message; the sends that were queued."""
        self.truncated.add(peer)
        sends = list(self.queues[peer])
        self.queues[peer].clear()
        self.connections.pop(peer).socket.close()
        return sends

    def close(self) -> None:
        """Close all connections."""
        for one in self.connections.values():
            one.socket.close()
        self.connections.clear()
