"""TCP connections between the ranks of one communicator that are on different hosts.

Every rank listens on its own address while the communicator connects. Of two ranks the higher one connects: one control
connection, and several streams. On each of them both sides prove that they hold the communicator's key (`handshake`).
The key is never sent: every rank derives it from the job's secret and from nonces that all ranks drew. Then the client
says, in a sealed frame, which rank and which connection it is.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import random
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from choreo.errors import RendezvousError
from choreo.run.transport.addresses import Target
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.dial import AuthenticatedSocket, dial
from choreo.run.transport.errors import ProtocolError, WrongSecretError
from choreo.run.transport.frames import FrameKind
from choreo.run.transport.handshake import HANDSHAKE_S, ServerHandshake
from choreo.run.transport.peer_info import PeerInfo
from choreo.run.transport.shortage import SHORT, check_room, start_thread, why
from choreo.run.transport.strangers import ACCEPTS_AT_ONCE, Strangers

__all__ = [
    "NetworkConfig",
    "PeerListener",
    "TcpConnections",
    "address_toward",
    "connection_lost",
    "dial_peer",
    "keep_alive",
    "tune",
]

STREAMS = 4
# Between hosts that are near, a small send buffer is enough and keeps the data in cache. All of it must also fit into
# the peer's receive window, which the system chooses: a window that closes opens again only with a delayed
# acknowledgement, 40 ms later. With twice as much an all_gather of 64 MiB took 120 ms instead of 13.
SEND_BYTES, NEAR_S = 64 << 10, 3e-4
_RTT_AT = 68  # offset of the smoothed round trip in `struct tcp_info`, in microseconds
SHORTEST_TIMEOUT_S, KEEPALIVE_S = 5.0, 10
LOOK_S = 0.5  # how often the listener looks whose time is up
PAUSE_S = 0.01  # before a rank that did not answer is dialled again, at first
_CLIENT = struct.Struct(">II")  # rank, and which connection: 0 is control, the rest are streams


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """A rank's address for other hosts, and the secret that only its job holds."""

    address: str
    secret: bytes = field(repr=False)
    sealed: bool = True  # whether data is encrypted and authenticated
    cipher: str = ""  # that seals it, once all ranks have said which they have

    def derive_key(self, purpose: str, nonces: Iterable[bytes] = ()) -> bytes:
        """A key for one purpose, the same on all ranks that have the same nonces."""
        return hmac.digest(self.secret, b"choreo network 1: " + purpose.encode() + b"\0" + b"".join(nonces), "sha256")


@dataclass(slots=True)
class TcpConnections:
    """The connections to ranks on other hosts. They may be made in any order: each is a path of its own."""

    _made: dict[tuple[int, int], AuthenticatedSocket] = field(default_factory=dict)  # by rank, and which of its

    def add(self, rank: int, which: int, connection: AuthenticatedSocket) -> bool:
        """Add a connection; False if there is one already, or none like it."""
        if which > STREAMS or (rank, which) in self._made:
            return False
        self._made[rank, which] = connection
        return True

    @property
    def control(self) -> dict[int, AuthenticatedSocket]:
        """The control connections, by rank."""
        return {rank: connection for (rank, which), connection in self._made.items() if which == 0}

    @property
    def streams(self) -> dict[int, list[AuthenticatedSocket]]:
        """The streams, by rank."""
        return {rank: [self._made[rank, which] for which in range(1, STREAMS + 1)] for rank in self.control}

    def missing(self, ranks: Iterable[int]) -> list[int]:
        """The ranks whose connections are not complete."""
        return [rank for rank in ranks if any((rank, which) not in self._made for which in range(STREAMS + 1))]

    def take(self, others: TcpConnections) -> None:
        """Add those of others."""
        self._made |= others._made

    def close(self) -> None:
        """Close all of them."""
        for connection in self._made.values():
            connection.socket.close()


