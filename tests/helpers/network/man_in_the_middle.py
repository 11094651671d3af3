"""Somebody on the path between two hosts: every TCP connection that a process makes goes through a relay."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from choreo.run.transport.frames import FrameKind, FrameWriter
from choreo.run.transport.handshake import ANSWER_BYTES

CONNECT, SEAL = socket.socket.connect, FrameWriter.seal
CLIENT = struct.Struct(">II")  # rank, and which connection: 0 is control, the rest are streams
UP, DOWN = "up", "down"  # to the host that was dialled, and back
# What is done to bytes on their way; the second argument is what passed before on this connection in this direction.
Change = Callable[[bytes, bytes], bytes]


def flipped(data: bytes, _: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


def dropped(data: bytes, _: bytes) -> bytes:
    return data[: len(data) // 2] + data[len(data) // 2 + 1 :]


def inserted(data: bytes, _: bytes) -> bytes:
    return data[: len(data) // 2] + b"!" + data[len(data) // 2 :]


def repeated(data: bytes, _: bytes) -> bytes:
    return data + data


def replayed(data: bytes, before: bytes) -> bytes:
    """What passed before takes the place of what passes now."""
    return (before + data)[-2 * len(data) : -len(data)] + data


def swapped(data: bytes, _: bytes) -> bytes:
    return data[len(data) // 2 :] + data[: len(data) // 2]


def truncated(data: bytes, _: bytes) -> bytes:
    """Half of it; the relay then closes the connection."""
    return data[: len(data) // 2]


CHANGES: dict[str, Change] = {
    one.__name__: one for one in (flipped, dropped, inserted, repeated, replayed, swapped, truncated)
}


@dataclass
class Plan:
    """What to do to which kinds: rendezvous, control, streams, messages; "connection" before it is known which."""

    kinds: tuple[str, ...] = ()
    way: str = UP
    change: Change | None = None
    skip_bytes: int = 0  # that pass unchanged, of each connection
    at_least_bytes: int = 0  # shorter pieces pass unchanged


@dataclass
class Path:
    """One connection. What the client says of itself after its handshake tells control and streams apart.

    That is encrypted, so this knows it from `said`: the frames in which a client of this process says who it is.
    """

    kind: str
    said: dict[bytes, int]  # by what goes over the wire: which connection it is

    def read(self, sent: bytes) -> None:
        if self.kind == "connection" and len(sent) > ANSWER_BYTES:
            which = next((which for frame, which in self.said.items() if sent[ANSWER_BYTES:].startswith(frame)), None)
            if which is not None:
                self.kind = "streams" if which else "control"


@dataclass
class Relay:
    """Forwards bytes; changes them once, when there is a plan."""

    rendezvous_port: int
    plan: Plan = field(default_factory=Plan)
    changed: threading.Event = field(default_factory=threading.Event)
    passed: list[bytes] | None = None  # what has passed since this was made a list
    frames: list[tuple[FrameKind, bytes]] = field(default_factory=list)  # that this process has sealed since it began
    _said: dict[bytes, int] = field(default_factory=dict)
    _ports: list[int] = field(default_factory=list)  # in the order in which they were first dialled
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def install(self) -> None:
        """Send all connections of this process through the relay."""
        relay = self

        def connect(sock: socket.socket, target: tuple[str, int]) -> None:
            if sock.family == socket.AF_INET and sock.type & socket.SOCK_STREAM and sock.type != socket.SOCK_DGRAM:
                target = ("127.0.0.1", relay.open(target))
            CONNECT(sock, target)

        def seal(writer: FrameWriter, kind: FrameKind, payload: bytes) -> bytes:
            sealed = SEAL(writer, kind, payload)
            relay.frames.append((kind, payload))
            if kind == FrameKind.JOIN and len(payload) == CLIENT.size:
                relay._said[sealed] = CLIENT.unpack(payload)[1]
            return sealed

        socket.socket.connect = connect  # type: ignore[method-assign, assignment]
        FrameWriter.seal = seal  # type: ignore[method-assign, assignment]

    def begin(self, plan: Plan) -> None:
        """From now on this plan."""
        with self._lock:
            self.plan = plan
            self.changed.clear()
            self._ports.clear()

    def open(self, target: tuple[str, int]) -> int:
        """The port of a relay to this target."""
        listener = socket.create_server(("127.0.0.1", 0))
        with self._lock:
            kind = self._kind(target[1])
        threading.Thread(target=self._serve, args=(listener, target, kind), daemon=True).start()
        return int(listener.getsockname()[1])

    def _kind(self, port: int) -> str:
        """The first port beside the rendezvous is for the control connection and the streams, the next for messages."""
        if port == self.rendezvous_port:
            return "rendezvous"
        if port not in self._ports:
            self._ports.append(port)
        return "messages" if self._ports.index(port) else "connection"

    def _serve(self, listener: socket.socket, target: tuple[str, int], kind: str) -> None:
        near, _ = listener.accept()
        listener.close()
        far = socket.socket()
        try:
            CONNECT(far, target)
        except OSError:
            near.close()
            return
        for one in (near, far):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        path = Path(kind, self._said)
        for way, source, sink in ((UP, near, far), (DOWN, far, near)):
            threading.Thread(target=self._forward, args=(path, way, source, sink), daemon=True).start()

    def _forward(self, path: Path, way: str, source: socket.socket, sink: socket.socket) -> None:
        passed, skipped, is_cut = b"", 0, False
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                if way == UP:
                    path.read(passed + data)
                with self._lock:
                    plan = self.plan
                    if self.passed is not None:
                        self.passed.append(data)
                    changes = path.kind in plan.kinds and way == plan.way and not self.changed.is_set()
                    changes = changes and plan.change is not None and skipped >= plan.skip_bytes
                    changes = changes and len(data) >= plan.at_least_bytes
                    if changes:
                        self.changed.set()
                out = plan.change(data, passed) if changes and plan.change is not None else data
                sink.sendall(out)
                is_cut = changes and plan.change is truncated
                if is_cut:
                    break
                passed, skipped = (passed + data)[-(4 << 20) :], skipped + len(data)
        # The other direction may still have something to deliver.
        ends = (
            {source: socket.SHUT_RDWR, sink: socket.SHUT_RDWR}
            if is_cut
            else {source: socket.SHUT_RD, sink: socket.SHUT_WR}
        )
        for one, how in ends.items():
            with contextlib.suppress(OSError):
                one.shutdown(how)
