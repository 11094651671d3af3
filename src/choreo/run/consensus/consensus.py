"""Consensus between the ranks of a communicator: one decision per topic, the same for every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from choreo.run.consensus.between_hosts import SILENT_S, HostConsensus
from choreo.run.consensus.failure_detector import FailureDetector
from choreo.run.consensus.ledger import Ledger
from choreo.run.consensus.quorum import Quorum

__all__ = ["MEMBERS", "Consensus", "Outcome", "pack_ranks", "unpack_ranks"]

MEMBERS = "members "  # prefix of the topics "which ranks stay in the next communicator", one for each attempt


class Outcome(msgspec.Struct, array_like=True):
    """A decision about building a new communicator: whether a step succeeded, whom the ranks lost, and why."""

    ok: bool
    lost: bytes = b""  # one bit per rank: thousands fit into an entry of the ledger
    why: str = ""

    @property
    def lost_ranks(self) -> frozenset[int]:
        """The ranks that were lost."""
        return unpack_ranks(self.lost)


class Consensus:
    """Decides by the ledger within a host, and by Paxos between hosts."""

    def __init__(self, detector: FailureDetector, ledger: Ledger, quorum: Quorum) -> None:
        self._detector, self._ledger, self.quorum = detector, ledger, quorum
        channel = detector.channel
        self._hosts = None if channel is None else HostConsensus(ledger, channel, quorum, detector.rank)

    def decided(self, topic: str) -> bytes | None:
        """The decision on a topic, if there is one."""
        return self._ledger.decided(topic) if self._hosts is None else self._hosts.decided(topic)

    def is_in_progress(self, topic: str) -> bool:
        """Whether there is a decision on a topic, or other ranks are waiting for this one to make it."""
        channel = self._detector.channel
        return self.decided(topic) is not None or (channel is not None and topic in channel.topics)

    def can_go_on_without(self, ranks: Iterable[int]) -> bool:
        """Whether the hosts of all other ranks may decide."""
        lost = set(ranks)
        return self.quorum.can_go_on(rank for rank in range(self._detector.world_size) if rank not in lost)

    def announce(self, topic: str, value: bytes) -> None:
        """Tell all ranks about a decision that was made elsewhere."""
        if self._hosts is None:
            self._ledger.decide(topic, value)
        else:
            self._hosts.announce(topic, value)

    def decide(
        self,
        topic: str,
        proposal: bytes | None,
        takes_part: Callable[[int], bool] = lambda _: True,
        patience_s: float = SILENT_S,
    ) -> bytes | None:
        """Propose a value, or none; returns the decision, or None if there is no quorum for it within `patience_s`.

        With the rule "any" it waits for the live ranks in the consensus, and there is always a decision.
        """
        if self._hosts is None:
            return self._ledger.decided(topic) if proposal is None else self._ledger.decide(topic, proposal)
        detector = self._detector

        def live_ranks() -> set[int]:
            return set(range(detector.world_size)) - detector.dead() - detector.gone().keys()

        return self._hosts.decide(topic, proposal, live_ranks, takes_part, patience_s)

    def decide_outcome(
        self, topic: str, proposal: Outcome, takes_part: Callable[[int], bool], patience_s: float
    ) -> Outcome | None:
        """Decide on an outcome; None if there is no quorum. Only ranks on a side that may continue propose."""
        mine = msgspec.msgpack.encode(proposal) if self.can_go_on_without(proposal.lost_ranks) else None
        decided = self.decide(topic, mine, takes_part, patience_s)
        return None if decided is None else msgspec.msgpack.decode(decided, type=Outcome)

    def went_on(self) -> tuple[int, ...]:
        """The ranks that have continued without this one, if they have."""
        for decision in self._ledger.all_decided(MEMBERS):
            lost = msgspec.msgpack.decode(decision, type=Outcome).lost_ranks
            if self._detector.rank in lost:
                return tuple(rank for rank in range(self._detector.world_size) if rank not in lost)
        return ()

    def close(self) -> None:
        """Close the ledger."""
        self._ledger.close()


def pack_ranks(ranks: Iterable[int]) -> bytes:
    """Ranks as bits.

    >>> unpack_ranks(pack_ranks([9, 1])) == {1, 9}
    True
    """
    bits = sum(1 << rank for rank in set(ranks))
    return bits.to_bytes(-(-bits.bit_length() // 8), "little")


def unpack_ranks(packed: bytes) -> frozenset[int]:
    """The ranks that were packed."""
    bits = int.from_bytes(packed, "little")
    return frozenset(rank for rank in range(bits.bit_length()) if bits >> rank & 1)
