"""What ranks on different hosts tell each other about failures, over their control connections.

While all is well nothing is sent there but PROGRESS frames, so anything else that arrives tells the executor that
something is wrong. Messages are sealed. Only a rank that takes part in a consensus reads them: there is no thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import termios
from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from choreo.errors import RendezvousError
from choreo.run.consensus.status import Status
from choreo.run.execute.layout import FRAME_BYTES, GOODBYE, PROGRESS, SEALED, Frame
from choreo.run.transport.dial import AuthenticatedSocket
from choreo.run.transport.frames import FrameKind

__all__ = ["ControlChannel", "ControlConnection", "Decision", "HostReport", "Proposal", "StatusUpdate"]

MAX_MESSAGE_BYTES = 64 << 10
CHUNK_BYTES = 64 << 10


class StatusUpdate(msgspec.Struct, array_like=True, frozen=True, tag="status"):
    """A rank's status, which the ranks on its host read in its segment."""

    status: Status


class HostReport(msgspec.Struct, array_like=True, frozen=True, tag="host"):
    """What a rank sees on its host: the dead ranks, and the last call that each rank began, with its text."""

    dead: tuple[int, ...]
    calls: tuple[tuple[int, int, str], ...]


class Proposal(msgspec.Struct, array_like=True, frozen=True, tag="proposal"):
    """The value that a host holds in one round of a consensus."""

    topic: str
    number: int
    value: bytes


class Decision(msgspec.Struct, array_like=True, frozen=True, tag="decision"):
    """The outcome of a consensus."""

    topic: str
    value: bytes


Message: TypeAlias = StatusUpdate | HostReport | Proposal | Decision
_DECODER = msgspec.msgpack.Decoder(Message)


