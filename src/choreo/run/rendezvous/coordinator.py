"""A meeting as rank 0 sees it: it knows everybody, introduces them to each other, and passes blobs around.

What goes wrong with a rank is told to all the others in the same words, and then the meeting is over.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from choreo.errors import MeetingError
from choreo.run.rendezvous.messages import (
    Join,
    Leave,
    Member,
    Verdict,
    Welcome,
    all_payload,
    blob_limit_bytes,
    blob_payload,
    decode,
    encode,
    members_in_words,
    parse_blob,
    ranks_in_words,
)
from choreo.run.rendezvous.server import Reception, Visit
from choreo.run.transport.addresses import is_loopback, plain
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.errors import FrameError
from choreo.run.transport.frames import Frame, Kind
from choreo.run.transport.limits import MAX_STORY

__all__ = ["Coordinator"]

VERDICT_S = 1.0  # for which a verdict waits to be heard
FAREWELL_S = 0.2


class Coordinator:
    """Rank 0."""

    def __init__(self, listener: socket.socket, secret: bytes, me: Join, note: str = "") -> None:
        self._me = Member(0, me.pid, me.host, me.host_id, plain(listener.getsockname()[0]))
        self._world_size = me.world_size
        self._note = note  # what else to say where ranks do not come
        self._reception = Reception(listener, secret, self._hear, self._lost)
        self._visits: dict[int, Visit] = {}
        self._missing = set(range(1, me.world_size))  # whom the present wait is for
        self._impatient: Deadline | None = None  # the first of those who wait that will give up
        self._gone: dict[int, MeetingError] = {}  # the first that happened comes first
        self._number = 0
        self._blobs: dict[int, bytes] = {}
        self._early: dict[int, tuple[bytes, Deadline]] = {}  # shares of the next exchange, of those who are quick
        self._verdict: MeetingError | None = None
        self._too_late = False
        self.members: list[Member] = []

    def gather(self, deadline: Deadline) -> None:
        """Wait until all ranks have come, and introduce them to each other."""

        def late(patience_s: float) -> MeetingError:
            return MeetingError(
                f"{ranks_in_words(self._missing)} did not come to the meeting within {patience_s:.3g} s; "
                f"{len(self._visits) + 1} of {self._world_size} ranks did{self._reception.refusals()}{self._note}",
                ranks=sorted(self._missing),
            )

        with self._telling():
            self._wait(deadline, late)
            self.members = self._introduced()
            self._tell_ranks(Kind.WELCOME, encode(Welcome(self.members)), deadline)

    def exchange(self, blob: bytes, deadline: Deadline) -> list[bytes]:
        """Everybody's blobs, in the order of ranks."""
        self._number += 1
        self._blobs = {0: blob}
        self._missing = set(self._visits)
        self._impatient = None
        early, self._early = self._early, {}
        for rank, (share, patience) in early.items():
            self._take(rank, share, patience)

        def late(patience_s: float) -> MeetingError:
            return MeetingError(
                f"{members_in_words([self.members[rank] for rank in sorted(self._missing)])} did not come to exchange "
                f"{self._number} within {patience_s:.3g} s, where {self._world_size - len(self._missing)} of "
                f"{self._world_size} ranks waited",
                ranks=sorted(self._missing),
            )

        with self._telling():
            self._wait(deadline, late)
            blobs = [self._blobs[rank] for rank in range(self._world_size)]
            self._tell_ranks(Kind.ALL, all_payload(self._number, blobs), deadline)
        return blobs

    def close(self, story: str = "") -> None:
        """Say goodbye to everybody, and why, and close all connections."""
        self._reception.say_to_all(Kind.LEAVE, encode(Leave(story[:MAX_STORY])))
        self._reception.see_off(Deadline.after(FAREWELL_S))

    def hang_up(self) -> None:
        """Close all connections without a word."""
        self._reception.hang_up()

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Whatever ends the meeting inside is told to the others before it is raised here."""
        try:
            yield
        except MeetingError as error:
            self._verdict = error
            self._reception.say_to_all(Kind.VERDICT, _told(error))
            # Whoever is about to come hears it too, unless that nobody comes is what it is about.
            expected = set() if self.members or self._too_late else self._missing
            self._reception.see_off(Deadline.after(VERDICT_S), lambda: expected)
            raise
        except BaseException:
            self.close("it was interrupted")
            raise

    def _wait(self, deadline: Deadline, late: Callable[[float], MeetingError]) -> None:
        """Until nobody is missing; raise what has happened to a rank meanwhile, or what it means to be late.

        The verdict is given a little before the first of those who wait gives up, so that all hear it.
        """
        own = _before(deadline)
        while True:
            if self._gone:
                raise next(iter(self._gone.values()))
            if not self._missing:
                return
            until = own if self._impatient is None else min(own, self._impatient, key=lambda one: one.at_s)
            if until.passed:
                self._too_late = True
                raise late(until.patience_s)
            self._reception.turn(until)

    def _tell_ranks(self, kind: Kind, payload: bytes, deadline: Deadline) -> None:
        """Until the system has taken it all; that a rank is lost meanwhile is the next exchange's matter."""
        for visit in self._visits.values():
            self._reception.say(visit, kind, payload)
        while waiting := [
            visit.member for visit in self._visits.values() if visit.outgoing and visit.member is not None
        ]:
            if deadline.passed:
                raise MeetingError(
                    f"{members_in_words(waiting)} did not read what was sent within {deadline.patience_s:.3g} s: "
                    "stopped, stuck or cut off",
                    ranks=[member.rank for member in waiting],
                )
            self._reception.turn(deadline)

    # What is heard

    def _hear(self, visit: Visit, frame: Frame) -> None:
        if visit.member is None:
            if frame.kind != Kind.JOIN:
                raise FrameError(f"a frame of kind {frame.kind.name} came from one who had not said who it is")
            self._meet(visit, decode(frame.payload, Join))
        elif frame.kind == Kind.LEAVE:
            self._lost(visit, "left the meeting", decode(frame.payload, Leave).story)
        elif frame.kind == Kind.BLOB and self.members:
            number, patience_s, blob = parse_blob(frame.payload)
            rank = visit.member.rank
            if number == self._number and rank in self._missing:
                self._take(rank, blob, _before(_patience(patience_s)))
            elif number == self._number + 1 and rank not in self._missing and rank not in self._early:
                self._early[rank] = blob, _before(_patience(patience_s))
            else:
                raise FrameError(f"a share of exchange {number} came, where exchange {self._number} is due")
        else:
            raise FrameError(f"a frame of kind {frame.kind.name} came")

    def _lost(self, visit: Visit, what: str, why: str) -> None:
        assert visit.member is not None
        if not self.members:
            phase = f"before all {self._world_size} ranks had come"
        elif self._missing:
            phase = f"in exchange {self._number}"
        else:
            phase = f"after exchange {self._number}" if self._number else "after all ranks had come"
        story = f"{visit.member} {what} {phase}" + (f": {why}" if why else "")
        self._gone.setdefault(visit.member.rank, MeetingError(story, ranks=(visit.member.rank,)))

    def _meet(self, visit: Visit, join: Join) -> None:
        """Somebody who holds the secret says who they are."""
        newcomer = Member(join.rank, join.pid, join.host, join.host_id, visit.where)
        error = self._verdict or self._objection(newcomer, join.world_size)
        if error is None:
            assert visit.sealed is not None
            visit.sealed[0].limit_bytes = len(blob_payload(0, 0, b"")) + blob_limit_bytes(self._world_size)
            visit.member = newcomer
            self._visits[join.rank] = visit
            self._missing.discard(join.rank)
            self._hurry(_before(_patience(join.patience_s)))
        elif not (self.members or self._verdict):
            self._missing.discard(newcomer.rank)
            raise error
        else:
            # All have come long since, or it is over: whoever comes now is told so, and nobody else is disturbed.
            self._reception.say(visit, Kind.VERDICT, _told(error))
            visit.ignored = True
            if self._verdict is not None:
                self._missing.discard(newcomer.rank)

    def _objection(self, newcomer: Member, world_size: int) -> MeetingError | None:
        visit = self._visits.get(newcomer.rank)
        there = self._me if newcomer.rank == 0 else visit.member if visit is not None else None
        if world_size != self._world_size:
            story = (
                f"{newcomer} was told that there are {world_size} ranks, {self._me} that there are {self._world_size}; "
                "give every rank the same WORLD_SIZE"
            )
        elif newcomer.rank >= self._world_size:
            story = f"{newcomer} has no place among {self._world_size} ranks; they go from 0 to {self._world_size - 1}"
        elif there is not None:
            story = (
                f"two processes claim rank {newcomer.rank}: pid {there.pid} on {there.host} and pid {newcomer.pid} on "
                f"{newcomer.host}; give every process a RANK of its own"
            )
        else:
            return None
        return MeetingError(story, ranks=(newcomer.rank,))

    def _take(self, rank: int, blob: bytes, patience: Deadline) -> None:
        self._blobs[rank] = blob
        self._missing.discard(rank)
        self._hurry(patience)

    def _hurry(self, patience: Deadline) -> None:
        if self._impatient is None or patience.at_s < self._impatient.at_s:
            self._impatient = patience

    def _introduced(self) -> list[Member]:
        """All members, with addresses under which other machines reach them.

        Whoever came to rank 0 over loopback is on its machine, and is reached from others as rank 0 is.
        """
        ways_here = [self._visits[rank].way_here for rank in sorted(self._visits)]
        outside = next((way for way in ways_here if not is_loopback(way)), ways_here[0])
        found = [Member(0, self._me.pid, self._me.host, self._me.host_id, outside)]
        for rank in range(1, self._world_size):
            member = self._visits[rank].member
            assert member is not None
            address = outside if is_loopback(member.address) else member.address
            found.append(Member(rank, member.pid, member.host, member.host_id, address))
        return found


def _told(error: MeetingError) -> bytes:
    return encode(Verdict(str(error)[:MAX_STORY], list(error.ranks)))


def _patience(patience_s: float) -> Deadline:
    return Deadline.after(max(patience_s, 1e-3))


def _before(deadline: Deadline) -> Deadline:
    """So much earlier that a verdict still reaches whoever gives up then."""
    return Deadline(deadline.patience_s, deadline.at_s - min(0.5, 0.1 * deadline.left_s))
