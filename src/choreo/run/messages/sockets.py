"""Messages to and from ranks on other hosts, through sockets that a thread reads and writes.

Every rank listens. A rank that sends to another, or waits for it, connects to it; the end of that connection tells it
that the other is gone. Each side proves that it holds the communicator's key. The thread runs from the start, to answer
handshakes.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Any

from choreo.errors import ChoreoError, RendezvousError
from choreo.run.messages.incoming import Incoming
from choreo.run.messages.matching import ANY_SOURCE, GONE, Matcher, MessageWork, Receive, Send
from choreo.run.messages.outgoing import RETRY_S, Outgoing, OutgoingConnection
from choreo.run.messages.wire import ALTERED, pack_header
from choreo.run.transport.peer_info import PeerInfo
from choreo.run.transport.shortage import start_thread

__all__ = ["SocketMessages"]

LONGEST_POLL_MS = 1e6  # poll(2) takes no more than an int
# Somebody between the hosts may have cut the connection of a rank that lives.
ENDED = f"{GONE}, or the connection to it was cut"
BROKEN_OFF = "ended in the middle of a message: it died, or the connection to it was cut"


class SocketMessages:
    """The sockets of one rank, and their thread.

    `lock` guards all that this shares with other threads; those that call a method hold it. `wake` wakes them when
    something is over, `lose` is told when a rank is gone, and `fail` when the thread fails.
    """

    def __init__(
        self,
        rank: int,
        peers: tuple[PeerInfo, ...],
        matcher: Matcher,
        *,
        lock: Any,
        wake: Callable[[], None],
        lose: Callable[[int, str], None],
        fail: Callable[[ChoreoError], None],
    ) -> None:
        self._wakeup, self._closed = -1, False
        self._thread: threading.Thread | None = None
        self._lock, self._wake_waiters, self._lose_rank, self._fail = lock, wake, lose, fail
        self._outgoing = Outgoing(rank)
        self._remote: list[int] = []
        self._accept_at_s = 0.0
        self._gone: set[int] = set()
        with contextlib.ExitStack() as undo:
            self._incoming = Incoming(rank, peers, matcher)
            undo.callback(self._close_sockets)
            self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._thread = start_thread(self._serve, "choreo-messages", "messages between hosts")
            undo.pop_all()

    @property
    def port(self) -> int:
        """The port that this rank listens on."""
        return self._incoming.port

    @property
    def shortage(self) -> str:
        """The reason why this rank could not accept a connection; empty if it could."""
        return self._incoming.shortage

    def start(self, addresses: list[tuple[str, int]], key: bytes, remote: list[int], *, cipher: str = "") -> None:
        """Start, with the addresses of all ranks, the communicator's key, the ranks on other hosts, and the cipher."""
        with self._lock:
            self._outgoing.addresses, self._outgoing.key, self._outgoing.cipher = addresses, key, cipher
            self._incoming.key, self._incoming.cipher, self._remote = key, cipher, remote
        self.wake()

    def send(self, send: Send) -> None:
        """Send a message."""
        if send.peer in self._outgoing.truncated:
            send.fail("did not take an earlier message before its deadline")
            return
        head = memoryview(pack_header(send.dtype, send.tag, len(send.data)))
        send.rest.extend(part for part in (head, send.data) if len(part))
        self._outgoing.queues[send.peer].append(send)
        self._connect(send.peer)
        self.wake()

    def watch(self, receive: Receive) -> None:
        """A receive waits: connect to the ranks that it waits for, whose end is noticed then."""
        for peer in self._remote if receive.peer == ANY_SOURCE else [receive.peer]:
            if peer in self._remote and peer not in self._gone:
                self._connect(peer)
        self.wake()

    def take_back(self, receive: Receive) -> bool:
        """End a receive whose time is up while its message is coming in; False if none is."""
        if not self._incoming.take_back(receive):
            return False
        receive.fail("sent only a part before the deadline")
        return True

    def wake(self) -> None:
        """Let the thread look again."""
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wakeup, 1)

    def close(self) -> None:
        """Close all connections. Closing twice does nothing."""
        if self._closed:
            return
        self._closed = True
        self.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(1.0)
        else:
            self._close_sockets()

    def in_progress(self) -> list[MessageWork]:
        """The sends that are not done, and the receives whose messages are coming in."""
        coming = [
            connection.message for connection in self._incoming.connections.values() if connection.message is not None
        ]
        receives = [message.receive for message in coming if message.receive is not None]
        return [*self._outgoing.sends(), *receives]

    def drop(self) -> None:
        """Close the descriptors that a fork inherited; the parent's connections stay."""
        self._closed, self._thread = True, None
        self._close_sockets()

    def _connect(self, peer: int) -> None:
        try:
            self._outgoing.connect(peer)
        except OSError:
            self._lose(peer)

    # What follows runs on the thread.

    def _serve(self) -> None:
        try:
            while not self._closed:
                with self._lock:
                    watch, wait_ms = self._watched()
                events = _poll(watch, wait_ms)
                with self._lock:
                    if not self._closed:
                        self._handle(events)
                        self._wake_waiters()
        except Exception as error:  # a bug of ours must reach those that wait
            self._fail(ChoreoError(f"the thread for messages has failed: {error!r}"))
            raise
        finally:
            self._close_sockets()

    def _watched(self) -> tuple[select.poll, float | None]:
        """The descriptors to wait for, and the longest time to wait."""
        incoming, outgoing, now_s = self._incoming, self._outgoing, time.monotonic()
        watch = select.poll()
        watch.register(self._wakeup, select.POLLIN)
        ends = [send.deadline_s for send in outgoing.sends()]
        ends += [at_s for at_s, _ in outgoing.retries.values()]
        ends += [at_s for at_s in (incoming.next_expiry_s, outgoing.next_expiry_s) if at_s is not None]
        if not incoming.key:
            pass  # nobody can prove anything yet
        elif self._accept_at_s < now_s:
            watch.register(incoming.listener, select.POLLIN)
        else:
            ends.append(self._accept_at_s)
        for descriptor, connection in incoming.connections.items():
            if connection.message is not None or not incoming.is_full(connection.peer):
                watch.register(descriptor, select.POLLIN)
        for peer, out in outgoing.connections.items():
            writes = out.connecting or (out.handshake is None and outgoing.queues[peer])
            watch.register(out.socket, (select.POLLOUT if writes else 0) | (select.POLLIN if out.handshake else 0))
        return watch, min(max(0.0, (min(ends) - now_s) * 1e3 + 1), LONGEST_POLL_MS) if ends else None

    def _handle(self, events: dict[int, int]) -> None:
        incoming, outgoing = self._incoming, self._outgoing
        if self._wakeup in events:
            os.eventfd_read(self._wakeup)
        now_s = time.monotonic()
        for peer in [peer for peer, (at_s, _) in outgoing.retries.items() if at_s <= now_s]:
            self._connect(peer)
        if incoming.listener.fileno() in events and not incoming.accept():
            self._accept_at_s = now_s + RETRY_S
        for descriptor in [descriptor for descriptor in events if descriptor in incoming.connections]:
            incoming.read(incoming.connections[descriptor])
        for peer, out in list(outgoing.connections.items()):
            self._handle_outgoing(peer, out, events.get(out.socket.fileno(), 0))
        while incoming.ended:
            connection = incoming.ended.pop(0)
            if connection.message is not None and connection.message.receive is not None:
                connection.message.receive.peer = connection.peer
                connection.message.receive.fail(ALTERED if connection.altered else BROKEN_OFF)
            self._lose(connection.peer, ALTERED if connection.altered else ENDED)
        outgoing.expire(now_s)
        incoming.expire()

    def _handle_outgoing(self, peer: int, out: OutgoingConnection, events: int) -> None:
        try:
            if out.handshake is not None:
                if events:
                    self._outgoing.continue_handshake(peer, out, out.handshake)
            elif events & (select.POLLHUP | select.POLLERR):
                self._lose(peer)
            elif self._outgoing.queues[peer] and out.bytes is not None:
                self._outgoing.write(peer, out.bytes)
        except (OSError, RendezvousError):
            self._lose(peer)

    def _lose(self, peer: int, reason: str = GONE) -> None:
        """A rank is gone, or what it sends arrives altered. What it sent before is read first."""
        if peer in self._gone:
            return
        self._incoming.read_from(peer)
        self._gone.add(peer)
        self._outgoing.retries.pop(peer, None)
        if peer in self._outgoing.connections:
            self._outgoing.connections.pop(peer).socket.close()
        for send in self._outgoing.queues.pop(peer, ()):
            send.fail(reason)
        self._lose_rank(peer, reason)

    def _close_sockets(self) -> None:
        self._incoming.close()
        self._outgoing.close()
        if self._wakeup >= 0:
            os.close(self._wakeup)
        self._wakeup = -1


def _poll(watch: select.poll, wait_ms: float | None) -> dict[int, int]:
    try:
        return dict(watch.poll(wait_ms))
    except OSError:  # there are more descriptors than this process may now have
        time.sleep(RETRY_S)
        return {}
