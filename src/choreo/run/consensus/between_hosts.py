"""Consensus between hosts, by Paxos (`paxos`): the ranks of a host are one voter, whose state is in their ledger.

Every request to a voter is an entry in the ledger, and the order of entries is its state. So any rank of the host may
answer, even one that wakes up late, and the voter lives as long as one of them does. A rank answers while it reads the
control channel: in a consensus of its own, or while it builds a new communicator. The hosts take turns to propose, so
that two seldom compete. A rank that learns a decision sends it to all ranks on other hosts, including excluded ones.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable

from choreo.run.consensus.control_channel import (
    Accept,
    Accepted,
    ControlChannel,
    Decision,
    Prepare,
    Promised,
    Refused,
)
from choreo.run.consensus.ledger import Ledger
from choreo.run.consensus.paxos import NEVER, Acceptor, Promise, Proposer
from choreo.run.consensus.quorum import ANY, Quorum

__all__ = ["SILENT_S", "HostConsensus"]

SILENT_S = 5.0  # how long to wait for votes of hosts in the consensus; they vote within milliseconds if they get a core
CUT_OFF_S = 1.5  # by the rule "any": how long to wait for a host whose kernel acknowledges nothing
TURN_S, BALLOT_S, LONGEST_BALLOT_S = 0.03, 0.5, 4.0
PAUSE_S = 0.001

_PREPARE, _ACCEPT = 0, 1
_REQUEST = struct.Struct("<BQ")  # kind and ballot; the value follows


class _Voter:
    """This host's voter on one topic: what its ranks have appended to the ledger, request by request."""

    def __init__(self, ledger: Ledger, topic: str) -> None:
        self._ledger, self._topic = ledger, f"\0vote {topic}"
        self._read = 0
        self._answers: dict[tuple[int, int], Acceptor | None] = {}
        self.state = Acceptor()

    def prepare(self, ballot: int) -> Acceptor | None:
        """The voter's state when it promised a ballot; None if it had promised a higher one."""
        return self._ask(_PREPARE, ballot, b"")

    def accept(self, ballot: int, value: bytes) -> bool:
        """Whether the voter has accepted a value."""
        return self._ask(_ACCEPT, ballot, value) is not None

    def _ask(self, kind: int, ballot: int, value: bytes) -> Acceptor | None:
        self._replay(self._ledger.entries(self._topic))
        if (kind, ballot) not in self._answers:
            self._replay(self._ledger.append(self._topic, _REQUEST.pack(kind, ballot) + value))
        return self._answers[kind, ballot]

    def _replay(self, entries: list[bytes]) -> None:
        for entry in entries[self._read :]:
            kind, ballot = _REQUEST.unpack_from(entry)
            before = self.state
            if kind == _PREPARE:
                self.state, agreed = before.prepare(ballot)
            else:
                self.state, agreed = before.accept(ballot, entry[_REQUEST.size :])
            self._answers.setdefault((kind, ballot), self.state if agreed else None)
        self._read = len(entries)


