"""How the survivors of a failure come to one view of it, whoever else fails meanwhile, in bounded time.

A rank whose call fails puts up a notice (`board`), which makes the others stop too, and watches: who is dead, who else
has put up a notice, who is quiet. When everybody alive has spoken, or the quiet ones have had their time, it proposes
what it sees; the first proposal is the decision (`ledger`). A quiet rank is not failed for that: it may have returned
from the call and be at work, and learns the decision when it calls next. It is failed if the deadline of the call has
passed and somebody waits for it, it never began the call, or its machine cannot be reached. Ranks of several machines
read each other's notices from their control connections (`remote`), and decide by turns (`accord`).
"""

from __future__ import annotations

import mmap
import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

from choreo.run.execute.failures import INTERRUPTED, LEFT, MISMATCHED, PEER_DIED, PEER_GAVE_UP, TIMED_OUT, Where
from choreo.run.recover import consensus_between_hosts as between_hosts
from choreo.run.recover import failure_report
from choreo.run.recover.control_channel import Remote, Said, Seen
from choreo.run.recover.failure_report import Notice
from choreo.run.recover.ledger import Ledger

__all__ = ["Circle", "Story", "Verdict", "agree"]

# How long those who are in the call have to say so. A rank looks around 50 times a second, if it gets a core.
GRACE_DEAD_S, GRACE_LATE_S = 0.4, 1.5
PAUSE_S, LONGEST_PAUSE_S = 0.0005, 0.01
FAILURE = "failure"
TEXT_LENGTH = 160


class Story(msgspec.Struct, array_like=True, frozen=True):
    """What happened to a rank: an outcome, and the call it was in."""

    rank: int
    outcome: int
    call: int
    text: str


