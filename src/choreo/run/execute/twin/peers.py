"""Watching and waiting for peers, as in `core/failure_detector.h`, `core/wait.h` and `core/sockets/send.h`.

This executor wakes no sleeping peers. A rank that waits here polls, and one that sleeps in the compiled executor wakes
up by itself after 2 ms.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from choreo.run.execute.failures import ALTERED, INTERRUPTED, MISMATCHED, PEER_DIED, PEER_GAVE_UP, TIMED_OUT
from choreo.run.execute.layout import (
    CALL_RECORD,
    CHANNEL,
    HEADER,
    MESSAGE_BITS,
    WINDOW,
    channel_at,
    offset_of,
)
from choreo.run.execute.processes import ended_processes
from choreo.run.execute.twin.segment import Bytes, SegmentWords, call_record_at, ends_call
from choreo.run.execute.twin.sockets import PeerSockets, Stream
from choreo.run.transport.records import AlteredError

__all__ = ["Control", "Peer", "PeerWatch", "Stop", "is_dead"]

HEALTH_CHECK_S, YIELD_S, LONGEST_SLEEP_S = 0.02, 0.0005, 0.001
# Of several failed peers, the one with the most informative outcome is reported.
SEVERITY = {PEER_GAVE_UP: 1, MISMATCHED: 2, PEER_DIED: 3, ALTERED: 4}


class Stop(Exception):  # noqa: N818 - an outcome rather than an error
    """A call cannot go on."""

    def __init__(self, outcome: int, culprit: int) -> None:
        super().__init__(outcome, culprit)
        self.outcome, self.culprit = outcome, culprit


class Control(Protocol):
    """The control connection to a peer on another host."""

    def look(self) -> tuple[int, int, int, int]:
        """The reason why nothing more comes from it (0: it may), why it gave up, the rank it blames, and the call."""
        ...

    def say_goodbye(self, outcome: int, culprit: int, call: int) -> None:
        """Tell it why this rank gives up, or that it leaves."""
        ...


@dataclass(slots=True, eq=False)
class Peer:
    """A peer as this rank sees it: its segment if it is on this host, its sockets otherwise."""

    rank: int
    words: SegmentWords | None
    data: Bytes | None
    pid: int
    pidfd: int
    sockets: PeerSockets | None
    control: Control | None = None
    posted: int = 0  # the last message that was made ready for it
    part_ends: list[int] = field(default_factory=lambda: [0, 0])  # and the last of each of the last two parts
    mailbox_written: int = 0  # the last call whose mailbox was written
    verified: int = 0  # the last call that both are known to have made alike
    report: tuple[int, int, int] | None = None  # what it said on its control connection before it went


class PeerWatch:
    """A rank's own segment and its peers; every wait for one of them ends."""

    def __init__(self, rank: int, world: int, words: SegmentWords, peers: list[Peer]) -> None:
        self._rank, self._world, self._peers = rank, world, peers
        self._words: SegmentWords | None = words  # None: closed
        self._call = 0
        self._chains: dict[int, int] = {}
        self._checked_s = 0.0
        self._aborted = False
        self._fence = threading.Lock()  # taken before a counter is written: the barrier where stores are reordered

    @property
    def _own(self) -> SegmentWords:
        assert self._words is not None
        return self._words

    def _publish(self, at: int, value: int) -> None:
        """Write a counter, after everything that was written before."""
        with self._fence:
            self._own.set_word(at, value)

    def _counter(self, number: int) -> int:
        """A message of this call as counters have it."""
        return self._call << MESSAGE_BITS | number

    # Waiting

    def _wait_consumed(self, peer: Peer, counter: int, deadline_s: float) -> None:
        words, at = peer.words, channel_at(self._rank) + offset_of(CHANNEL, "consumed")
        assert words is not None
        self._wait_until(lambda: words.word(at) >= counter, peer, deadline_s)

    def _wait_until(self, over: Callable[[], bool], peer: Peer, deadline_s: float) -> None:
        began, pause = time.monotonic(), 0.0
        while not over():
            # A peer may have done its part of this call before it died or stopped.
            self._check_health(peer.rank, deadline_s, over)
            self._write_and_poll(None, 0)
            time.sleep(pause)
            if time.monotonic() - began > YIELD_S:
                pause = min(LONGEST_SLEEP_S, pause + 0.0001)
        with self._fence:
            pass

    def _wait_for_sockets(self, reading: Stream | None, waited_for: int, deadline_s: float) -> None:
        self._write_and_poll(reading, 10)
        self._check_health(waited_for, deadline_s, None)

    def _write_and_poll(self, reading: Stream | None, milliseconds: int) -> None:
        """Write what is queued. Wait at most some milliseconds until a stream can be written or read."""
        poller, found = select.poll(), {}
        for peer in self._peers:
            for stream in () if peer.sockets is None else peer.sockets.streams:
                events = (select.POLLOUT if stream.queue else 0) | (select.POLLIN if stream is reading else 0)
                if events:
                    poller.register(stream.socket, events)
                    found[stream.socket.fileno()] = peer
        if not found:
            return
        for descriptor, events in poller.poll(milliseconds):
            if events & ~select.POLLIN:
                self._write(found[descriptor])

    def _write(self, peer: Peer) -> None:
        assert peer.sockets is not None
        try:
            peer.sockets.write()
        except OSError:
            raise self._lost(peer) from None

    def _read(self, peer: Peer, stream: Stream, into: memoryview, deadline_s: float) -> None:
        while len(into):
            try:
                got = stream.read(into)
            except (BlockingIOError, InterruptedError):
                self._wait_for_sockets(stream, peer.rank, deadline_s)
                continue
            except AlteredError:
                raise Stop(ALTERED, peer.rank) from None
            except OSError:
                got = 0
            if not got:
                raise self._lost(peer)
            into = into[got:]
            self._write_and_poll(None, 0)

    def _lost(self, peer: Peer) -> Stop:
        """A stream has ended: its peer is gone, or has said why on its control connection."""
        return Stop(self._check_control(peer) or PEER_DIED, peer.rank)

    # The failure detector

    def _check_health(self, waited_for: int, deadline_s: float, over: Callable[[], bool] | None) -> None:
        """Raise if a peer has failed or the deadline has passed, unless what this rank waits for has arrived."""
        if self._aborted:
            raise Stop(INTERRUPTED, self._rank)
        now_s = time.monotonic()
        if now_s - self._checked_s > HEALTH_CHECK_S:
            self._checked_s = now_s
            found = self._check_peers()
            if found is not None and not (over is not None and over()):
                raise found
        if now_s > deadline_s and not (over is not None and over()):
            raise Stop(TIMED_OUT, waited_for)

    def _check_peers(self) -> Stop | None:
        """Has any peer died, given up, left, or made another call? All are checked, not only the one waited for."""
        found = None
        for peer in self._peers:
            if peer.rank == self._rank:
                continue
            outcome = 0
            if peer.words is None:
                outcome = self._check_control(peer)
            elif not self._made_same_calls(peer):
                outcome = MISMATCHED
            elif peer.words.ends(self._call):
                outcome = PEER_GAVE_UP
            elif is_dead(peer.pidfd) and not peer.words.outcome:
                outcome = PEER_DIED
            if outcome and (found is None or SEVERITY[outcome] > SEVERITY[found.outcome]):
                found = Stop(outcome, peer.rank)
        return found

    def _check_control(self, peer: Peer) -> int:
        if peer.control is None:
            return 0
        ended, outcome, culprit, call = peer.control.look()
        if outcome:
            peer.report = (outcome, culprit, call)
        return ended or (PEER_GAVE_UP if ends_call(outcome, call, self._call) else 0)

    def _made_same_calls(self, peer: Peer) -> bool:
        """Whether a peer made the same calls as this rank, as far as it has come."""
        words = peer.words
        assert words is not None
        for call in range(max(peer.verified + 1, self._call - WINDOW + 1, 1), self._call + 1):
            at = call_record_at(call)
            number = words.word(at + offset_of(CALL_RECORD, "number"))
            if number < call:
                return True
            chain, known = words.word(at + offset_of(CALL_RECORD, "chain")), self._chains.get(call)
            unchanged = number == call == words.word(at + offset_of(CALL_RECORD, "number"))
            if unchanged and known is not None and chain != known:
                return False
            peer.verified = call
        return True

    # Telling peers that this rank stops

    def _give_up(self, outcome: int, culprit: int) -> None:
        """Say in the segment and on the control connections why this rank stops. The first outcome stays."""
        if not self._own.outcome:
            self._own.set_half(offset_of(HEADER, "culprit"), culprit)
            self._own.set_word(offset_of(HEADER, "outcome_call"), self._call)
            with self._fence:
                self._own.set_half(offset_of(HEADER, "outcome"), outcome)
            for peer in range(self._world):
                at = channel_at(peer)
                self._own.set_word(at + offset_of(CHANNEL, "outcome_call"), self._call)
                with self._fence:
                    self._own.set_half(at + offset_of(CHANNEL, "outcome"), outcome)
        for one in self._peers:
            if one.sockets is not None:
                one.sockets.clear()
            if one.control is not None:
                one.control.say_goodbye(outcome, culprit, self._call)


def is_dead(pidfd: int) -> bool:
    """Whether a process has ended; False for one that is not watched."""
    return pidfd >= 0 and bool(ended_processes([pidfd]))
