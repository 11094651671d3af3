"""What ranks on different machines tell each other when something goes wrong, on their control connections.

Nothing is said there while all is well, but for PROGRESS, so that something to read is itself a sign for the
executor. What is said is sealed, and read only by a rank that takes part in an agreement: there is no thread.
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

from choreo.errors import MeetingError
from choreo.run.execute.layout import FRAME_BYTES, GOODBYE, PROGRESS, SEALED, Frame
from choreo.run.recover.failure_report import Notice
from choreo.run.transport.frames import Kind
from choreo.run.transport.tcp import Sealed

__all__ = ["Decided", "Line", "Remote", "Round", "Said", "Seen"]

MOST_BYTES = 64 << 10  # of a sealed frame
PIECE_BYTES = 64 << 10


class Said(msgspec.Struct, array_like=True, frozen=True, tag="said"):
    """A rank's notice, as those on its machine read it on its board."""

    notice: Notice


class Seen(msgspec.Struct, array_like=True, frozen=True, tag="seen"):
    """What a rank sees of the ranks on its machine: who is dead, and the last call that each began."""

    dead: tuple[int, ...]
    calls: tuple[tuple[int, int, str], ...]


class Round(msgspec.Struct, array_like=True, frozen=True, tag="round"):
    """What a machine holds for right in a round of an agreement."""

    topic: str
    number: int
    value: bytes


class Decided(msgspec.Struct, array_like=True, frozen=True, tag="decided"):
    """How an agreement ended."""

    topic: str
    value: bytes


Message: TypeAlias = Said | Seen | Round | Decided
_DECODER = msgspec.msgpack.Decoder(Message)


class Line:
    """The control connection to one rank, and what came of it."""

    def __init__(self, sealed: Sealed) -> None:
        self.socket, self._reader, self._writer = sealed.socket, sealed.reader, sealed.writer
        self._reader.limit_bytes = MOST_BYTES
        self.socket.setblocking(False)
        self._incoming, self._outgoing = bytearray(), bytearray()
        self.gave_up = (0, 0, 0)  # why its executor stopped, whom it blames, in which call
        self.noted = [0, 0]
        self.lost = False  # nothing more will come: it has died, left, or sent what makes no sense

    def say(self, message: Message) -> None:
        """Say something, as soon as it can be said."""
        sealed = self._writer.seal(Kind.BLOB, msgspec.msgpack.encode(message))
        self._outgoing += Frame(SEALED, 0, 0, 0, len(sealed)).pack() + sealed
        self.flush()

    def note(self, which: int, call: int) -> None:
        """Say that a call has been reduced (0), or returned from (1)."""
        self._outgoing += Frame(PROGRESS, which, call, 0, 0).pack()
        self.flush()

    def flush(self) -> None:
        """Write what there is to write."""
        try:
            while self._outgoing and not self.lost:
                sent = self.socket.send(self._outgoing[:PIECE_BYTES], socket.MSG_NOSIGNAL)
                del self._outgoing[:sent]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._outgoing.clear()  # what it said before it went may still be there to be read

    def hear(self) -> list[Message]:
        """What has come."""
        found: list[Message] = []
        while not self.lost:
            try:
                data = self.socket.recv(PIECE_BYTES)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                data = b""
            self.lost = not data
            self._incoming += data
            try:
                self._parse(found)
            except (MeetingError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self.lost = True
        return found

    def is_cut_off(self) -> bool:
        """Whether something was said that not even the other machine's kernel has acknowledged."""
        if self.lost:
            return False
        with contextlib.suppress(OSError):
            answer = fcntl.ioctl(self.socket.fileno(), termios.TIOCOUTQ, bytes(4))
            return bool(self._outgoing) or struct.unpack("i", answer)[0] > 0
        return True

    def look(self) -> None:
        """Find out whether it has ended, and leave whatever came where it is, for the executor to see."""
        try:
            self.lost = self.lost or not self.socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.lost = True

    def close(self) -> None:
        """Hang up."""
        self.lost = True
        self.socket.close()

    def _parse(self, found: list[Message]) -> None:
        while len(self._incoming) >= FRAME_BYTES:
            frame = Frame.unpack(self._incoming[:FRAME_BYTES])
            end = FRAME_BYTES
            if frame.magic == GOODBYE:
                self.gave_up = (frame.number, frame.signature & 0xFFFFFFFF, frame.call)
            elif frame.magic == PROGRESS:
                self.noted[frame.number & 1] = frame.call
            elif frame.magic == SEALED and frame.length <= 2 * MOST_BYTES:
                end += frame.length
                if len(self._incoming) < end:
                    return
                frames = self._reader.feed(bytes(self._incoming[FRAME_BYTES:end]))
                found += [_DECODER.decode(one.payload) for one in frames]
            else:
                raise MeetingError("something came that no rank says")
            del self._incoming[:end]


class Remote:
    """All ranks on other machines, as one rank hears of them."""

    def __init__(self, lines: dict[int, Line]) -> None:
        self.lines = lines
        self.notices: dict[int, Notice] = {}
        self.calls: dict[int, tuple[int, str]] = {}
        self.decisions: dict[str, bytes] = {}
        self.rounds: dict[tuple[str, int], bytes] = {}
        self.topics: set[str] = set()  # on which somebody is agreeing
        self._dead: set[int] = set()
        # What the executor has taken out of a connection: set once there is one.
        self.noted: Callable[[int], tuple[int, int]] = lambda _: (0, 0)

    def turn(self) -> None:
        """Hear what there is to hear, and say what could not be said before."""
        for rank, line in self.lines.items():
            line.flush()
            for message in line.hear():
                self._take(rank, message)

    def look(self) -> None:
        """Find out whose connection has ended, while all is well."""
        for line in self.lines.values():
            line.look()

    def say(self, message: Message) -> None:
        """Tell all of them."""
        for line in self.lines.values():
            if not line.lost:
                line.say(message)

    def notice(self, rank: int) -> Notice:
        """What a rank says of itself."""
        reduced, returned = map(max, self.noted(rank), self.lines[rank].noted)
        said = self.notices.get(rank, Notice())
        if said.reduced >= reduced and said.returned >= returned:
            return said
        return msgspec.structs.replace(said, reduced=max(said.reduced, reduced), returned=max(said.returned, returned))

    def outlive_executor(self) -> None:
        """Keep what the executor knows, before it is closed."""
        kept = {rank: self.noted(rank) for rank in self.lines}
        self.noted = kept.__getitem__

    def dead(self) -> Iterable[int]:
        """Those whose connection has ended, or of whom those on their machine say so."""
        return self._dead | {rank for rank, line in self.lines.items() if line.lost}

    def close(self) -> None:
        """Hang up."""
        for line in self.lines.values():
            line.close()

    def _take(self, rank: int, message: Message) -> None:
        if isinstance(message, Said):
            self.notices[rank] = message.notice
        elif isinstance(message, Seen):
            self._dead |= set(message.dead) & self.lines.keys()
            for other, call, text in message.calls:
                if call >= self.calls.get(other, (0, ""))[0]:
                    self.calls[other] = (call, text)
        elif isinstance(message, Round):
            self.topics.add(message.topic)
            self.rounds.setdefault((message.topic, message.number), message.value)
        else:
            self.decisions.setdefault(message.topic, message.value)