class PeerListener:
    """A rank's listener while a communicator connects; a thread accepts the higher ranks."""

    def __init__(self, address: str) -> None:
        try:
            self._listener = socket.create_server((address, 0), family=_family(address), backlog=socket.SOMAXCONN)
        except OSError as error:
            raise RendezvousError(
                f"this rank cannot listen at {address}, where other hosts are to reach it: {why(error)}"
            ) from None
        with contextlib.ExitStack() as undo:
            undo.callback(self._listener.close)
            self._listener.setblocking(False)
            self.port = int(self._listener.getsockname()[1])
            self._selector = undo.enter_context(selectors.DefaultSelector())
            self._stop_event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            undo.pop_all()
        self._thread: threading.Thread | None = None
        self._key, self._timeout_s = b"", 0.0
        self._expected: list[int] = []
        self._accepted = TcpConnections()
        self._clients: dict[socket.socket, _Client] = {}
        self._strangers: Strangers[_Client] = Strangers(self._drop)
        self._shortage: OSError | None = None

    def connect(
        self, me: PeerInfo, peers: Sequence[PeerInfo], ports: Sequence[int], key: bytes, end_s: float
    ) -> TcpConnections:
        """Connect to all lower ranks of `peers`, and begin to accept the higher ones, which `finish` waits for."""
        check_room(self._stop_event, len(peers) * (STREAMS + 2))  # one more for the executor to watch
        self._key, self._timeout_s = key, max(SHORTEST_TIMEOUT_S, end_s - time.monotonic())
        self._expected = [peer.rank for peer in peers if peer.rank > me.rank]
        if self._expected:
            self._thread = start_thread(self._serve, "choreo-listener", "connections of other hosts")
        lower = TcpConnections()
        try:
            for peer, port in zip(peers, ports, strict=True):
                for which in range(STREAMS + 1) if peer.rank < me.rank else ():
                    connection = dial_peer(peer, port, key, end_s)
                    lower.add(peer.rank, which, connection)
                    tune(connection.socket, self._timeout_s)
                    connection.socket.sendall(connection.writer.seal(FrameKind.JOIN, _CLIENT.pack(me.rank, which)))
                    connection.socket.setblocking(False)
        except OSError as error:
            lower.close()
            raise connection_lost(peer, error) from None
        except BaseException:
            lower.close()
            raise
        return lower

    def finish(self, lower: TcpConnections, peers: Sequence[PeerInfo], end_s: float) -> TcpConnections:
        """All connections. Every rank has dialled by now, so the higher ranks are accepted at once."""
        if self._thread is not None:
            self._thread.join(max(0.0, end_s - time.monotonic()))
        missing = self._accepted.missing(self._expected)
        if missing:
            lower.close()
            peer = next(peer for peer in peers if peer.rank == missing[0])
            raise connection_lost(peer, self._shortage or ConnectionResetError("it did not connect in time"))
        self._accepted.take(lower)
        found, self._accepted = self._accepted, TcpConnections()
        return found

    def close(self) -> None:
        """Stop accepting, and close what was accepted but not handed over. Closing twice does nothing."""
        if self._stop_event < 0:
            return
        os.eventfd_write(self._stop_event, 1)
        if self._thread is not None:
            self._thread.join()  # it waits for nothing but this event and its clients
        self._selector.close()
        self._listener.close()
        os.close(self._stop_event)
        self._stop_event = -1
        self._strangers.close()
        self._accepted.close()

    def _serve(self) -> None:
        selector, clients = self._selector, self._clients
        selector.register(self._stop_event, selectors.EVENT_READ)
        selector.register(self._listener, selectors.EVENT_READ)
        try:
            while self._accepted.missing(self._expected):
                ready = {key.fileobj for key, _ in selector.select(LOOK_S)}
                if self._stop_event in ready:
                    break
                for client in [
                    client for client in clients.values() if client.socket in ready and not self._receive(client)
                ]:
                    self._drop(client)
                self._strangers.expire()
                if self._listener in ready:
                    self._accept()
        finally:
            self._listener.close()  # nobody else is expected
            for client in list(clients.values()):
                self._drop(client)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:  # it has hung up
                continue
            except OSError as error:
                self._shortage = error
                if not self._strangers.drop_oldest():
                    time.sleep(PAUSE_S)
                return
            try:
                sock.setblocking(False)
                client = _Client(sock, ServerHandshake(self._key))
                tune(sock, self._timeout_s)
                sock.send(client.handshake.challenge)
            except OSError:
                sock.close()
                continue
            self._clients[sock] = client
            self._selector.register(sock, selectors.EVENT_READ)
            self._strangers.add(client, sock.fileno())

    def _drop(self, client: _Client) -> None:
        """Forget a client, and close its connection unless it was accepted."""
        self._strangers.remove(client)
        if self._clients.pop(client.socket, None) is not None:
            self._selector.unregister(client.socket)
            if not client.accepted:
                client.socket.close()

    def _receive(self, client: _Client) -> bool:
        """Read from a client; whether more has to come before it is accepted or refused."""
        try:
            data = client.socket.recv(client.needs_bytes)
            if not data:
                return False
            if client.sealed is None:
                accepted = client.handshake.feed(data)
                if accepted is not None:
                    reply, reader, writer = accepted
                    client.sealed = AuthenticatedSocket(client.socket, reader, writer, client.handshake.record_keys)
                    self._strangers.remove(client)  # however long it takes now: a slow rank is not dialled again
                    client.socket.send(reply)
                return True
            client.received += len(data)
            for frame in client.sealed.reader.feed(data):
                if frame.kind == FrameKind.JOIN and len(frame.payload) == _CLIENT.size:
                    rank, which = _CLIENT.unpack(frame.payload)
                    client.accepted = rank in self._expected and self._accepted.add(rank, which, client.sealed)
        except BlockingIOError:
            return True
        except (OSError, RendezvousError):
            return False
        return client.needs_bytes > 0


