"""Single-decree Paxos (Lamport, "Paxos Made Simple"): one value is chosen, whatever is lost, late or dead.

A proposer asks voters to promise a ballot. Once enough have promised, it asks them to accept a value: the one that was
accepted in the highest ballot it hears of, or else its own. A value that enough voters accept in one ballot is chosen.
Any two sets of voters that are enough have a voter in common (`quorum`), so no other value is ever chosen.

Everything here is a value: no clock, no socket, no file. The tests explore all orders of these steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

__all__ = ["NEVER", "Acceptor", "Enough", "Promise", "Proposer", "ballot_of"]

NEVER = 0  # a ballot before all others
_RANK_BITS = 16

Enough = Callable[[frozenset[int]], bool]


def ballot_of(rank: int, above: int) -> int:
    """The lowest ballot of a rank that is above another ballot. No two ranks have a ballot in common.

    >>> ballot_of(1, above=ballot_of(3, above=NEVER)) > ballot_of(3, above=NEVER)
    True
    """
    return ((above >> _RANK_BITS) + 1) << _RANK_BITS | rank


class Acceptor(NamedTuple):
    """A voter: the ballot that it has promised, and the last value that it has accepted."""

    promised: int = NEVER
    accepted: int = NEVER
    value: bytes = b""

    def prepare(self, ballot: int) -> tuple[Acceptor, bool]:
        """Promise to accept nothing in lower ballots, unless a higher one was promised."""
        if ballot < self.promised:
            return self, False
        return Acceptor(ballot, self.accepted, self.value), True

    def accept(self, ballot: int, value: bytes) -> tuple[Acceptor, bool]:
        """Accept a value, unless a higher ballot was promised."""
        if ballot < self.promised:
            return self, False
        return Acceptor(ballot, ballot, value), True


class Promise(NamedTuple):
    """A voter's promise of a ballot, with what it had accepted before."""

    voter: int
    accepted: int
    value: bytes


class Proposer(NamedTuple):
    """A proposer's present ballot. `value` is None until enough voters have promised."""

    own: bytes
    ballot: int = NEVER
    promises: frozenset[Promise] = frozenset()
    value: bytes | None = None
    acceptances: frozenset[int] = frozenset()

    def begin(self, rank: int, above: int) -> Proposer:
        """Begin a ballot above another one."""
        return Proposer(self.own, ballot_of(rank, max(above, self.ballot)))

    def on_promise(self, ballot: int, promise: Promise, enough: Enough) -> Proposer:
        """The proposer after a voter has promised."""
        if ballot != self.ballot or self.value is not None:
            return self
        promises = self.promises | {promise}
        if not enough(frozenset(promise.voter for promise in promises)):
            return self._replace(promises=promises)
        highest = max(promises, key=lambda given: given.accepted)
        return self._replace(promises=promises, value=self.own if highest.accepted == NEVER else highest.value)

    def on_acceptance(self, ballot: int, voter: int) -> Proposer:
        """The proposer after a voter has accepted."""
        if ballot != self.ballot or self.value is None:
            return self
        return self._replace(acceptances=self.acceptances | {voter})
