"""How ranks of one communicator that are on different machines get connected: who listens, who calls, what is proved.

Every rank listens on an address of its own while they connect. Of two ranks the higher one calls: a control connection
and some streams. On each of them both sides prove that they hold the communicator's key, which is never sent, but
derived on every rank from the job's secret and from numbers that all of them drew (`meeting.handshake`); then the
caller says, sealed, which rank and which connection it is. A stranger has a few seconds and a few dozen bytes.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from choreo.errors import MeetingError
from choreo.run.execute.failures import Where
from choreo.run.transport.frames import OVERHEAD_BYTES, FrameReader, FrameWriter, Kind
from choreo.run.transport.handshake import HANDSHAKE_S, MAGIC, NONCE_BYTES, VERDICT_BYTES, Doorkeeper, Visitor

__all__ = ["Doorway", "Links", "Network", "Sealed", "address_toward", "dial", "lost", "tune"]

STREAMS = 4
# Between machines that are near each other little under way is enough, and what is under way stays in cache: with these
# a broadcast of 64 MiB took 20 ms between two namespaces, and 55 ms with the buffers that the system chooses.
SEND_BYTES, RECEIVE_BYTES, NEAR_S = 128 << 10, 1 << 20, 1e-3
_RTT_AT = 68  # of the smoothed round trip in `struct tcp_info`, in microseconds
SHORTEST_TIMEOUT_S, KEEPALIVE_S = 5.0, 10
MAX_STRANGERS = 128
_WHO = struct.Struct(">II")  # rank, and which connection: 0 is control, the rest are streams
WHO_BYTES = OVERHEAD_BYTES + _WHO.size


@dataclass(frozen=True, slots=True)
class Network:
    """What a rank needs to be reached from other machines: an address of its own, and what only its job knows."""

    address: str
    secret: bytes = field(repr=False)

    def derived(self, purpose: str, numbers: Iterable[bytes] = ()) -> bytes:
        """A key for one purpose, the same on all ranks that have the same numbers."""
        return hmac.digest(self.secret, b"choreo network 1: " + purpose.encode() + b"\0" + b"".join(numbers), "sha256")


@dataclass(slots=True, eq=False)
class Sealed:
    """A connection on which both sides have proved themselves, and what seals each direction."""

    socket: socket.socket
    reader: FrameReader
    writer: FrameWriter


@dataclass(slots=True)
class Links:
    """The connections to the ranks of other machines."""

    control: dict[int, Sealed] = field(default_factory=dict)
    streams: dict[int, list[socket.socket]] = field(default_factory=dict)

    def add(self, rank: int, which: int, made: Sealed) -> bool:
        """Take in a connection; whether it was still missing."""
        if which == 0 and rank not in self.control:
            self.control[rank] = made
            return True
        mine = self.streams.setdefault(rank, [])
        if which != len(mine) + 1 or which > STREAMS:
            return False
        mine.append(made.socket)
        return True

    def missing(self, ranks: Iterable[int]) -> list[int]:
        """The ranks whose connections are not all there."""
        return [rank for rank in ranks if rank not in self.control or len(self.streams.get(rank, ())) < STREAMS]

    def close(self) -> None:
        """Hang up."""
        for one in self.control.values():
            one.socket.close()
        for stream in (one for several in self.streams.values() for one in several):
            stream.close()


class Doorway:
    """Where a rank listens while a communicator connects; one thread lets the higher ranks in."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            self._listener = socket.create_server((address, 0), family=family, backlog=socket.SOMAXCONN)
        except OSError as error:
            raise MeetingError(
                f"this rank cannot listen at {address}, where the other machines are to reach it: {error.strerror}"
            ) from None
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread: threading.Thread | None = None
        self._key, self._timeout_s = b"", 0.0
        self._expected: list[int] = []
        self._links = Links()

    def connect(self, me: Where, places: Sequence[Where], ports: Sequence[int], key: bytes, end_s: float) -> Links:
        """Call all lower ranks in `places`, and let the higher ones in; those may come until `finish`."""
        self._key, self._timeout_s = key, max(SHORTEST_TIMEOUT_S, end_s - time.monotonic())
        self._expected = [place.rank for place in places if place.rank > me.rank]
        if self._expected:
            self._thread = threading.Thread(target=self._serve, name="choreo-doorway", daemon=True)
            self._thread.start()
        lower = Links()
        try:
            for place, port in zip(places, ports, strict=True):
                for which in range(STREAMS + 1) if place.rank < me.rank else ():
                    made = dial(place, port, key, end_s)
                    lower.add(place.rank, which, made)
                    tune(made.socket, self._timeout_s)
                    made.socket.sendall(made.writer.seal(Kind.JOIN, _WHO.pack(me.rank, which)))
                    made.socket.setblocking(False)
        except OSError as error:
            lower.close()
            raise lost(place, error) from None
        except BaseException:
            lower.close()
            raise
        return lower

    def finish(self, lower: Links, places: Sequence[Where], end_s: float) -> Links:
        """All connections, once all have come: every rank has made its own by now, so that is at once."""
        if self._thread is not None:
            self._thread.join(max(0.0, end_s - time.monotonic()))
        missing = self._links.missing(self._expected)
        if missing:
            lower.close()
            place = next(place for place in places if place.rank == missing[0])
            raise lost(place, ConnectionResetError("it did not call in time"))
        self._links.control |= lower.control
        self._links.streams |= lower.streams
        found, self._links = self._links, Links()
        return found

    def close(self) -> None:
        """Let nobody in any more, and hang up on who was; twice is as good as once."""
        if self._bell < 0:
            return
        os.eventfd_write(self._bell, 1)
        if self._thread is not None:
            self._thread.join()
        self._listener.close()
        os.close(self._bell)
        self._bell = -1
        self._links.close()

    def _serve(self) -> None:
        strangers: dict[socket.socket, _Stranger] = {}  # oldest first
        with selectors.DefaultSelector() as selector:
            selector.register(self._bell, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            while self._links.missing(self._expected):
                ready = {key.fileobj for key, _ in selector.select(1.0)}
                if self._bell in ready:
                    break
                gone = [one for one in strangers.values() if one.link in ready and not self._hear(one)]
                gone += [one for one in strangers.values() if one.over_s < time.monotonic() and one not in gone]
                for one in gone:
                    del strangers[one.link]
                    selector.unregister(one.link)
                    if not one.let_in:
                        one.link.close()
                if self._listener in ready and len(strangers) < MAX_STRANGERS:
                    self._accept(strangers, selector)
        for one in strangers.values():
            one.link.close()

    def _accept(self, strangers: dict[socket.socket, _Stranger], selector: selectors.BaseSelector) -> None:
        with contextlib.suppress(OSError):
            link, _ = self._listener.accept()
            link.setblocking(False)
            stranger = _Stranger(link, Doorkeeper(self._key))
            strangers[link] = stranger
            selector.register(link, selectors.EVENT_READ)
            tune(link, self._timeout_s)
            link.send(stranger.door.greeting)

    def _hear(self, one: _Stranger) -> bool:
        """What a stranger says; whether more of it is to be heard."""
        try:
            wanted = one.door.needs_bytes if one.sealed is None else WHO_BYTES - one.heard
            data = one.link.recv(wanted)
            if not data:
                return False
            if one.sealed is None:
                accepted = one.door.feed(data)
                if accepted is not None:
                    verdict, reader, writer = accepted
                    one.sealed = Sealed(one.link, reader, writer)
                    one.link.send(verdict)
                return True
            one.heard += len(data)
            for frame in one.sealed.reader.feed(data):
                if frame.kind == Kind.JOIN and len(frame.payload) == _WHO.size:
                    rank, which = _WHO.unpack(frame.payload)
                    one.let_in = rank in self._expected and self._links.add(rank, which, one.sealed)
        except BlockingIOError:
            return True
        except (OSError, MeetingError):
            return False
        return one.heard < WHO_BYTES


@dataclass(slots=True, eq=False)
class _Stranger:
    link: socket.socket
    door: Doorkeeper
    over_s: float = field(default_factory=lambda: time.monotonic() + HANDSHAKE_S)
    sealed: Sealed | None = None
    heard: int = 0
    let_in: bool = False


def dial(place: Where, port: int, key: bytes, end_s: float) -> Sealed:
    """A connection to a rank that listens, once each side has proved itself to the other; an OSError if that fails."""
    link = socket.socket(socket.AF_INET6 if ":" in place.address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        link.settimeout(_left_s(end_s))
        link.connect((place.address, port))
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        visitor = Visitor(key)
        visitor.recognise(_exactly(link, len(MAGIC), end_s))
        link.sendall(visitor.answer(_exactly(link, NONCE_BYTES, end_s)))
        reader, writer = visitor.accept(_exactly(link, VERDICT_BYTES, end_s))
        return Sealed(link, reader, writer)
    except BaseException:
        link.close()
        raise


def address_toward(host: str, port: int) -> str:
    """The address of this machine from which another is reached."""
    family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)  # sends nothing
        return str(probe.getsockname()[0])


def tune(link: socket.socket, timeout_s: float) -> None:
    """What every connection wants: no waiting for more to send, and an end of it if the other side is gone for good."""
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, min(2**31 - 1, int(timeout_s * 1000)))
    told = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT_AT + 4)
    if len(told) == _RTT_AT + 4 and int.from_bytes(told[_RTT_AT:], sys.byteorder) < NEAR_S * 1e6:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)


def lost(place: Where, error: OSError) -> MeetingError:
    """A peer was lost while the ranks of a communicator connected to each other."""
    reason = error.strerror or str(error) or type(error).__name__
    return MeetingError(f"{place} was lost while the ranks connected: {reason}", ranks=(place.rank,))


def _exactly(link: socket.socket, size_bytes: int, end_s: float) -> bytes:
    data = b""
    while len(data) < size_bytes:
        link.settimeout(_left_s(end_s))
        more = link.recv(size_bytes - len(data))
        if not more:
            raise ConnectionResetError("it hung up")
        data += more
    return data


def _left_s(end_s: float) -> float:
    return max(1e-3, end_s - time.monotonic())