class ControlConnection:
    """The control connection to one rank, and what came over it."""

    def __init__(self, sealed: AuthenticatedSocket) -> None:
        self.socket, self._reader, self._writer = sealed.socket, sealed.reader, sealed.writer
        self._reader.limit_bytes = MAX_MESSAGE_BYTES
        self.socket.setblocking(False)
        self._incoming, self._outgoing = bytearray(), bytearray()
        self.gave_up = (0, 0, 0)  # why its executor gave up, which rank it blames, and in which call
        self.progress = [0, 0]  # the last call that it has reduced, and the last that it has returned from
        self.lost = False  # the rank has died or left, or has broken the protocol

    def send(self, message: Message) -> None:
        """Queue a message, and write what the socket takes."""
        sealed = self._writer.seal(FrameKind.BLOB, msgspec.msgpack.encode(message))
        self._outgoing += Frame(SEALED, 0, 0, 0, len(sealed)).pack() + sealed
        self.flush()

    def send_progress(self, which: int, call: int) -> None:
        """Tell that this rank has reduced a call (0), or returned from it (1)."""
        self._outgoing += Frame(PROGRESS, which, call, 0, 0).pack()
        self.flush()

    def flush(self) -> None:
        """Write what is queued, as far as the socket takes it."""
        try:
            while self._outgoing and not self.lost:
                sent = self.socket.send(self._outgoing[:CHUNK_BYTES], socket.MSG_NOSIGNAL)
                del self._outgoing[:sent]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._outgoing.clear()  # but what it sent before it went may still be there to read

    def receive(self) -> list[Message]:
        """The messages that have arrived."""
        found: list[Message] = []
        while not self.lost:
            try:
                data = self.socket.recv(CHUNK_BYTES)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                data = b""
            self.lost = not data
            self._incoming += data
            try:
                self._parse(found)
            except (RendezvousError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self.lost = True
        return found

    def is_cut_off(self) -> bool:
        """Whether something was sent that the other host's kernel has not acknowledged."""
        if self.lost:
            return False
        with contextlib.suppress(OSError):
            answer = fcntl.ioctl(self.socket.fileno(), termios.TIOCOUTQ, bytes(4))
            return bool(self._outgoing) or struct.unpack("i", answer)[0] > 0
        return True

    def check(self) -> None:
        """Find out whether the connection has ended, and leave what came for the executor to see."""
        try:
            self.lost = self.lost or not self.socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.lost = True

    def close(self) -> None:
        """Close the socket."""
        self.lost = True
        self.socket.close()

    def _parse(self, found: list[Message]) -> None:
        while len(self._incoming) >= FRAME_BYTES:
            frame = Frame.unpack(self._incoming[:FRAME_BYTES])
            end = FRAME_BYTES
            if frame.magic == GOODBYE:
                self.gave_up = (frame.number, frame.signature & 0xFFFFFFFF, frame.call)
            elif frame.magic == PROGRESS:
                self.progress[frame.number & 1] = frame.call
            elif frame.magic == SEALED and frame.length <= 2 * MAX_MESSAGE_BYTES:
                end += frame.length
                if len(self._incoming) < end:
                    return
                frames = self._reader.feed(bytes(self._incoming[FRAME_BYTES:end]))
                found += [_DECODER.decode(one.payload) for one in frames]
            else:
                raise RendezvousError("a control frame of unknown kind came")
            del self._incoming[:end]


class ControlChannel:
    """The control connections to all ranks on other hosts, and what those ranks have said."""

    def __init__(self, connections: dict[int, ControlConnection]) -> None:
        self.connections = connections
        self.statuses: dict[int, Status] = {}
        self.calls: dict[int, tuple[int, str]] = {}
        self.decisions: dict[str, bytes] = {}
        self.proposals: dict[tuple[str, int], bytes] = {}
        self.topics: set[str] = set()  # with a consensus under way
        self._dead: set[int] = set()
        # Progress that the executor has read from a connection. Set once there is an executor.
        self.progress_of: Callable[[int], tuple[int, int]] = lambda _: (0, 0)

    def poll(self) -> None:
        """Receive what has arrived, and send what could not be sent before."""
        for rank, connection in self.connections.items():
            connection.flush()
            for message in connection.receive():
                self._handle(rank, message)

    def check(self) -> None:
        """Find out which connections have ended, while all is well."""
        for connection in self.connections.values():
            connection.check()

    def send(self, message: Message) -> None:
        """Send a message to all of them."""
        for connection in self.connections.values():
            if not connection.lost:
                connection.send(message)

    def status_of(self, rank: int) -> Status:
        """What a rank says of itself."""
        reduced, returned = map(max, self.progress_of(rank), self.connections[rank].progress)
        status = self.statuses.get(rank, Status())
        if status.reduced >= reduced and status.returned >= returned:
            return status
        reduced, returned = max(status.reduced, reduced), max(status.returned, returned)
        return msgspec.structs.replace(status, reduced=reduced, returned=returned)

    def keep_progress(self) -> None:
        """Copy what the executor knows of the others' progress, before it is closed."""
        kept = {rank: self.progress_of(rank) for rank in self.connections}
        self.progress_of = kept.__getitem__

    def dead(self) -> Iterable[int]:
        """Ranks whose connection has ended, or that ranks on their host report dead."""
        return self._dead | {rank for rank, connection in self.connections.items() if connection.lost}

    def close(self) -> None:
        """Close all connections."""
        for connection in self.connections.values():
            connection.close()

    def _handle(self, rank: int, message: Message) -> None:
        if isinstance(message, StatusUpdate):
            self.statuses[rank] = message.status
        elif isinstance(message, HostReport):
            self._dead |= set(message.dead) & self.connections.keys()
            for other, call, text in message.calls:
                if call >= self.calls.get(other, (0, ""))[0]:
                    self.calls[other] = (call, text)
        elif isinstance(message, Proposal):
            self.topics.add(message.topic)
            self.proposals.setdefault((message.topic, message.number), message.value)
        else:
            self.decisions.setdefault(message.topic, message.value)
