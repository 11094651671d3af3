"""Connections on which messages go out to other hosts: one to each rank that this one sends to or waits for."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass

from choreo.run.messages.matching import NOT_TAKEN, Send
from choreo.run.messages.wire import MessageBytes, family_of, message_bytes
from choreo.run.transport.handshake import HANDSHAKE_S
from choreo.run.transport.nonblocking_handshake import NonblockingClient
from choreo.run.transport.shortage import why

__all__ = ["Outgoing", "OutgoingConnection"]

RETRY_S = 0.05


@dataclass(slots=True, eq=False)
class OutgoingConnection:
    """One connection. `handshake` is None once it is done, and is given up when it expires."""

    socket: socket.socket
    handshake: NonblockingClient | None
    expires_s: float
    connecting: bool = True
    bytes: MessageBytes | None = None  # what follows the handshake


class Outgoing:
    """The connections and what is queued for each rank. An OSError from a method means that the rank is lost."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.addresses: list[tuple[str, int]] = []
        self.key, self.cipher = b"", ""
        self.connections: dict[int, OutgoingConnection] = {}  # by rank
        self.queues: defaultdict[int, deque[Send]] = defaultdict(deque)
        self.truncated: set[int] = set()  # ranks that got half a message: nothing can follow it
        self.retries: dict[int, tuple[float, str]] = {}  # when to try again to connect to a rank, and what went wrong

    def connect(self, peer: int) -> None:
        """Begin to connect to a rank, unless it is connected. If the system cannot just now, it is tried again."""
        if peer in self.connections or peer in self.truncated:
            return
        address = self.addresses[peer]
        try:
            sock = socket.socket(family_of(address[0]), socket.SOCK_STREAM)
        except OSError as error:
            self.retry(peer, error)
            return
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(BlockingIOError):  # it has begun to connect
                sock.connect(address)
        except OSError as error:
            sock.close()
            self.retry(peer, error)
            return
        self.retries.pop(peer, None)
        handshake = NonblockingClient(self.key, self._rank)
        self.connections[peer] = OutgoingConnection(sock, handshake, time.monotonic() + HANDSHAKE_S)

    def retry(self, peer: int, error: OSError) -> None:
        """A rank cannot be reached right now. Raises the error if nobody listens there: then the rank is gone.

        This process may be short of something, the rank's backlog may be full, or it may have dropped us among many
        unauthenticated connections.
        """
        if isinstance(error, ConnectionRefusedError):
            raise error
        if peer in self.connections:
            self.connections.pop(peer).socket.close()
        self.retries[peer] = (time.monotonic() + RETRY_S, why(error))

    def continue_handshake(self, peer: int, connection: OutgoingConnection, handshake: NonblockingClient) -> None:
        """The socket is connected, or the other side has answered."""
        if connection.connecting:
            failed = connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if failed:
                self.retry(peer, OSError(failed, os.strerror(failed)))
                return
            connection.connecting = False
        try:
            while not handshake.done:
                data = connection.socket.recv(handshake.needs_bytes)
                if not data:
                    raise ConnectionResetError("it hung up during the handshake")
                answer = handshake.feed(data)
                if answer:
                    connection.socket.send(answer)
        except BlockingIOError:
            return
        except OSError as error:
            self.retry(peer, error)
            return
        connection.bytes = message_bytes(connection.socket, self.cipher, handshake.record_keys)
        connection.handshake = None
        self.write(peer, connection.bytes)

    def write(self, peer: int, to: MessageBytes) -> None:
        """Write what is queued, as far as the socket takes it."""
        queue = self.queues[peer]
        while queue:
            send, left = queue[0], sum(map(len, queue[0].rest))
            try:
                to.write(send.rest)
            except BlockingIOError:
                send.begun = send.begun or sum(map(len, send.rest)) < left
                return
            queue.popleft().end(peer)

    def sends(self) -> Iterator[Send]:
        """All sends in progress."""
        for queue in self.queues.values():
            yield from queue

    @property
    def next_expiry_s(self) -> float | None:
        """The time at which the first handshake in progress is given up; None if there is none."""
        return min(
            (connection.expires_s for connection in self.connections.values() if connection.handshake is not None),
            default=None,
        )

    def expire(self, now_s: float) -> None:
        """End the sends whose deadline has passed. If half of one is written, nothing can follow it.

        A handshake that timed out is tried again: the other side may have forgotten it.
        """
        for peer, connection in list(self.connections.items()):
            if connection.handshake is not None and connection.expires_s < now_s:
                self.retry(peer, TimeoutError("it does not answer"))
        for peer, queue in self.queues.items():
            for send in [send for send in queue if send.deadline_s < now_s]:
                if send.begun:
                    self.truncated.add(peer)
                    self.connections.pop(peer).socket.close()
                    for message in queue:
                        message.fail(NOT_TAKEN)
                    queue.clear()
                    break
                queue.remove(send)
                reason = self.retries.get(peer)
                send.fail(NOT_TAKEN if reason is None else f"could not be reached before the deadline: {reason[1]}")

    def close(self) -> None:
        """Close all connections."""
        for connection in self.connections.values():
            connection.socket.close()
        self.connections.clear()