@dataclass(slots=True, eq=False)
class _Client:
    """A connection whose handshake is in progress."""

    socket: socket.socket
    handshake: ServerHandshake
    sealed: AuthenticatedSocket | None = None
    received: int = 0
    accepted: bool = False

    @property
    def needs_bytes(self) -> int:
        """The number of bytes that may be read: of the handshake, or of the frame that says who it is."""
        if self.sealed is None:
            return self.handshake.needs_bytes
        return self.sealed.reader.frame_bytes(_CLIENT.size) - self.received


def dial_peer(peer: PeerInfo, port: int, key: bytes, end_s: float) -> AuthenticatedSocket:
    """An authenticated connection to a rank that listens; an OSError if there is none before the end.

    A rank with a full queue, or among many strangers, may hang up or say nothing: it is dialled again. If nobody
    listens, it is gone.
    """
    target, pause_s = Target(_family(peer.address), (peer.address, port)), PAUSE_S
    while True:
        left_s = max(end_s - time.monotonic(), 1e-3)
        try:
            return dial(target, key, Deadline.after(left_s).capped(HANDSHAKE_S))
        except ConnectionRefusedError:
            raise
        except (ProtocolError, WrongSecretError) as error:
            found = "another program has its port, or something between the hosts changed bytes"
            raise type(error)(f"this rank cannot connect to {peer}: {error}; {found}", ranks=(peer.rank,)) from None
        except OSError as error:
            if error.errno in SHORT or time.monotonic() + pause_s >= end_s:
                raise
        time.sleep(pause_s * random.uniform(0.5, 1.0))
        pause_s = min(2 * pause_s, 0.25)


def address_toward(target: Target) -> str:
    """The address of this host from which another host is reached."""
    with socket.socket(target.family, socket.SOCK_DGRAM) as probe:
        probe.connect(target.address)  # sends nothing
        return str(probe.getsockname()[0])


def tune(sock: socket.socket, timeout_s: float) -> None:
    """Send at once, notice within `timeout_s` that a host is gone, and keep the send buffer small if that is near."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(sock)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, min(2**31 - 1, int(timeout_s * 1000)))
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT_AT + 4)
    if len(info) == _RTT_AT + 4 and int.from_bytes(info[_RTT_AT:], sys.byteorder) < NEAR_S * 1e6:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)


def keep_alive(sock: socket.socket) -> None:
    """Have the system end a connection to a host that is gone, though nothing is sent to it."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)


def connection_lost(peer: PeerInfo, error: OSError) -> RendezvousError:
    """The error for a peer that was lost while the ranks of a communicator connected."""
    if error.errno in SHORT:
        return RendezvousError(f"this rank cannot connect to {peer}: {why(error)}")
    return RendezvousError(f"{peer} was lost while the ranks connected: {why(error)}", ranks=(peer.rank,))


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
