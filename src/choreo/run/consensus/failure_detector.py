"""The failure detector: what one rank of a communicator knows about the others.

It reads the segments of the ranks on its own host, and watches their processes. Control connections tell it about the
ranks on other hosts.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterable

import msgspec

from choreo.run.consensus import status as segments
from choreo.run.consensus.control_channel import UNACKNOWLEDGED_S, ControlChannel, HostReport, StatusUpdate
from choreo.run.consensus.status import CallDirectory, Status
from choreo.run.execute.failures import INTERRUPTED, LEFT, PEER_GAVE_UP
from choreo.run.execute.layout import WINDOW
from choreo.run.execute.processes import ended_processes
from choreo.run.rendezvous.processes import is_stopped
from choreo.run.transport.peer_info import PeerInfo

__all__ = ["FailureDetector", "short_text"]

MOST_TEXT_BYTES = 160  # of a call in a status or a decision: four fit into an entry of the ledger
REPORTED_CALLS = 128  # of all ranks of a host together, in a report; at least one of each


def short_text(text: str) -> str:
    """The text of a call, cut to fit into a status or a decision.

    >>> len(short_text("\N{GREEK SMALL LETTER ALPHA}" * 200))
    80
    """
    return text.encode()[:MOST_TEXT_BYTES].decode(errors="ignore")


class FailureDetector:
    """The other ranks, as one rank sees them. `channel` reaches ranks on other hosts, if there are any."""

    def __init__(
        self,
        rank: int,
        peers: tuple[PeerInfo, ...],
        own: mmap.mmap,
        *,
        maps: list[mmap.mmap | None],
        pidfds: list[int],
        directory_at: int,
        channel: ControlChannel | None = None,
    ) -> None:
        self.rank, self.world_size, self.peers = rank, len(peers), peers
        self.directory = CallDirectory(own, directory_at)
        self.status = Status()
        self.channel = channel
        self._own, self._number = own, 0
        self._maps: list[mmap.mmap | None] = [own if at == rank else mapped for at, mapped in enumerate(maps)]
        self._pidfds = pidfds
        self._dead: set[int] = set()
        self._reported: HostReport | None = None

    def publish(self, **changes: object) -> None:
        """Change fields of this rank's status, for the others to read."""
        before, self.status = self.status, msgspec.structs.replace(self.status, **changes)
        self._number += 1
        segments.write_status(self._own, self._number, self.status)
        if self.channel is None:
            return
        if self.status.cause or self.status.attempt >= 0:
            self.channel.send(StatusUpdate(self.status))
            return
        # Normal operation: a progress frame is enough, and disturbs no call.
        for connection in self.channel.connections.values():
            if self.status.reduced != before.reduced:
                connection.send_progress(0, self.status.reduced)
            if self.status.returned != before.returned:
                connection.send_progress(1, self.status.returned)

    def leave_calls(self, last: int) -> None:
        """Tell other hosts that this rank has done its part of all calls up to the last, and makes no more.

        They may still be in that call, and what it sends them from now on must not end it.
        """
        for connection in () if self.channel is None else self.channel.connections.values():
            connection.say_goodbye(PEER_GAVE_UP, self.rank, last + 1)

    def status_of(self, rank: int) -> Status:
        """The status that a rank has published."""
        channel = self._channel_to(rank)
        if channel is not None:
            return channel.status_of(rank)
        theirs = self._maps[rank]
        return Status() if theirs is None else segments.read_status(theirs)

    def gave_up(self, rank: int) -> tuple[int, int, int]:
        """The reason why a rank's executor gave up, the rank it blames, and the call."""
        channel = self._channel_to(rank)
        if channel is not None:
            return channel.connections[rank].gave_up
        theirs = self._maps[rank]
        return (0, 0, 0) if theirs is None else segments.gave_up(theirs)

    def call_of(self, rank: int) -> tuple[int, str]:
        """The last call that a rank began, and its text; call -1 if it is unknown."""
        channel = self._channel_to(rank)
        if channel is not None:
            status = channel.statuses.get(rank)
            if status is not None and status.cause:
                return status.number, status.text
            outcome, _, last = channel.connections[rank].gave_up
            return (last, "") if outcome == LEFT else max(channel.calls.get(rank, {}).items(), default=(-1, ""))
        return self._began(rank, 1, sys.maxsize)[0]

    def calls_of(self, rank: int) -> dict[int, str]:
        """The last few calls that a rank began, and their texts, as far as they are known here."""
        status, channel = self.status_of(rank), self._channel_to(rank)
        known = dict([(status.number, status.text) if status.cause else self.call_of(rank)])
        known |= dict(self._began(rank, WINDOW, sys.maxsize)) if channel is None else channel.calls.get(rank, {})
        return {number: text for number, text in known.items() if number > 0 and text}

    def dead(self) -> frozenset[int]:
        """Ranks whose process or connection has ended."""
        watched = {fd: rank for rank, fd in enumerate(self._pidfds) if fd >= 0 and rank not in self._dead}
        self._dead |= {watched[fd] for fd in ended_processes(watched)}
        if self.channel is not None:
            if self.status.cause or self.status.attempt >= 0:
                self.channel.poll()
            else:
                self.channel.check()
            self._dead |= set(self.channel.dead())
        return frozenset(self._dead)

    def gone(self) -> dict[int, int]:
        """Ranks that make no more calls, and why: they have left, or were interrupted."""
        outcomes = {rank: self.gave_up(rank)[0] for rank in self._others()}
        return {rank: outcome for rank, outcome in outcomes.items() if outcome in (LEFT, INTERRUPTED)}

    def unresponsive(self, ranks: Iterable[int]) -> frozenset[int]:
        """The ranks among these that will not answer soon: their process is stopped, or their host is cut off."""
        return frozenset(rank for rank in ranks if self._is_stopped(rank) or self.receives_nothing(rank))

    def is_cut_off(self, rank: int) -> bool:
        """Whether a rank's host does not acknowledge what was sent to it; something must have been sent a while ago."""
        channel = self._channel_to(rank)
        return channel is not None and channel.connections[rank].is_cut_off()

    def is_altered(self, rank: int) -> bool:
        """Whether the data on a rank's control connection was altered."""
        channel = self._channel_to(rank)
        return channel is not None and channel.connections[rank].altered

    def receives_nothing(self, rank: int) -> bool:
        """Whether what is sent to a rank does not arrive. What it sends may still arrive here: a one-way partition."""
        channel = self._channel_to(rank)
        if channel is None:
            return False
        connection, address = channel.connections[rank], self.peers[rank].address
        if connection.unacknowledged_s() >= UNACKNOWLEDGED_S:
            return True
        # The host acknowledges, so what is known about one of its ranks holds for all.
        there = [
            connection
            for at, connection in channel.connections.items()
            if address and self.peers[at].address == address
        ]
        return connection.is_cut_off() and any(
            connection.unacknowledged_s() >= UNACKNOWLEDGED_S for connection in there
        )

    def publish_acknowledged(self) -> None:
        """Publish that all other hosts have acknowledged what this rank sent, as soon as they have."""
        if self.channel is None or self.status.acknowledged:
            return
        if not any(connection.is_cut_off() for connection in self.channel.connections.values()):
            self.publish(acknowledged=True)

    def report_host(self, call: int | None = None) -> None:
        """Tell other hosts what this rank sees on its own, if that has changed; `call` is the one that failed here."""
        if self.channel is None:
            return
        here = [rank for rank in range(self.world_size) if self._channel_to(rank) is None]
        dead = tuple(sorted(self._dead & set(here)))
        stopped = tuple(rank for rank in here if rank not in dead and self._is_stopped(rank))
        most, until = max(1, REPORTED_CALLS // len(here)), self.status.number if call is None else call
        began = {rank: self._began(rank, most, until) for rank in here}
        calls = tuple((rank, number, text) for rank, last in began.items() for number, text in last)
        report = HostReport(dead, stopped, calls)
        if report != self._reported:
            self._reported = report
            self.channel.send(report)

    def close(self) -> None:
        """Close the control connections, and stop watching processes."""
        if self.channel is not None:
            self.channel.close()
        self._maps = [None] * self.world_size
        for descriptor in self._pidfds:
            if descriptor >= 0:
                os.close(descriptor)
        self._pidfds = []

    def _began(self, rank: int, most: int, until: int) -> list[tuple[int, str]]:
        """The last call that a rank of this host began, and as many as there may be of those until a call."""
        theirs = self._maps[rank]
        if theirs is None:
            return [(0, "")]
        calls = sorted(segments.calls_of(theirs).items(), reverse=True)
        wanted = calls[:1] + [call for call in calls[1:] if call[0] <= until][: most - 1]
        texts = segments.find_calls(theirs, (signature for _, signature in wanted))
        return [(number, short_text(texts.get(signature, ""))) for number, signature in wanted]

    def _is_stopped(self, rank: int) -> bool:
        """Whether a rank's process is stopped, as far as this is known."""
        channel = self._channel_to(rank)
        return is_stopped(self.peers[rank].pid) if channel is None else channel.is_stopped(rank)

    def _others(self) -> Iterable[int]:
        return (rank for rank in range(self.world_size) if rank != self.rank)

    def _channel_to(self, rank: int) -> ControlChannel | None:
        """The control channel, if this rank is on another host."""
        return self.channel if self.channel is not None and rank in self.channel.connections else None
