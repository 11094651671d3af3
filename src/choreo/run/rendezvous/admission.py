"""The door that a job which runs opens to newcomers: who holds its secret may come in, while the door is open.

It stands where rank 0 of the job listened when its ranks met, or without a secret behind a notice that only this user
can read. What is said there is said in the frames of a meeting, after the same handshake.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from choreo.errors import JoinError
from choreo.run.rendezvous.environment import Place
from choreo.run.rendezvous.local_file import OccupiedError, put_up, read_notice
from choreo.run.rendezvous.member import Door
from choreo.run.rendezvous.messages import (
    Admission,
    Member,
    Newcomer,
    Verdict,
    all_payload,
    blob_limit_bytes,
    blob_payload,
    decode,
    encode,
    parse_blob,
)
from choreo.run.rendezvous.rendezvous import check_local
from choreo.run.rendezvous.server import Reception, Visit
from choreo.run.transport.addresses import LOOPBACK, is_local, listen, spelled
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.errors import FrameError
from choreo.run.transport.frames import Frame, Kind
from choreo.run.transport.limits import MAX_STORY
from choreo.run.transport.secret import check_secret

__all__ = ["Entrance", "find_door", "is_here", "open_entrance"]

TAKEN_S = 5.0  # how long one waits for a port or a name that is taken: whoever has it may be about to end
LOOK_S = 0.05  # how often one looks up from the door


class Entrance:
    """The door as the rank sees it that keeps it. `disturbed` says whether it has to look after something else."""

    def __init__(
        self, listener: socket.socket, secret: bytes, first_rank: int, wanted: int, disturbed: Callable[[], bool]
    ) -> None:
        self._reception = Reception(listener, secret, self._hear, self._lost)
        self._first_rank, self._wanted, self._disturbed = first_rank, wanted, disturbed
        self._guests: list[Visit] = []
        self._blobs: dict[int, bytes] = {}
        self._due = 1  # the exchange to which the newcomers bring something next
        self._full = False
        self._lost_one = ""

    def let_in(self, deadline: Deadline) -> None:
        """Wait until as many have come as are wanted."""
        while len(self._guests) < self._wanted:
            if deadline.passed:
                raise JoinError(
                    f"{len(self._guests)} of {self._wanted} newcomers came within {deadline.patience_s:.3g} s"
                    f"{self._reception.refusals()}"
                )
            self._turn(deadline)
        self._full = True

    def admit(self, admission: Callable[[int], Admission]) -> None:
        """Tell everybody who has come what they need to know, by their rank."""
        for at, visit in enumerate(self._guests):
            rank = self._first_rank + at
            assert visit.member is not None and visit.sealed is not None
            visit.member = msgspec.structs.replace(visit.member, rank=rank)
            told = admission(rank)
            visit.sealed[0].limit_bytes = len(blob_payload(0, 0, b"")) + blob_limit_bytes(len(told.ranks))
            self._reception.say(visit, Kind.WELCOME, encode(told))

    def collect(self, deadline: Deadline) -> list[bytes]:
        """What the newcomers bring to the next exchange, by rank."""
        while len(self._blobs) < self._wanted:
            if self._lost_one:
                raise JoinError(self._lost_one)
            if deadline.passed:
                raise JoinError(f"a newcomer did not answer within {deadline.patience_s:.3g} s")
            self._turn(deadline)
        self._due += 1
        return [self._blobs.pop(self._first_rank + at) for at in range(self._wanted)]

    def tell(self, blobs: list[bytes]) -> None:
        """Let the newcomers have everybody's."""
        for visit in self._guests:
            self._reception.say(visit, Kind.ALL, all_payload(self._due - 1, blobs))

    def refuse(self, story: str) -> None:
        """Tell the newcomers that it came to nothing, and why."""
        self._reception.say_to_all(Kind.VERDICT, encode(Verdict(story[:MAX_STORY], [])))

    def close(self) -> None:
        """Close the door; whoever is still before it knocks again."""
        self._reception.hang_up()

    def _turn(self, deadline: Deadline) -> None:
        if self._disturbed():
            raise JoinError("a rank was lost meanwhile")
        self._reception.turn(deadline.capped(LOOK_S))

    def _hear(self, visit: Visit, frame: Frame) -> None:
        if visit.member is None:
            self._meet(visit, frame)
            return
        if frame.kind != Kind.BLOB:
            raise FrameError(f"a frame of kind {frame.kind.name} came")
        number, _, blob = parse_blob(frame.payload)
        rank = visit.member.rank
        if not self._full or rank in self._blobs or number != self._due:
            raise FrameError(f"a share of exchange {number} came, where exchange {self._due} is due")
        self._blobs[rank] = blob

    def _meet(self, visit: Visit, frame: Frame) -> None:
        if frame.kind == Kind.NEWCOMER:
            who = decode(frame.payload, Newcomer)
            if len(self._guests) < self._wanted:
                visit.member = Member(self._first_rank, who.pid, who.host, who.host_id, visit.where)
                self._guests.append(visit)
                return
            story = "as many have come as the job wants"
        elif frame.kind == Kind.JOIN:
            story = "this job runs already; a process that comes to it later calls choreo.join()"
        else:
            raise FrameError(f"a frame of kind {frame.kind.name} came")
        self._reception.say(visit, Kind.VERDICT, encode(Verdict(story, [])))
        visit.ignored = True

    def _lost(self, visit: Visit, what: str, why: str) -> None:
        assert visit.member is not None
        if not self._full:
            self._guests.remove(visit)
        elif not self._lost_one:
            who = f"the newcomer (pid {visit.member.pid} on {visit.member.host})"
            self._lost_one = f"{who} {what} on its way in: {why}"


