"""Consensus between the ranks of a communicator: one decision per topic, which every rank reads alike."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from choreo.run.consensus.between_hosts import decide_between_hosts, known_decision
from choreo.run.consensus.failure_detector import FailureDetector
from choreo.run.consensus.ledger import Ledger

__all__ = ["MEMBERS", "Consensus", "Outcome"]

MEMBERS = "members "  # topics on which ranks stay in the next communicator, one for each attempt


class Outcome(msgspec.Struct, array_like=True):
    """What ranks decide when they build a new communicator: whether a step succeeded, and which ranks were lost."""

    ok: bool
    lost: tuple[int, ...] = ()


class Consensus:
    """Decides by the ledger within a host, and by rounds between hosts. `hosts` are the ranks of each host."""

    def __init__(self, detector: FailureDetector, ledger: Ledger, hosts: tuple[tuple[int, ...], ...]) -> None:
        self._detector, self._ledger, self._hosts = detector, ledger, hosts

    def decided(self, topic: str) -> bytes | None:
        """The decision on a topic, if there is one."""
        channel = self._detector.channel
        return self._ledger.decided(topic) if channel is None else known_decision(self._ledger, channel, topic)

    def is_under_way(self, topic: str) -> bool:
        """Whether there is a decision on a topic, or other ranks are waiting for this one to make it."""
        channel = self._detector.channel
        return self.decided(topic) is not None or (channel is not None and topic in channel.topics)

    def decide(self, topic: str, proposal: bytes, takes_part: Callable[[int], bool] = lambda _: True) -> bytes:
        """Propose a value; returns the decision. `takes_part` says which of the live ranks to wait for."""
        detector = self._detector
        if detector.channel is None:
            return self._ledger.decide(topic, proposal)

        def waits_for(rank: int) -> bool:
            return rank not in detector.dead() and rank not in detector.gone() and takes_part(rank)

        return decide_between_hosts(
            self._ledger, detector.channel, self._hosts, detector.rank, topic, proposal, waits_for
        )

    def decide_outcome(self, topic: str, proposal: Outcome, takes_part: Callable[[int], bool]) -> Outcome:
        """Decide on an outcome."""
        decided = self.decide(topic, msgspec.msgpack.encode(proposal), takes_part)
        return msgspec.msgpack.decode(decided, type=Outcome)

    def is_excluded(self) -> bool:
        """Whether the other ranks have gone on without this one."""
        decisions = self._ledger.all_decided(MEMBERS)
        return any(self._detector.rank in msgspec.msgpack.decode(one, type=Outcome).lost for one in decisions)

    def close(self) -> None:
        """Close the ledger."""
        self._ledger.close()
