"""Control connections, over which ranks on different hosts tell each other about failures.

All frames are sealed. In normal operation only PROGRESS frames are sent, so any other frame tells the executor that
something is wrong. There is no thread: the executor polls while it waits, and so does a rank in a consensus.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import termios
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from choreo.run.consensus.status import Status
from choreo.run.execute.failures import ALTERED, PEER_DIED, PEER_GAVE_UP
from choreo.run.transport.dial import AuthenticatedSocket
from choreo.run.transport.errors import FrameError
from choreo.run.transport.frames import FrameKind, SealedFrame

__all__ = [
    "UNACKNOWLEDGED_S",
    "Accept",
    "Accepted",
    "ControlChannel",
    "ControlConnection",
    "Decision",
    "HostReport",
    "Prepare",
    "Promised",
    "Refused",
    "StatusUpdate",
]

MAX_MESSAGE_BYTES = 64 << 10
CHUNK_BYTES = 64 << 10
LONGEST_LOOK_S = 0.02
UNACKNOWLEDGED_S = 0.25  # a kernel acknowledges what it receives within 40 ms
CLOSE_S = 0.5  # how long closing waits for other hosts to acknowledge what was sent
CLOSE_PAUSE_S = 0.0005
_GOODBYE = struct.Struct("<IIQ")  # the outcome, the culprit, the call
_TCP_INFO = struct.Struct("@2xB5xI")  # the start of `struct tcp_info`: tcpi_retransmits, and tcpi_rto in microseconds
_PROGRESS = struct.Struct("<BQ")  # 0: has the result of the call; 1: has returned from it


class StatusUpdate(msgspec.Struct, array_like=True, frozen=True, tag="status"):
    """A rank's status, which the ranks on its host read in its segment."""

    status: Status


class HostReport(msgspec.Struct, array_like=True, frozen=True, tag="host"):
    """A rank's report on its host: the dead and stopped ranks, and the last calls of each, with their texts."""

    dead: tuple[int, ...]
    stopped: tuple[int, ...]
    calls: tuple[tuple[int, int, str], ...]


class Prepare(msgspec.Struct, array_like=True, frozen=True, tag="prepare"):
    """A proposer asks a host to promise a ballot (`paxos`)."""

    topic: str
    ballot: int


class Promised(msgspec.Struct, array_like=True, frozen=True, tag="promised"):
    """A host has promised a ballot; before that it accepted this value in that ballot."""

    topic: str
    ballot: int
    accepted: int
    value: bytes


class Accept(msgspec.Struct, array_like=True, frozen=True, tag="accept"):
    """A proposer asks a host to accept a value."""

    topic: str
    ballot: int
    value: bytes


class Accepted(msgspec.Struct, array_like=True, frozen=True, tag="accepted"):
    """A host has accepted the value of a ballot."""

    topic: str
    ballot: int


class Refused(msgspec.Struct, array_like=True, frozen=True, tag="refused"):
    """A host has promised a higher ballot."""

    topic: str
    ballot: int
    promised: int


class Decision(msgspec.Struct, array_like=True, frozen=True, tag="decision"):
    """The outcome of a consensus."""

    topic: str
    value: bytes


Reply: TypeAlias = Promised | Accepted | Refused
Message: TypeAlias = StatusUpdate | HostReport | Prepare | Accept | Reply | Decision
_DECODER = msgspec.msgpack.Decoder(Message)