@contextmanager
def open_entrance(
    place: Place, first_rank: int, wanted: int, deadline: Deadline, disturbed: Callable[[], bool]
) -> Iterator[Entrance]:
    """Open the door for so many newcomers, and close it in the end."""
    where = spelled(place.address, place.port)
    patience = deadline.capped(TAKEN_S)
    with ExitStack() as stack:
        while True:
            try:
                if place.secret is not None:
                    secret, (listener, _) = place.secret, listen(place.address, place.port)
                else:
                    with ExitStack() as made:
                        listener = made.enter_context(socket.create_server((LOOPBACK, 0), backlog=socket.SOMAXCONN))
                        port = listener.getsockname()[1]
                        secret = made.enter_context(put_up(_notice_of(place), LOOPBACK, port, deadline))
                        stack.enter_context(made.pop_all())
                break
            except OccupiedError as error:
                reason = f"another job of yours lets newcomers in there (pid {error.notice.pid})"
            except OSError as error:
                reason = os.strerror(error.errno or 0)
                if error.errno != errno.EADDRINUSE:
                    raise JoinError(f"one cannot listen at {where}: {reason}") from None
            if patience.passed or disturbed():
                raise JoinError(f"one cannot listen at {where}: {reason}; choose another MASTER_PORT")
            time.sleep(LOOK_S)
        entrance = Entrance(listener, secret, first_rank, wanted, disturbed)
        stack.callback(entrance.close)
        yield entrance


def find_door(place: Place, deadline: Deadline) -> Door:
    """Where the job's door is, as a newcomer finds it."""
    if place.secret is not None:
        return Door(place.address, place.port, place.secret, certain=True)
    notice = read_notice(_notice_of(place), deadline)
    return Door(notice.address, notice.port, notice.secret.encode(), certain=False)


def is_here(place: Place, deadline: Deadline) -> bool:
    """Whether the door can be on this machine. Without a secret it must be."""
    if place.secret is None:
        check_local(place.address, deadline)
        return True
    check_secret(place.secret, "this call")
    try:
        return is_local(place.address, deadline)
    except OSError:
        return False


def _notice_of(place: Place) -> str:
    # Not that of the first meeting, whose ranks look for something else.
    return f"{spelled(place.address, place.port)}\0{place.job}\0newcomers"
