"""`join`: a new or restarted process comes into a job whose ranks call `grow`."""

from __future__ import annotations

import os
from typing import NoReturn

from choreo.errors import JoinError, MeetingError, PeerFailure
from choreo.run.communicator import Communicator
from choreo.run.connection import Connection
from choreo.run.execute.choice import Chooser
from choreo.run.recover.membership import FINE, TROUBLE, come_together, own_network, untroubled
from choreo.run.recover.shrink import SHRINK_S, shrink
from choreo.run.rendezvous import connection as meeting_connection
from choreo.run.rendezvous.admission import find_door
from choreo.run.rendezvous.environment import Place, given_place
from choreo.run.rendezvous.hosts import host_id, host_name
from choreo.run.rendezvous.member import NotYetError, knock_until_let_in
from choreo.run.rendezvous.messages import Admission, Newcomer, Verdict, blob_payload, decode, encode, parse_all
from choreo.run.rendezvous.rendezvous import check_local
from choreo.run.transport.addresses import spelled
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.errors import FrameError
from choreo.run.transport.frames import Frame, Kind
from choreo.run.transport.tcp import Network

__all__ = ["join"]

EXTRA_S = 3.0  # by which a newcomer outlasts those who let it in


def join(*, address: str | None = None, secret: str | bytes | None = None, timeout: float = SHRINK_S) -> Communicator:
    """Come into a job whose ranks call `grow`; where it is and its secret are read from the environment, as by `init`.

    `address` ("HOST:PORT") and `secret` take the place of MASTER_ADDR, MASTER_PORT and CHOREO_SECRET. If a job lets
    nobody in within `timeout` seconds, or what it began came to nothing, that is a `JoinError`.
    """
    place = given_place(address, secret)
    deadline = Deadline.after(timeout)
    if place.secret is None:
        check_local(place.address, deadline)
    while True:
        line, admission = _let_in(place, deadline)
        try:
            connection = come_together(
                _Newcomer(line, admission, own_network(place, deadline)), admission.patience_s + EXTRA_S
            )
            break
        except (JoinError, MeetingError) as error:
            if deadline.passed:
                raise JoinError(f"the job at {_spelled(place)} began to let this process in, but: {error}") from None
        finally:
            line.close()
    return _from(connection, admission)


def _let_in(place: Place, deadline: Deadline) -> tuple[meeting_connection.Connection, Admission]:
    """A line to the rank that keeps the door, and what it says."""
    me = f"this process (pid {os.getpid()} on {host_name()})"
    reason = ""
    while True:
        try:
            line, _ = knock_until_let_in(lambda: find_door(place, deadline), me, deadline)
        except NotYetError as error:
            raise JoinError(
                f"nobody let {me} in at {_spelled(place)} within {deadline.patience_s:.3g} s: {reason or error}; all "
                "ranks of the job must call grow()"
            ) from None
        except MeetingError as error:
            raise JoinError(str(error)) from None
        try:
            line.send(Kind.NEWCOMER, encode(Newcomer(os.getpid(), host_name(), host_id())), deadline)
            return line, decode(_heard(line.receive(deadline), Kind.WELCOME), Admission)
        except TimeoutError:
            reason = "the job waits for others to come"
        except (OSError, EOFError):
            reason = "the job closed its door again"
        except (JoinError, FrameError) as error:
            reason = str(error)
        line.close()


def _heard(frame: Frame, kind: Kind) -> bytes:
    if frame.kind == Kind.VERDICT:
        raise JoinError(decode(frame.payload, Verdict).story)
    if frame.kind != kind:
        raise FrameError(f"a frame of kind {frame.kind.name} came")
    return frame.payload


class _Newcomer:
    """The exchanges of those who come together, for one who comes."""

    def __init__(self, line: meeting_connection.Connection, admission: Admission, network: Network | None) -> None:
        self._line, self._deadline = line, Deadline.after(admission.patience_s + EXTRA_S)
        self._number, self.network = 0, network
        self.rank, self.world_size = admission.rank, len(admission.ranks)

    def exchange(self, blob: bytes, timeout_s: float) -> list[bytes]:
        """Everybody's blob, by rank."""
        del timeout_s  # it is for all of it
        return self._exchanged(FINE + blob)

    def give_up(self, error: BaseException) -> NoReturn:
        """Tell all that this one is in trouble."""
        self._exchanged(TROUBLE + f"{type(error).__name__}: {error}".encode()[:1000])
        raise AssertionError("an exchange with trouble in it raises")

    def _exchanged(self, mine: bytes) -> list[bytes]:
        self._number += 1
        try:
            self._line.send(Kind.BLOB, blob_payload(self._number, self._deadline.left_s, mine), self._deadline)
            payload = _heard(self._line.receive(self._deadline), Kind.ALL)
        except (OSError, EOFError) as error:
            raise JoinError(f"the job was lost on the way in: {error or 'it hung up'}") from None
        return untroubled(parse_all(payload, self._number, self.world_size))


def _from(connection: Connection, admission: Admission) -> Communicator:
    """The communicator, or what is left of it by the time all have been introduced to each other."""
    ranks = admission.ranks
    chooser = Chooser.from_json(admission.chooser.encode(), connection.world_size)
    while True:
        try:
            made = Communicator(connection, chooser.for_ranks(connection.world_size), timeout_s=admission.timeout_s)
        except PeerFailure:
            connection, members = shrink(connection)
            ranks = tuple(ranks[member] for member in members)
            continue
        made.ranks = ranks
        return made


def _spelled(place: Place) -> str:
    return spelled(place.address, place.port) + ("" if place.secret is not None else " without a secret")