class Verdict(msgspec.Struct, array_like=True, frozen=True):
    """What everybody agrees on."""

    failed: bytes  # one bit a rank
    cause: int
    call: int
    culprit: int
    reduced: int  # the last call to survive failures of which every survivor has the result
    first: int  # the first call after that which failed somebody: whoever returned from it raises that in its next
    stories: tuple[Story, ...]  # the first few that failed; of a mismatch, one of either side

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks that failed."""
        return _unpacked(self.failed)


class Circle:
    """The ranks of a communicator, as one of them sees the others: on their boards, or by what they say from elsewhere.

    `machines` are the ranks of each machine; `remote`, where there are several, those of the others.
    """

    def __init__(
        self,
        rank: int,
        places: tuple[Where, ...],
        own: mmap.mmap,
        *,
        maps: list[mmap.mmap | None],
        pidfds: list[int],
        ledger: Ledger,
        directory_at: int,
        machines: tuple[tuple[int, ...], ...] = (),
        remote: Remote | None = None,
    ) -> None:
        self.rank, self.world_size, self.places, self.ledger = rank, len(places), places, ledger
        self.directory = failure_report.Directory(own, directory_at)
        self.notice = Notice()
        self._own, self._number = own, 0
        self._maps: list[mmap.mmap | None] = [own if at == rank else one for at, one in enumerate(maps)]
        self._pidfds = pidfds
        self._dead: set[int] = set()
        self._machines, self.remote = machines, remote
        self._seen: Seen | None = None

    def post(self, **changes: object) -> None:
        """Put up a notice that differs from the last one in this."""
        before, self.notice = self.notice, msgspec.structs.replace(self.notice, **changes)
        self._number += 1
        failure_report.post(self._own, self._number, self.notice)
        if self.remote is None:
            return
        if self.notice.cause or self.notice.attempt >= 0:
            self.remote.say(Said(self.notice))
            return
        # All is well: only a note, which disturbs nobody's call.
        for line in self.remote.lines.values():
            if self.notice.reduced != before.reduced:
                line.note(0, self.notice.reduced)
            if self.notice.returned != before.returned:
                line.note(1, self.notice.returned)

    def others(self) -> Iterable[int]:
        """Everybody else."""
        return (rank for rank in range(self.world_size) if rank != self.rank)

    def read(self, rank: int) -> Notice:
        """What a rank says of itself."""
        if self._is_elsewhere(rank):
            assert self.remote is not None
            return self.remote.notice(rank)
        theirs = self._maps[rank]
        return Notice() if theirs is None else failure_report.read(theirs)

    def gave_up(self, rank: int) -> tuple[int, int, int]:
        """Why a rank's executor stopped, whom it blames, and in which call."""
        if self._is_elsewhere(rank):
            assert self.remote is not None
            return self.remote.lines[rank].gave_up
        theirs = self._maps[rank]
        return (0, 0, 0) if theirs is None else failure_report.gave_up(theirs)

    def call_of(self, rank: int) -> tuple[int, str]:
        """The last call that a rank began, and its text; the call is -1 if nobody has said so."""
        if self._is_elsewhere(rank):
            assert self.remote is not None
            said = self.remote.notices.get(rank)
            return (said.call, said.text) if said is not None and said.cause else self.remote.calls.get(rank, (-1, ""))
        theirs = self._maps[rank]
        if theirs is None:
            return 0, ""
        number, signature = max(failure_report.calls_of(theirs).items())
        return number, failure_report.look_up(theirs, signature)[:TEXT_LENGTH]

    def calls_of(self, rank: int) -> dict[int, str]:
        """The last few calls that a rank began, and their texts, as far as they are known here."""
        said, theirs = self.read(rank), None if self._is_elsewhere(rank) else self._maps[rank]
        known = dict([(said.call, said.text) if said.cause else self.call_of(rank)])
        if theirs is not None:
            calls = failure_report.calls_of(theirs).items()
            known |= {number: failure_report.look_up(theirs, signature)[:TEXT_LENGTH] for number, signature in calls}
        return {number: text for number, text in known.items() if number > 0 and text}

    def dead(self) -> frozenset[int]:
        """Those whose process has ended, or whose connection has."""
        poll = select.poll()
        watched = {fd: rank for rank, fd in enumerate(self._pidfds) if fd >= 0 and rank not in self._dead}
        for fd in watched:
            poll.register(fd, select.POLLIN)
        self._dead |= {watched[fd] for fd, _ in poll.poll(0)}
        if self.remote is not None:
            if self.notice.cause or self.notice.attempt >= 0:
                self.remote.turn()
            else:
                self.remote.look()
            self._dead |= set(self.remote.dead())
        return frozenset(self._dead)

    def is_cut_off(self, rank: int) -> bool:
        """Whether the machine of a rank cannot be reached; something must have been said to it a while ago."""
        return self._is_elsewhere(rank) and self.remote is not None and self.remote.lines[rank].is_cut_off()

    def tell_others(self) -> None:
        """Tell other machines what is to be seen on this one, unless they know."""
        if self.remote is None:
            return
        here = [rank for rank in range(self.world_size) if not self._is_elsewhere(rank)]
        dead = tuple(sorted(self._dead & set(here)))
        seen = Seen(dead, tuple((rank, *self.call_of(rank)) for rank in here))
        if seen != self._seen:
            self._seen = seen
            self.remote.say(seen)

    def decided(self, topic: str) -> bytes | None:
        """The decision on a topic, if there is one."""
        if self.remote is None:
            return self.ledger.decided(topic)
        return between_hosts.settled(self.ledger, self.remote, topic)

    def is_being_decided(self, topic: str) -> bool:
        """Whether there is a decision on a topic, or others are about to make one and wait for this rank."""
        return self.decided(topic) is not None or (self.remote is not None and topic in self.remote.topics)

    def decide(self, topic: str, mine: bytes, takes_part: Callable[[int], bool] = lambda _: True) -> bytes:
        """Propose something; what was decided. `takes_part` says of a live rank whether it is worth waiting for."""
        if self.remote is None:
            return self.ledger.decide(topic, mine)

        def waits_for(rank: int) -> bool:
            return rank not in self.dead() and rank not in self.gone() and takes_part(rank)

        return between_hosts.settle(self.ledger, self.remote, self._machines, self.rank, topic, mine, waits_for)

    def gone(self) -> dict[int, int]:
        """Those that make no more calls, and why: they have left, or were interrupted."""
        told = {rank: self.gave_up(rank)[0] for rank in self.others()}
        return {rank: outcome for rank, outcome in told.items() if outcome in (LEFT, INTERRUPTED)}

    def close(self) -> None:
        """Let go of everything that belongs to others."""
        self.ledger.close()
        if self.remote is not None:
            self.remote.close()
        self._maps = [None] * self.world_size
        for descriptor in self._pidfds:
            if descriptor >= 0:
                os.close(descriptor)
        self._pidfds = []

    def _is_elsewhere(self, rank: int) -> bool:
        return self.remote is not None and rank in self.remote.lines


