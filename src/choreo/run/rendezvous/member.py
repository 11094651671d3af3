"""A meeting as every rank but rank 0 sees it: one connection, to rank 0, who knows everybody."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, NoReturn

from choreo.errors import MeetingError
from choreo.run.rendezvous.connection import Connection, knock
from choreo.run.rendezvous.messages import (
    Join,
    Leave,
    Member,
    Verdict,
    Welcome,
    blob_payload,
    decode,
    encode,
    parse_all,
)
from choreo.run.transport.addresses import resolve, spelled
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.errors import FrameError, VerdictError
from choreo.run.transport.frames import Kind
from choreo.run.transport.handshake import HANDSHAKE_S, StrangerError, WrongSecretError
from choreo.run.transport.limits import MAX_STORY

__all__ = ["Door", "Guest", "NotYetError", "attend", "knock_until_let_in"]

FAREWELL_S = 0.5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.25


class Door(NamedTuple):
    """Where rank 0 is to be found, and the secret to be proved there."""

    address: str
    port: int
    secret: bytes
    certain: bool  # whether a refusal there is final, or may come from somebody who is about to go

    def __str__(self) -> str:
        return spelled(self.address, self.port)


class NotYetError(Exception):
    """Rank 0 cannot be found yet; the message says why."""


class Guest:
    """A rank that has been welcomed."""

    def __init__(self, connection: Connection, me: Join, members: list[Member]) -> None:
        self._connection = connection
        self._me = me
        self._number = 0
        self.members = members

    def exchange(self, blob: bytes, deadline: Deadline) -> list[bytes]:
        """Everybody's blobs, in the order of ranks."""
        self._number += 1
        where = f"in exchange {self._number}"
        hear = _Listener(self._connection, self.members[0], where)
        try:
            self._connection.send(Kind.BLOB, blob_payload(self._number, deadline.left_s, blob), deadline)
            payload = hear(Kind.ALL, deadline)
            return parse_all(payload, self._number, self._me.world_size)
        except TimeoutError:
            story = f"{self.members[0]} did not answer {_me(self._me)} {where} within {deadline.patience_s:.3g} s"
            self.close(story)
            raise MeetingError(f"{story}; it is late or stuck", ranks=(0,)) from None
        except OSError:
            raise hear.told_why() from None
        except FrameError as error:
            story = f"{self.members[0]} said what it may not {where}: {error}"
            self.close(story)
            raise MeetingError(story, ranks=(0,)) from None

    def close(self, story: str = "") -> None:
        """Say goodbye, and why, and hang up."""
        with suppress(OSError):
            self._connection.send(Kind.LEAVE, encode(Leave(story[:MAX_STORY])), Deadline.after(FAREWELL_S))
        self._connection.close()

    def hang_up(self) -> None:
        """Close the connection without a word."""
        self._connection.close()


def attend(find: Callable[[], Door], me: Join, where: str, deadline: Deadline) -> Guest:
    """Find rank 0, prove who we are, and wait until everybody has come."""
    connection, door = _connect(find, me, where, deadline)
    try:
        rank_zero = f"rank 0 at {door}"
        phase = f"before all {me.world_size} ranks had come"
        hear = _Listener(connection, rank_zero, phase)
        me = Join(me.rank, me.world_size, me.pid, me.host, me.host_id, deadline.left_s)
        try:
            connection.send(Kind.JOIN, encode(me), deadline)
            members = decode(hear(Kind.WELCOME, deadline), Welcome).members
        except TimeoutError:
            raise MeetingError(
                f"{rank_zero} did not say within {deadline.patience_s:.3g} s that all {me.world_size} ranks had come; "
                "look for the rank that is missing, or wait longer"
            ) from None
        except OSError:
            raise hear.told_why() from None
        except FrameError as error:
            raise MeetingError(f"{rank_zero} said what it may not {phase}: {error}", ranks=(0,)) from None
        _check_all_are_there(members, me, rank_zero)
    except BaseException:
        connection.close()
        raise
    return Guest(connection, me, members)