class ControlConnection:
    """The control connection to one rank, and what was received on it."""

    def __init__(self, sealed: AuthenticatedSocket) -> None:
        self.socket, self._reader, self._writer = sealed.socket, sealed.reader, sealed.writer
        self._reader.limit_bytes = MAX_MESSAGE_BYTES
        self.socket.setblocking(False)
        self._outgoing = bytearray()
        self._found: list[Message] = []
        self._lock = threading.Lock()  # the executor's thread polls as well
        self.gave_up = (0, 0, 0)  # why its executor gave up, which rank it blames, and in which call
        self.progress = [0, 0]  # the last call that it has reduced, and the last that it has returned from
        self.lost = False  # the rank has died or left, or the data was altered
        self.altered = False  # the data was altered
        self._looked_s, self._unacknowledged_s = 0.0, 0.0

    def send(self, message: Message) -> None:
        """Queue a message, and write what the socket takes."""
        self._send(FrameKind.BLOB, msgspec.msgpack.encode(message))

    def send_progress(self, which: int, call: int) -> None:
        """Report that this rank has the result of a call (0), or has returned from it (1)."""
        self._send(FrameKind.PROGRESS, _PROGRESS.pack(which, call))

    def say_goodbye(self, outcome: int, culprit: int, call: int) -> None:
        """Report that this rank's executor has given up or left: why, which rank is to blame, and in which call."""
        self._send(FrameKind.GOODBYE, _GOODBYE.pack(outcome, culprit, call))

    def flush(self) -> None:
        """Write what is queued, as far as the socket takes it."""
        with self._lock:
            self._flush()

    def _send(self, kind: FrameKind, payload: bytes) -> None:
        with self._lock:
            self._outgoing += self._writer.seal(kind, payload)
            self._flush()

    def _flush(self) -> None:
        try:
            while self._outgoing and not self.lost:
                sent = self.socket.send(self._outgoing[:CHUNK_BYTES], socket.MSG_NOSIGNAL)
                del self._outgoing[:sent]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._outgoing.clear()  # but what it sent before it left may still be there to read

    def receive(self) -> list[Message]:
        """The messages that have arrived."""
        with self._lock:
            self._read()
            found, self._found = self._found, []
            return found

    def look(self) -> tuple[int, int, int, int]:
        """The reason why nothing more comes from this rank (0: it may), why it gave up, the rank it blames, and the
        call.

        The executor calls this. A rank that said goodbye has done its part of all earlier calls.
        """
        with self._lock:
            self._read()
            ended = ALTERED if self.altered else PEER_DIED if self.lost else PEER_GAVE_UP if self._found else 0
            return (0 if self.gave_up[0] and not self.altered else ended, *self.gave_up)

    def is_cut_off(self) -> bool:
        """Whether something was sent that the other host's kernel has not acknowledged."""
        if self.lost:
            return False
        with contextlib.suppress(OSError):
            answer = fcntl.ioctl(self.socket.fileno(), termios.TIOCOUTQ, bytes(4))
            return bool(self._outgoing) or struct.unpack("i", answer)[0] > 0
        return True

    def unacknowledged_s(self) -> float:
        """The time since the other host's kernel last acknowledged data: as seen by this process, or by its kernel.

        Each poll adds at most LONGEST_LOOK_S: a process that got no core may have sent something only just now. The
        kernel keeps counting meanwhile, and knows how often it has retransmitted.
        """
        now_s, before_s = time.monotonic(), self._looked_s
        self._looked_s = now_s
        self._unacknowledged_s += min(now_s - before_s, LONGEST_LOOK_S)
        if not self.is_cut_off():
            self._unacknowledged_s = 0.0
            return 0.0
        return max(self._unacknowledged_s, self._retransmitting_s())

    def _retransmitting_s(self) -> float:
        """For how long the kernel has retransmitted without an answer; its timeout doubles each time."""
        with contextlib.suppress(OSError):
            info = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
            times, timeout_us = _TCP_INFO.unpack(info)
            return float(timeout_us * (1 - 0.5**times)) * 1e-6
        return 0.0

    def check(self) -> None:
        """Find out whether the connection has ended, and leave what has arrived for the executor."""
        try:
            self.lost = self.lost or not self.socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.lost = True

    def finish(self) -> bool:
        """Write what is queued, and end the stream after it. Returns whether everything was acknowledged."""
        self.flush()
        if not self._outgoing:
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)
        return not self.is_cut_off()

    def close(self) -> None:
        """Close the socket. Closing a socket with unread data resets the connection, so it is read first."""
        with self._lock:
            self._read()
            self.lost = True
            self.socket.close()

    def _read(self) -> None:
        while not self.lost:
            try:
                data = self.socket.recv(CHUNK_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            self.lost = not data
            try:
                for frame in self._reader.feed(data):
                    self._handle(frame)
            except FrameError:
                self.lost = self.altered = True
            except (msgspec.DecodeError, struct.error, UnicodeDecodeError, RecursionError):
                self.lost = True

    def _handle(self, frame: SealedFrame) -> None:
        if frame.kind == FrameKind.GOODBYE:
            outcome, culprit, call = _GOODBYE.unpack(frame.payload)
            self.gave_up = (outcome, culprit, call)
        elif frame.kind == FrameKind.PROGRESS:
            which, call = _PROGRESS.unpack(frame.payload)
            self.progress[which & 1] = call
        else:
            self._found.append(_DECODER.decode(frame.payload))


class ControlChannel:
    """The control connections to all ranks on other hosts, and what those ranks have said."""

    def __init__(self, connections: dict[int, ControlConnection]) -> None:
        self.connections = connections
        self.statuses: dict[int, Status] = {}
        self.calls: dict[int, dict[int, str]] = {}  # by rank and number
        self.decisions: dict[str, bytes] = {}
        self.topics: set[str] = set()  # during a consensus
        self.answer: Callable[[int, Prepare | Accept], None] = lambda _, __: None  # for this host, to a proposer
        self._replies: dict[str, list[tuple[int, Reply]]] = {}
        self._dead: set[int] = set()
        self._stopped: dict[int, tuple[int, ...]] = {}  # as each of them reports

    def poll(self) -> None:
        """Receive what has arrived, and send what could not be sent before."""
        for rank, connection in self.connections.items():
            connection.flush()
            for message in connection.receive():
                self._handle(rank, message)

    def check(self) -> None:
        """Find out which connections have ended, during normal operation."""
        for connection in self.connections.values():
            connection.check()

    def send(self, message: Message) -> None:
        """Send a message to all of them."""
        for connection in self.connections.values():
            if not connection.lost:
                connection.send(message)

    def send_to(self, rank: int, message: Message) -> None:
        """Send a message to one of them."""
        if not self.connections[rank].lost:
            self.connections[rank].send(message)

    def take_replies(self, topic: str) -> list[tuple[int, Reply]]:
        """The replies to this rank's proposals on a topic since the last call."""
        return self._replies.pop(topic, [])

    def is_cut_off(self, rank: int) -> bool:
        """Whether this rank is on another host, whose kernel has not acknowledged what was sent to it."""
        return rank in self.connections and self.connections[rank].is_cut_off()

    def status_of(self, rank: int) -> Status:
        """The status that a rank has published."""
        reduced, returned = self.connections[rank].progress
        status = self.statuses.get(rank, Status())
        if status.reduced >= reduced and status.returned >= returned:
            return status
        reduced, returned = max(status.reduced, reduced), max(status.returned, returned)
        return msgspec.structs.replace(status, reduced=reduced, returned=returned)

    def dead(self) -> Iterable[int]:
        """Ranks whose connection has ended, or that ranks on their host report dead."""
        return self._dead | {rank for rank, connection in self.connections.items() if connection.lost}

    def is_stopped(self, rank: int) -> bool:
        """Whether ranks on its host report that a rank is stopped."""
        return any(rank in stopped for stopped in self._stopped.values())

    def close(self) -> None:
        """Close all connections, once the other hosts have acknowledged what was sent.

        A decision may be the last message. A rank that does not get it would believe that it is left out.
        """
        waiting = [connection for connection in self.connections.values() if not connection.lost]
        waiting = [connection for connection in waiting if connection.unacknowledged_s() < UNACKNOWLEDGED_S]
        end_s = time.monotonic() + CLOSE_S
        while (
            waiting := [connection for connection in waiting if not connection.finish()]
        ) and time.monotonic() < end_s:
            time.sleep(CLOSE_PAUSE_S)
        for connection in self.connections.values():
            connection.close()

    def _handle(self, rank: int, message: Message) -> None:
        if isinstance(message, StatusUpdate):
            self.statuses[rank] = message.status
        elif isinstance(message, HostReport):
            self._dead |= set(message.dead) & self.connections.keys()
            self._stopped[rank] = message.stopped
            for other, call, text in message.calls:
                self.calls.setdefault(other, {})[call] = text
        elif isinstance(message, Prepare | Accept):
            self.topics.add(message.topic)
            self.answer(rank, message)
        elif isinstance(message, Decision):
            self.decisions.setdefault(message.topic, message.value)
        else:
            self._replies.setdefault(message.topic, []).append((rank, message))