def agree(circle: Circle, notice: Mapping[str, object], *, everybody_until_s: float | None = None) -> Verdict:
    """What has happened, as all survivors see it. `notice` is what this rank has to say.

    `everybody_until_s`, a moment, is for a call that is to survive failures: it is waited for everybody until then, and
    whoever has not come by then has failed.
    """
    circle.post(**notice)
    began_s, pause_s = time.monotonic(), PAUSE_S
    while True:
        found = circle.decided(FAILURE)
        if found is not None:
            return msgspec.msgpack.decode(found, type=Verdict)
        dead = circle.dead()
        circle.tell_others()
        spoken = {rank: circle.read(rank) for rank in range(circle.world_size) if rank not in dead}
        call = circle.notice.call
        quiet = {
            rank
            for rank, said in spoken.items()
            if not said.cause and not (everybody_until_s is not None and said.returned >= call)
        } - circle.gone().keys()
        late = any(said.cause == TIMED_OUT for said in spoken.values())
        grace_s = GRACE_LATE_S if late else GRACE_DEAD_S
        end_s = began_s + grace_s if everybody_until_s is None else max(everybody_until_s, began_s + grace_s)
        if not quiet or time.monotonic() >= end_s or circle.is_being_decided(FAILURE):
            proposal = _proposal(circle, dead, spoken, quiet, late=late, everybody=everybody_until_s is not None)
            failed = proposal.ranks
            decided = circle.decide(
                FAILURE,
                msgspec.msgpack.encode(proposal),
                lambda rank, failed=failed: rank not in failed and circle.read(rank).cause != 0,  # type: ignore[misc]
            )
            return msgspec.msgpack.decode(decided, type=Verdict)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _proposal(
    circle: Circle,
    dead: frozenset[int],
    spoken: dict[int, Notice],
    quiet: set[int],
    *,
    late: bool,
    everybody: bool,
) -> Verdict:
    call, gone = circle.notice.call, circle.gone()
    suspects = {said.suspect for said in spoken.values()} | {
        said.culprit for said in spoken.values() if said.cause == TIMED_OUT
    }
    stuck = set()
    if everybody:
        stuck = quiet
    elif late:
        stuck = {
            rank for rank in quiet if rank in suspects or circle.is_cut_off(rank) or 0 <= circle.call_of(rank)[0] < call
        }
    failed = dict.fromkeys(sorted(stuck), TIMED_OUT) | dict.fromkeys(dead, PEER_DIED) | gone
    failed.pop(circle.rank, None)
    going_on = [said for rank, said in spoken.items() if rank not in failed]
    stories = [Story(rank, failed[rank], *circle.call_of(rank)) for rank in sorted(failed)[:4]]
    # Who proposes may be calls ahead of another survivor: each finds out for its own call whether all have the result.
    reduced = min(said.reduced for said in going_on)
    first = min((said.call for said in going_on if said.cause and said.call > reduced), default=sys.maxsize)
    causes = {said.cause: said for said in going_on if said.cause not in (0, PEER_GAVE_UP)}
    # Where calls do not match, a rank that has left may just have had no more to do.
    if MISMATCHED in causes and not (stuck or dead - gone.keys()):
        cause, culprit = MISMATCHED, causes[MISMATCHED].culprit
        call, stories = _sides(circle, causes[MISMATCHED].call)
    elif failed:
        cause, culprit = failed[min(failed)], min(failed)
    else:
        worst = causes[min(causes)] if causes else circle.notice
        cause, culprit = worst.cause, worst.culprit
    return Verdict(_packed(failed, circle.world_size), cause, call, culprit, reduced, first, tuple(stories))


def _sides(circle: Circle, call: int) -> tuple[int, list[Story]]:
    """The call in which ranks differ, one rank of those who are few, and one of those who are many, with their calls.

    Some may have found out in a later call than that, the one given.
    """
    known = [circle.calls_of(rank) for rank in range(circle.world_size)]
    for number in sorted({number for calls in known for number in calls}):
        texts: dict[str, list[int]] = {}
        for rank, calls in enumerate(known):
            if number in calls:
                texts.setdefault(calls[number], []).append(rank)
        if len(texts) > 1:
            sides = sorted(texts.items(), key=lambda side: (len(side[1]), -side[1][0]))
            return number, [Story(ranks[0], MISMATCHED, number, text) for text, ranks in (sides[0], sides[-1])]
    return call, []


def _packed(ranks: Iterable[int], world_size: int) -> bytes:
    return sum(1 << rank for rank in ranks).to_bytes(-(-world_size // 8), "little")


def _unpacked(bits: bytes) -> frozenset[int]:
    number = int.from_bytes(bits, "little")
    return frozenset(rank for rank in range(number.bit_length()) if number >> rank & 1)