def _connect(find: Callable[[], Door], me: Join, where: str, deadline: Deadline) -> tuple[Connection, Door]:
    try:
        return knock_until_let_in(find, _me(me), deadline)
    except WrongSecretError as error:
        raise WrongSecretError(str(error), ranks=(me.rank,)) from None
    except NotYetError as error:
        raise MeetingError(
            f"{_me(me)} did not find rank 0 at {where} within {deadline.patience_s:.3g} s: {error}; start rank 0, "
            "and give every rank the same MASTER_ADDR and MASTER_PORT",
            ranks=(0,),
        ) from None


def knock_until_let_in(find: Callable[[], Door], who: str, deadline: Deadline) -> tuple[Connection, Door]:
    """A connection to whoever opens the door that can be found, as soon as somebody does; NotYetError if nobody did.

    Where it is certain that the door is the right one, a refusal there is raised at once.
    """
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            door = find()
            return _knock_at(door, who, deadline), door
        except NotYetError as error:
            reason = str(error)
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
        if deadline.passed:
            raise NotYetError(reason)
        # Many ranks that are started together need not knock together.
        time.sleep(min(deadline.left_s, pause_s * random.uniform(0.5, 1.0)))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _knock_at(door: Door, who: str, deadline: Deadline) -> Connection:
    targets = resolve(door.address, door.port, deadline)
    last: OSError = ConnectionRefusedError("nobody listens there")
    for target in targets:
        try:
            return knock(target, door.secret, deadline.capped(HANDSHAKE_S))
        except TimeoutError:
            last = TimeoutError("what listens there does not answer")
        except OSError as error:
            last = error
        except WrongSecretError as error:
            if not door.certain:
                raise NotYetError(str(error)) from None
            raise WrongSecretError(
                f"rank 0 at {door} and {who} do not belong together: {error}; give all ranks the same "
                "CHOREO_SECRET or --secret-file"
            ) from None
        except StrangerError as error:
            if not door.certain:
                raise NotYetError(str(error)) from None
            raise StrangerError(f"{who} looked for rank 0 at {door}: {error}; is the port right?") from None
    raise last


class _Listener:
    """Waits for a frame of one kind from rank 0, and says what it means that another comes or none."""

    def __init__(self, connection: Connection, rank_zero: object, phase: str) -> None:
        self._connection, self._rank_zero, self._phase = connection, rank_zero, phase

    def __call__(self, kind: Kind, deadline: Deadline) -> bytes:
        try:
            frame = self._connection.receive(deadline)
        except EOFError:
            self._connection.close()
            raise self._lost() from None
        if frame.kind != kind:
            self._raise_told(frame.kind, frame.payload)
        return frame.payload

    def told_why(self) -> MeetingError:
        """What rank 0 said before the connection broke, or that it broke."""
        try:
            self._raise_told(*self._connection.receive(Deadline.after(FAREWELL_S)))
        except FrameError:
            return self._lost()
        except MeetingError as error:
            return error
        except (OSError, EOFError):
            return self._lost()

    def _lost(self) -> MeetingError:
        return MeetingError(
            f"{self._rank_zero} was lost {self._phase}: its process ended or the connection was cut", ranks=(0,)
        )

    def _raise_told(self, kind: Kind, payload: bytes) -> NoReturn:
        if kind == Kind.VERDICT:
            verdict = decode(payload, Verdict)
            self._connection.close()
            raise VerdictError(verdict.story, ranks=verdict.ranks)
        if kind == Kind.LEAVE:
            story = decode(payload, Leave).story
            self._connection.close()
            raise MeetingError(
                f"{self._rank_zero} left the meeting {self._phase}" + (f": {story}" if story else ""), ranks=(0,)
            )
        raise FrameError(f"a frame of kind {kind.name} came")


def _check_all_are_there(members: list[Member], me: Join, rank_zero: str) -> None:
    if [member.rank for member in members] != list(range(me.world_size)):
        raise MeetingError(f"{rank_zero} welcomed {len(members)} ranks, where there are {me.world_size}", ranks=(0,))


def _me(me: Join) -> str:
    return f"rank {me.rank} (pid {me.pid} on {me.host})"
