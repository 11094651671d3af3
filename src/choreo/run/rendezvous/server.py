"""Rank 0's connections: one loop over all of them, which nobody can stall.

A connection is a stranger's until it has proved that it holds the secret. Strangers have a few seconds and a few dozen
bytes, and the oldest makes room when there are many; one who was turned away so knocks again.
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
from choreo.run.transport.errors import FrameError
from choreo.run.transport.frames import Frame, FrameReader, FrameWriter, Kind
from choreo.run.transport.handshake import HANDSHAKE_S, Doorkeeper, StrangerError, WrongSecretError
from choreo.run.transport.limits import MAX_STRANGERS

__all__ = ["Reception", "Visit"]

_PIECE_BYTES = 1 << 16
_ACCEPTED_A_TURN = 64
_REASONS_KEPT = 16


class Visit:
    """One connection: first a stranger's, then that of somebody who holds the secret, then a rank's."""

    def __init__(self, sock: socket.socket, where: str, secret: bytes) -> None:
        self.sock = sock
        self.where = where  # the address it comes from
        self.way_here = plain(sock.getsockname()[0])  # the address of ours that it came to
        self.door: Doorkeeper | None = Doorkeeper(secret)
        self.sealed: tuple[FrameReader, FrameWriter] | None = None
        self.expires = Deadline.after(HANDSHAKE_S)  # unless it becomes a rank's
        self.outgoing = bytearray()
        self.member: Member | None = None
        self.ignored = False  # whatever it still says


class Reception:
    """Lets people in, and passes on what those say who may.

    `hear` is given each frame of somebody who holds the secret; a FrameError of it ends that connection. `lost` is
    given each rank's connection that is of no more use, what the rank did, and why if that is known.
    """

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes,
        hear: Callable[[Visit, Frame], None],
        lost: Callable[[Visit, str, str], None],
    ) -> None:
        self._listener = listener
        self._secret = secret
        self._hear = hear
        self._lost = lost
        self._selector = selectors.DefaultSelector()
        self._visits: dict[socket.socket, Visit] = {}  # oldest first
        self._refused: Counter[str] = Counter()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def turn(self, until: Deadline) -> None:
        """Wait for something to happen, and see to it."""
        wake_s = min((visit.expires.left_s for visit in self._unnamed()), default=until.left_s)
        for key, events in self._selector.select(min(wake_s, until.left_s)):
            if key.fileobj is self._listener:
                self._let_in()
                continue
            visit: Visit = key.data
            if events & selectors.EVENT_WRITE and visit.sock in self._visits:
                self._flush(visit)
            if events & selectors.EVENT_READ and visit.sock in self._visits:
                self._read(visit)
        for visit in [visit for visit in self._unnamed() if visit.expires.passed]:
            self._drop(visit)

    def say(self, visit: Visit, kind: Kind, payload: bytes) -> None:
        """Say something to somebody, as soon as they can hear it."""
        if visit.sealed is not None and visit.sock in self._visits:
            visit.outgoing += visit.sealed[1].seal(kind, payload)
            self._flush(visit)

    def say_to_all(self, kind: Kind, payload: bytes) -> None:
        """Say something to everybody who holds the secret and is still listened to."""
        for visit in list(self._visits.values()):
            if not visit.ignored:
                self.say(visit, kind, payload)

    def see_off(self, deadline: Deadline, expecting: Callable[[], object] = lambda: False) -> None:
        """Close each connection once the other side has heard the last words and hung up, and all of them in the end.

        A socket that is closed with unread bytes in it takes back what it has sent and the other side not yet read.
        While somebody is still expected who should hear the same, the door stays open.
        """
        for visit in self._visits.values():
            visit.ignored = visit.sealed is not None
        while expecting() and not deadline.passed:
            self.turn(deadline)
        self._selector.unregister(self._listener)
        self._listener.close()
        for visit in [visit for visit in self._visits.values() if visit.sealed is None]:
            self._drop(visit)
        while self._visits and not deadline.passed:
            self.turn(deadline)
        self.hang_up()

    def hang_up(self) -> None:
        """Close everything without a word."""
        for sock in (self._listener, *self._visits):
            sock.close()
        self._visits.clear()
        self._selector.close()

    def refusals(self) -> str:
        """Who was turned away and why, as the rest of a sentence."""
        if not self._refused:
            return ""
        (reason, times), *others = self._refused.most_common()
        more = f", and {sum(count for _, count in others)} for other reasons" if others else ""
        return f"; turned away {times} from {reason}{more}"

    def _unnamed(self) -> list[Visit]:
        return [visit for visit in self._visits.values() if visit.member is None]

    def _let_in(self) -> None:
        for _ in range(_ACCEPTED_A_TURN):
            try:
                sock, (where, *_) = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:
                # Out of descriptors, or somebody who has gone again.
                if not self._drop_oldest_stranger():
                    time.sleep(0.01)
                return
            sock.setblocking(False)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                visit = Visit(sock, plain(where), self._secret)
                assert visit.door is not None
                sock.send(visit.door.greeting)
            except OSError:
                sock.close()
                continue
            if sum(one.sealed is None for one in self._visits.values()) >= MAX_STRANGERS:
                self._drop_oldest_stranger()
            self._visits[sock] = visit
            self._selector.register(sock, selectors.EVENT_READ, visit)

    def _drop_oldest_stranger(self) -> bool:
        oldest = next((visit for visit in self._visits.values() if visit.sealed is None), None)
        if oldest is not None:
            self._drop(oldest)
        return oldest is not None

    def _drop(self, visit: Visit) -> None:
        if self._visits.pop(visit.sock, None) is not None:
            self._selector.unregister(visit.sock)
            visit.sock.close()
        visit.outgoing.clear()

    def _refuse(self, visit: Visit, reason: str) -> None:
        told = f"{visit.where}: {reason}"
        if told in self._refused or len(self._refused) < _REASONS_KEPT:
            self._refused[told] += 1
        self._drop(visit)

    def _flush(self, visit: Visit) -> None:
        try:
            while visit.outgoing:
                sent = visit.sock.send(bytes(visit.outgoing[:_PIECE_BYTES]))
                del visit.outgoing[:sent]
        except BlockingIOError:
            pass
        except OSError:
            # Not the end of it: what it said before it went may be there to be read.
            visit.outgoing.clear()
        self._selector.modify(
            visit.sock, selectors.EVENT_READ | (selectors.EVENT_WRITE if visit.outgoing else 0), visit
        )

    def _read(self, visit: Visit) -> None:
        try:
            data = visit.sock.recv(visit.door.needs_bytes if visit.door is not None else _PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(visit)
            if visit.member is not None and not visit.ignored:
                self._lost(visit, "was lost", "its process ended or its connection was cut")
        elif visit.ignored:
            pass
        elif visit.door is not None:
            self._authenticate(visit, visit.door, data)
        else:
            self._listen_to(visit, data)

    def _authenticate(self, visit: Visit, door: Doorkeeper, data: bytes) -> None:
        try:
            accepted = door.feed(data)
        except StrangerError as error:
            self._refuse(visit, str(error))
        except WrongSecretError as error:
            with suppress(OSError):
                visit.sock.send(door.refusal)
            self._refuse(visit, str(error))
        else:
            if accepted is not None:
                verdict, reader, writer = accepted
                visit.sealed = reader, writer
                visit.door = None
                visit.expires = Deadline.after(HANDSHAKE_S)
                with suppress(OSError):
                    visit.sock.send(verdict)

    def _listen_to(self, visit: Visit, data: bytes) -> None:
        assert visit.sealed is not None
        try:
            for frame in visit.sealed[0].feed(data):
                if not visit.ignored:
                    self._hear(visit, frame)
        except FrameError as error:
            if visit.member is None:
                self._refuse(visit, str(error))
            else:
                self._lost(visit, "said what it may not", str(error))
