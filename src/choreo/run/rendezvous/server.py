"""The coordinator's connections: one event loop over all of them, which no client can stall.

A client is unauthenticated until it has proved that it holds the secret (`strangers`). Until then it gets a few seconds
and a few dozen bytes of memory.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from choreo.run.rendezvous.messages import Member
from choreo.run.transport.addresses import plain
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.errors import FrameError, ProtocolError, WrongSecretError
from choreo.run.transport.frames import FrameKind, FrameReader, FrameWriter, SealedFrame
from choreo.run.transport.handshake import HANDSHAKE_S, ServerHandshake
from choreo.run.transport.shortage import why
from choreo.run.transport.strangers import ACCEPTS_AT_ONCE, Strangers
from choreo.run.transport.tcp import keep_alive

__all__ = ["Client", "Server"]

_CHUNK_BYTES = 1 << 16
_REASONS_KEPT = 16


class Client:
    """One connection: at first unauthenticated, then of a process that holds the secret, then of a rank."""

    def __init__(self, sock: socket.socket, address: str, secret: bytes) -> None:
        self.sock = sock
        self.address = address  # it connected from here
        self.local_address = plain(sock.getsockname()[0])  # it connected to this address of ours
        self.handshake: ServerHandshake | None = ServerHandshake(secret)
        self.sealed: tuple[FrameReader, FrameWriter] | None = None
        self.patience = Deadline.after(HANDSHAKE_S)  # in which it is waited for, until it registers as a rank
        self.outgoing = bytearray()
        self.member: Member | None = None
        self.ignored = False  # whatever else it sends


class Server:
    """Accepts and authenticates clients, and exchanges frames with them.

    `on_frame` is called with each frame of an authenticated client; if it raises FrameError, that client is dropped.
    `on_lost` is called with each rank whose connection has ended, what the rank did, and why.
    """

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes,
        on_frame: Callable[[Client, SealedFrame], None],
        on_lost: Callable[[Client, str, str], None],
    ) -> None:
        self._listener = listener
        self._secret = secret
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._selector = selectors.DefaultSelector()
        self._clients: dict[socket.socket, Client] = {}  # oldest first
        self._strangers: Strangers[Client] = Strangers(self._drop)
        self._refused: Counter[str] = Counter()
        self._shortage = ""  # why a client could not be accepted
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def poll(self, until: Deadline) -> None:
        """Wait for events, and handle them."""
        wake_s = until.left_s
        if (expiry_s := self._strangers.next_expiry_s) is not None:
            wake_s = min(wake_s, max(0.0, expiry_s - time.monotonic()))
        for key, events in self._selector.select(wake_s):
            if key.fileobj is self._listener:
                self._accept()
                continue
            client: Client = key.data
            if events & selectors.EVENT_WRITE and client.sock in self._clients:
                self._flush(client)
            if events & selectors.EVENT_READ and client.sock in self._clients:
                self._read(client)
        self._strangers.expire()

    @property
    def in_handshake(self) -> bool:
        """Whether a client has just connected, and has not said yet what it wants."""
        return any(
            client.member is None and not client.ignored and not client.patience.passed
            for client in self._clients.values()
        )

    def send(self, client: Client, kind: FrameKind, payload: bytes) -> None:
        """Queue a frame for an authenticated client, and write what its socket takes."""
        if client.sealed is not None and client.sock in self._clients:
            client.outgoing += client.sealed[1].seal(kind, payload)
            self._flush(client)

    def send_to_all(self, kind: FrameKind, payload: bytes) -> None:
        """Send a frame to every authenticated client that is not ignored."""
        for client in list(self._clients.values()):
            if not client.ignored:
                self.send(client, kind, payload)

    def close_gracefully(self, deadline: Deadline, expecting: Callable[[], object] = lambda: False) -> None:
        """Close each connection after the client has read what was sent and has hung up; at the deadline, close all.

        Closing a socket that still has unread bytes would discard what was sent to the client. While `expecting()` is
        true, new clients are still accepted.
        """
        for client in self._clients.values():
            client.ignored = client.sealed is not None
        while expecting() and not deadline.passed:
            self.poll(deadline)
        self._selector.unregister(self._listener)
        self._listener.close()
        for client in [client for client in self._clients.values() if client.sealed is None]:
            self._drop(client)
        while self._clients and not deadline.passed:
            self.poll(deadline)
        self.close()

    def close(self) -> None:
        """Close all connections at once."""
        for sock in (self._listener, *self._clients):
            sock.close()
        self._clients.clear()
        self._strangers.close()
        self._selector.close()

    def refusals(self) -> str:
        """The refused clients and the reasons, as the end of a sentence."""
        if self._shortage:
            return f"; a connection could not be accepted: {self._shortage}"
        if not self._refused:
            return ""
        (reason, times), *others = self._refused.most_common()
        more = f", and {sum(count for _, count in others)} for other reasons" if others else ""
        return f"; refused {times} from {reason}{more}"

    def _accept(self) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                sock, (address, *_) = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:  # it has hung up
                continue
            except OSError as error:
                self._shortage = why(error)
                if not self._strangers.drop_oldest():
                    time.sleep(0.01)
                return
            sock.setblocking(False)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                client = Client(sock, plain(address), self._secret)
                assert client.handshake is not None
                sock.send(client.handshake.challenge)
            except OSError:
                sock.close()
                continue
            self._clients[sock] = client
            self._selector.register(sock, selectors.EVENT_READ, client)
            self._strangers.add(client, sock.fileno())

    def _drop(self, client: Client) -> None:
        self._strangers.remove(client)
        if self._clients.pop(client.sock, None) is not None:
            self._selector.unregister(client.sock)
            client.sock.close()
        client.outgoing.clear()

    def _refuse(self, client: Client, reason: str) -> None:
        entry = f"{client.address}: {reason}"
        if entry in self._refused or len(self._refused) < _REASONS_KEPT:
            self._refused[entry] += 1
        self._drop(client)

    def _flush(self, client: Client) -> None:
        try:
            while client.outgoing:
                sent = client.sock.send(bytes(client.outgoing[:_CHUNK_BYTES]))
                del client.outgoing[:sent]
        except BlockingIOError:
            pass
        except OSError:
            client.outgoing.clear()  # but what it sent before it went may still be there to read
        self._selector.modify(
            client.sock, selectors.EVENT_READ | (selectors.EVENT_WRITE if client.outgoing else 0), client
        )

    def _read(self, client: Client) -> None:
        try:
            data = client.sock.recv(client.handshake.needs_bytes if client.handshake is not None else _CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(client)
            if client.member is not None and not client.ignored:
                self._on_lost(client, "was lost", "its process ended or its connection was cut")
        elif client.ignored:
            pass
        elif client.handshake is not None:
            self._authenticate(client, client.handshake, data)
        else:
            self._receive(client, data)

    def _authenticate(self, client: Client, handshake: ServerHandshake, data: bytes) -> None:
        try:
            accepted = handshake.feed(data)
        except ProtocolError as error:
            self._refuse(client, str(error))
        except WrongSecretError as error:
            with suppress(OSError):
                client.sock.send(handshake.refusal)
            self._refuse(client, str(error))
        else:
            if accepted is not None:
                reply, reader, writer = accepted
                client.sealed = reader, writer
                client.handshake = None
                self._strangers.remove(client)  # however long it takes now: a slow rank does not register again
                keep_alive(client.sock)
                with suppress(OSError):
                    client.sock.send(reply)

    def _receive(self, client: Client, data: bytes) -> None:
        assert client.sealed is not None
        try:
            for frame in client.sealed[0].feed(data):
                if not client.ignored:
                    self._on_frame(client, frame)
        except FrameError as error:
            if client.member is None:
                self._refuse(client, str(error))
            else:
                self._on_lost(client, "broke the protocol", str(error))