class HostConsensus:
    """One rank's side of the decisions between hosts."""

    def __init__(self, ledger: Ledger, channel: ControlChannel, quorum: Quorum, rank: int) -> None:
        self._ledger, self._channel, self._quorum, self._rank = ledger, channel, quorum, rank
        self._host = {rank: number for number, ranks in enumerate(quorum.hosts) for rank in ranks}
        self._voters: dict[str, _Voter] = {}
        self._highest: dict[str, int] = {}  # the highest ballot seen, by topic
        channel.answer = self._answer

    def decided(self, topic: str) -> bytes | None:
        """The decision on a topic, if this host knows it."""
        self._channel.poll()
        found = self._ledger.decided(topic)
        if found is None and topic in self._channel.decisions:
            found = self.announce(topic, self._channel.decisions[topic])
        return found

    def announce(self, topic: str, value: bytes) -> bytes:
        """Write a decision into this host's ledger, and send it to all ranks on other hosts."""
        found = self._ledger.decide(topic, value)
        self._channel.send(Decision(topic, found))
        return found

    def decide(
        self,
        topic: str,
        proposal: bytes | None,
        live_ranks: Callable[[], set[int]],
        takes_part: Callable[[int], bool],
        patience_s: float,
    ) -> bytes | None:
        """Propose a value, or none; returns the decision, or None if there is no quorum for it within `patience_s`.

        `live_ranks` are those that may still vote. `takes_part` says which of them the rule "any" waits for.
        """
        began_s, channel = time.monotonic(), self._channel
        proposer, ballot_s = Proposer(proposal or b""), BALLOT_S
        mine: Promise | None = None  # this host's own
        next_s = began_s + TURN_S * self._turn(live_ranks())
        while True:
            found = self.decided(topic)
            if found is not None:
                return found
            now_s = time.monotonic()
            live = live_ranks()
            if now_s - began_s >= patience_s or not self._quorum.can_go_on(live):
                return self.decided(topic)  # a rank that has left may have sent the decision first
            enough = self._enough([rank for rank in live if takes_part(rank)], now_s - began_s)
            if proposal is not None and now_s >= next_s:
                proposer = proposer.begin(self._rank, self._highest.get(topic, NEVER))
                next_s = now_s + ballot_s * random.uniform(0.5, 1.5)
                ballot_s = min(2 * ballot_s, LONGEST_BALLOT_S)
                channel.send(Prepare(topic, proposer.ballot))
                state = self._voter(topic).prepare(proposer.ballot)
                mine = None if state is None else Promise(self._host[self._rank], state.accepted, state.value)
            if mine is not None:  # in every round: with the rule "any", fewer votes may be enough by now
                proposer = self._promised(topic, proposer, mine, enough)
            for rank, reply in channel.take_replies(topic):
                if isinstance(reply, Promised):
                    promise = Promise(self._host[rank], reply.accepted, reply.value)
                    if reply.ballot == proposer.ballot:
                        proposer = self._promised(topic, proposer, promise, enough)
                elif isinstance(reply, Accepted):
                    proposer = proposer.on_acceptance(reply.ballot, self._host[rank])
                else:
                    self._highest[topic] = max(self._highest.get(topic, NEVER), reply.promised)
            if proposer.value is not None and enough(proposer.acceptances):
                return self.announce(topic, proposer.value)
            time.sleep(PAUSE_S)

    def _promised(
        self, topic: str, proposer: Proposer, promise: Promise, enough: Callable[[frozenset[int]], bool]
    ) -> Proposer:
        """Count a promise. If it completes a quorum, ask all voters to accept."""
        after = proposer.on_promise(proposer.ballot, promise, enough)
        if proposer.value is None and after.value is not None:
            self._channel.send(Accept(topic, after.ballot, after.value))
            if self._voter(topic).accept(after.ballot, after.value):
                after = after.on_acceptance(after.ballot, self._host[self._rank])
        return after

    def _enough(self, awaited: list[int], waited_s: float) -> Callable[[frozenset[int]], bool]:
        if self._quorum.rule != ANY:
            return self._quorum.is_enough
        # Every side may continue, so it waits for all hosts that it can reach.
        if waited_s >= CUT_OFF_S:
            awaited = [rank for rank in awaited if rank == self._rank or not self._channel.is_cut_off(rank)]
        hosts = self._quorum.voters([self._rank] if waited_s >= SILENT_S else [self._rank, *awaited])
        return lambda voters: voters >= hosts

    def _turn(self, live: set[int]) -> int:
        """The number of live ranks that come before this one: the first of every host, then the second."""
        mine, hosts = self._host[self._rank], self._quorum.hosts
        before = sum(rank < self._rank for rank in live.intersection(hosts[mine]))
        return len(hosts) * before + sum(not live.isdisjoint(ranks) for ranks in hosts[:mine])

    def _voter(self, topic: str) -> _Voter:
        return self._voters.setdefault(topic, _Voter(self._ledger, topic))

    def _answer(self, sender: int, request: Prepare | Accept) -> None:
        """Answer another host's proposer for this host."""
        topic, ballot = request.topic, request.ballot
        self._highest[topic] = max(self._highest.get(topic, NEVER), ballot)
        known = self._ledger.decided(topic)
        if known is not None:
            self._channel.send_to(sender, Decision(topic, known))
            return
        voter = self._voter(topic)
        if isinstance(request, Prepare):
            state = voter.prepare(ballot)
            if state is not None:
                self._channel.send_to(sender, Promised(topic, ballot, state.accepted, state.value))
                return
        elif voter.accept(ballot, request.value):
            self._channel.send_to(sender, Accepted(topic, ballot))
            return
        self._channel.send_to(sender, Refused(topic, ballot, voter.state.promised))
