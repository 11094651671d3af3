"""Sends and receives the messages of one rank, with tags.

Every rank listens. A rank that sends to another, or waits for it, connects to it; the end of that connection tells it
that the other is gone. One thread per communicator, started by the first message, reads and writes all connections.

On one host the kernel says which process is at the other end of a socket. Between hosts each side proves that it holds
the communicator's key; then the thread runs from the start, to answer handshakes.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from choreo.errors import ChoreoError, CommunicatorClosed, PeerFailure, RendezvousError
from choreo.run.messages.incoming import Incoming
from choreo.run.messages.matching import Matcher, Message, Receive, Send
from choreo.run.messages.outgoing import Outgoing, OutgoingConnection
from choreo.run.messages.wire import Address, pack_header, parse_header
from choreo.run.transport.peer_info import PeerInfo
from choreo.run.work import Work

__all__ = ["PointToPoint"]

GONE = "is gone: it died, or closed its communicator"


class PointToPoint:
    """All messages of one rank."""

    def __init__(self, rank: int, peers: tuple[PeerInfo, ...], local: bool) -> None:
        self._wakeup = -1
        self._thread: threading.Thread | None = None
        self._rank, self._peers = rank, peers
        self._matcher = Matcher(rank, peers)
        self._incoming = Incoming(rank, peers, self._matcher, local=local)
        self._outgoing = Outgoing(rank, peers)
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._requests: deque[Send | Receive] = deque()
        self._gone: set[int] = set()
        self._starting = threading.Lock()
        self._closed = False

    @property
    def address(self) -> str | int:
        """Where this rank listens: the name of an abstract socket, or a port."""
        return self._incoming.address

    def set_addresses(self, addresses: list[Address], key: bytes | None) -> None:
        """Where the other ranks listen, and the communicator's key if it spans several hosts."""
        self._outgoing.addresses, self._outgoing.key = addresses, key
        self._incoming.key = key
        if key is not None:
            self._start()

    def send(self, data: memoryview, dtype: int, peer: int, tag: int, timeout_s: float) -> Work[None]:
        """Send these bytes; done when the system has taken them."""
        work: Work[None] = Work(f"send of {len(data)} bytes with tag {tag} to {self._peers[peer]}")
        head = memoryview(pack_header(dtype, tag, len(data)))
        self._request(Send(peer, deque(part for part in (head, data) if len(part)), time.monotonic() + timeout_s, work))
        return work

    def receive(
        self, into: memoryview, dtype: int, peer: int, tag: int, timeout_s: float, *, finish: Callable[[], None]
    ) -> Work[None]:
        """Receive into these bytes; `finish` is called when they are there."""
        work: Work[None] = Work(f"recv of {len(into)} bytes with tag {tag} from {self._peers[peer]}")
        self._request(Receive(peer, tag, dtype, into, time.monotonic() + timeout_s, work, finish))
        return work

    def close(self) -> None:
        """Close all connections; what is under way fails. Closing twice does nothing."""
        if self._closed:
            return
        self._closed = True
        self._wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(1.0)
        else:
            self._close_sockets()

    def __del__(self) -> None:
        # Of a communicator that was never closed: without a thread nothing else closes the sockets.
        if self._thread is None and self._wakeup >= 0:
            self._close_sockets()

    def drop(self) -> None:
        """Close the descriptors that a fork inherited; the parent's connections stay."""
        self._closed, self._thread = True, None
        self._close_sockets()

    def _request(self, one: Send | Receive) -> None:
        self._requests.append(one)
        self._start()
        self._wake()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._serve, name="choreo-messages", daemon=True)
                self._thread.start()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wakeup, 1)

    # What follows runs on the thread, which alone uses the connections.

    def _serve(self) -> None:
        while not self._closed:
            try:
                self._poll()
            except Exception as error:  # a bug of ours must reach those that wait
                self._fail_all(ChoreoError(f"the thread for messages has failed: {error!r}"))
                raise
        self._fail_all(CommunicatorClosed("the communicator was closed while this was under way"))
        self._close_sockets()

    def _poll(self) -> None:
        """Wait for events, and handle them."""
        incoming, outgoing = self._incoming, self._outgoing
        watch = select.poll()
        watch.register(self._wakeup, select.POLLIN)
        watch.register(incoming.listener, select.POLLIN)
        for descriptor in incoming.connections:
            watch.register(descriptor, select.POLLIN)
        for peer, out in outgoing.connections.items():
            if peer not in self._gone:
                writes = out.connecting or (out.handshake is None and outgoing.queues[peer])
                watch.register(out.socket, (select.POLLOUT if writes else 0) | (select.POLLIN if out.handshake else 0))
        events = dict(watch.poll(self._wait_ms()))
        if self._wakeup in events:
            os.eventfd_read(self._wakeup)
        while self._requests:
            self._begin(self._requests.popleft())
        if incoming.listener.fileno() in events:
            incoming.accept()
        for descriptor in [descriptor for descriptor in events if descriptor in incoming.connections]:
            incoming.read(incoming.connections[descriptor])
        for peer, out in list(outgoing.connections.items()):
            self._handle_outgoing(peer, out, events.get(out.socket.fileno(), 0))
        self._handle_ended()
        self._expire()

    def _handle_outgoing(self, peer: int, out: OutgoingConnection, events: int) -> None:
        try:
            if events & (select.POLLHUP | select.POLLERR):
                self._lose(peer)
            elif out.handshake is not None:
                if events:
                    self._outgoing.continue_handshake(peer, out, out.handshake)
            elif self._outgoing.queues[peer]:
                self._outgoing.write(peer, out.socket)
        except (OSError, RendezvousError):
            self._lose(peer)

    def _wait_ms(self) -> float | None:
        if self._requests:
            return 0
        ends = [one.deadline_s for one in self._under_way()]
        ends += [one.expires_s for one in self._incoming.connections.values() if one.peer < 0]
        return max(0.0, (min(ends) - time.monotonic()) * 1e3 + 1) if ends else None

    def _begin(self, one: Send | Receive) -> None:
        if isinstance(one, Receive) and self._matcher.match_kept(one):
            return
        if one.peer == self._rank:
            self._begin_local(one)
        elif isinstance(one, Send) and one.peer in self._outgoing.truncated:
            one.work.end(error=self._failure(one, "did not take an earlier message before its deadline"))
        elif one.peer in self._gone:
            one.work.end(error=self._failure(one, GONE))
        else:
            if isinstance(one, Send):
                self._outgoing.queues[one.peer].append(one)
            else:
                self._matcher.wait(one)
            try:
                self._outgoing.connect(one.peer, one.deadline_s)
            except OSError:
                self._lose(one.peer)

    def _begin_local(self, one: Send | Receive) -> None:
        """A message from this rank to itself."""
        if isinstance(one, Receive):
            self._matcher.wait(one)
            return
        dtype, tag, length = parse_header(bytes(one.rest.popleft()))
        message = Message(tag, dtype, length, length, pieces=[bytes(part) for part in one.rest])
        one.work.end()
        self._matcher.complete(self._rank, message)

    def _handle_ended(self) -> None:
        """Connections on which messages came in have ended."""
        while self._incoming.ended:
            one = self._incoming.ended.pop(0)
            if one.message is not None and one.message.receive is not None:
                receive = one.message.receive
                receive.work.end(error=self._failure(receive, "died in the middle of a message"))
            self._lose(one.peer)

    def _lose(self, peer: int) -> None:
        """A rank is gone. What it sent before is read first."""
        if peer in self._gone:
            return
        self._incoming.read_from(peer)
        self._gone.add(peer)
        for send in self._outgoing.queues.pop(peer, ()):
            send.work.end(error=self._failure(send, GONE))
        for receive in self._matcher.remove_waiting(lambda receive: receive.peer == peer):
            receive.work.end(error=self._failure(receive, GONE))

    def _expire(self) -> None:
        now_s = time.monotonic()
        for peer in {send.peer for send in self._outgoing.sends() if send.deadline_s < now_s}:
            for send in self._outgoing.truncate(peer):
                send.work.end(error=self._failure(send, "did not take it before the deadline"))
        for receive in self._matcher.remove_waiting(lambda receive: receive.deadline_s < now_s):
            receive.work.end(error=self._failure(receive, "sent nothing before the deadline"))
        self._incoming.expire(now_s)
        for receive in [receive for receive in self._incoming.receives() if receive.deadline_s < now_s]:
            self._incoming.take_back(receive)
            receive.work.end(error=self._failure(receive, "sent only a part before the deadline"))

    def _failure(self, one: Send | Receive, reason: str) -> PeerFailure:
        name = "send" if isinstance(one, Send) else "recv"
        return PeerFailure(f"{one.work.what}: rank {one.peer} {reason}", ranks=frozenset({one.peer}), collective=name)

    def _fail_all(self, error: ChoreoError) -> None:
        for one in (*self._requests, *self._under_way()):
            one.work.end(error=error)

    def _under_way(self) -> Iterator[Send | Receive]:
        yield from self._outgoing.sends()
        yield from self._matcher.waiting()
        yield from self._incoming.receives()

    def _close_sockets(self) -> None:
        self._incoming.close()
        self._outgoing.close()
        with contextlib.suppress(OSError):
            os.close(self._wakeup)
        self._wakeup = -1
