"""A model of a view change: all orders in which hosts can decide who goes on, explored one by one.

Hosts propose by the product's own `paxos` and `quorum`; the model is only the network and the crashes. A message that
was sent stays in the network: it may be delivered late, in any order, twice, or, since nobody must deliver it, never. A
cut is a set of messages that are not delivered, and a host that is cut off, stopped or dead takes no further steps. So
every way in which some hosts go on without others is among the orders that are explored.

What a proposer heard matters only when it has heard enough. So hearing a set of promises is one step, which is tried
with every set that is just enough (partial-order reduction). Hosts that nothing distinguishes may be exchanged
(symmetry).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations
from typing import NamedTuple

from choreo.run.consensus.paxos import NEVER, Acceptor, Promise, Proposer
from choreo.run.consensus.quorum import Quorum


class Ballot(NamedTuple):
    """One ballot, and the messages of it that matter: promises until there is a value, and acceptances of that."""

    proposer: int
    number: int
    promises: frozenset[Promise] = frozenset()
    value: bytes | None = None
    accepted_by: frozenset[int] = frozenset()


class State(NamedTuple):
    """What the voters hold, and all ballots so far."""

    voters: tuple[Acceptor, ...]
    ballots: tuple[Ballot, ...] = ()


class Model:
    """Hosts with so many ranks each, of which `who` propose, in at most so many ballots in all."""

    def __init__(
        self, sizes: tuple[int, ...], who: tuple[int, ...], ballots: int, quorum: type[Quorum] = Quorum
    ) -> None:
        self.quorum, self.who, self.most, self.hosts = quorum(hosts_of(sizes)), who, ballots, range(len(sizes))
        self.is_enough = cache(self.quorum.is_enough)
        self.states = self.decided = 0
        self._progressed: set[object] = set()
        self._decides = cache(self.one_more_ballot)
        # Rank 0's host breaks ties, and proposers have their own values; all others of one size are alike.
        others = [host for host in self.hosts if host not in who and host != 0]
        groups = [[host for host in others if sizes[host] == size] for size in sorted(set(sizes))]
        self._alike = [group for group in groups if len(group) > 1]
        self._just_enough = list(self._sets())

    def explore(self) -> None:
        """Visit every state; AssertionError if two values are chosen, or if one cannot come to a decision."""
        start = State((Acceptor(),) * len(self.hosts))
        seen, waiting = {start}, [start]
        while waiting:
            state = waiting.pop()
            self.states += 1
            chosen = self.chosen(state)
            assert len(chosen) <= 1, state
            self.decided += len(chosen)
            self.check_progress(state, chosen)
            for after in map(self.canonical, self.steps(state)):
                if after not in seen:
                    seen.add(after)
                    waiting.append(after)

    def chosen(self, state: State) -> set[bytes]:
        """The values that enough voters have accepted in one ballot, whoever knows of it."""
        return {
            ballot.value for ballot in state.ballots if ballot.value is not None and self.is_enough(ballot.accepted_by)
        }

    def steps(self, state: State) -> Iterator[State]:
        """Everything that can happen next."""
        if len(state.ballots) < self.most:
            for number in range(len(self.who)):
                yield self.begin(state, number)
        live = {ballot.proposer: ballot.number for ballot in state.ballots}  # a proposer has forgotten its earlier ones
        for at, ballot in enumerate(state.ballots):
            promised = {one.voter for one in ballot.promises}
            for voter, acceptor in enumerate(state.voters):
                if ballot.value is None:
                    if voter in promised:
                        continue
                    after, agreed = acceptor.prepare(ballot.number)
                    if agreed:
                        promise = Promise(voter, after.accepted, after.value)
                        heard = Ballot(ballot.proposer, ballot.number, ballot.promises | {promise})
                        yield self.changed(state, at, heard, voter, after)
                elif voter not in ballot.accepted_by:
                    after, agreed = acceptor.accept(ballot.number, ballot.value)
                    if agreed:
                        accepted = Ballot(*ballot[:4], ballot.accepted_by | {voter})
                        yield self.changed(state, at, accepted, voter, after)
            if ballot.value is None and live[ballot.proposer] == ballot.number:
                yield from self.propose(state, at, ballot)

    def begin(self, state: State, number: int) -> State:
        """A proposer begins a ballot, above all others: a lower one would only be refused."""
        above = max((ballot.number for ballot in state.ballots), default=NEVER)
        begun = Proposer(bytes([number])).begin(self.who[number], above)
        # A ballot that a proposer leaves behind can no longer get a value, so its promises do not matter.
        left = [
            one._replace(promises=frozenset()) if one.proposer == number and one.value is None else one
            for one in state.ballots
        ]
        return state._replace(ballots=(*left, Ballot(number, begun.ballot)))

    def propose(self, state: State, at: int, ballot: Ballot) -> Iterator[State]:
        """A proposer has just heard enough promises; it asks for acceptance of a value."""
        values = set()
        promised = {promise.voter: promise for promise in ballot.promises}
        for voters in self._just_enough:
            if promised.keys() >= set(voters):
                proposer = Proposer(bytes([ballot.proposer]), ballot.number)
                for voter in voters:
                    proposer = proposer.on_promise(ballot.number, promised[voter], self.is_enough)
                assert proposer.value is not None
                values.add(proposer.value)
        for value in values:
            yield self.changed(state, at, ballot._replace(promises=frozenset(), value=value))

    def changed(self, state: State, at: int, ballot: Ballot, voter: int = -1, after: Acceptor | None = None) -> State:
        """The state with one ballot replaced, and one voter."""
        voters = state.voters if after is None else (*state.voters[:voter], after, *state.voters[voter + 1 :])
        return State(voters, (*state.ballots[:at], ballot, *state.ballots[at + 1 :]))

    def check_progress(self, state: State, chosen: set[bytes]) -> None:
        """If the network is back and just enough hosts are up, one more ballot decides, and on what was chosen."""
        key = (state.voters, frozenset(chosen))
        if key in self._progressed:
            return
        self._progressed.add(key)
        for up in self._just_enough:
            value = self._decides(tuple((voter, state.voters[voter]) for voter in up))
            assert not chosen or chosen == {value}, (state, up)

    def one_more_ballot(self, up: tuple[tuple[int, Acceptor], ...]) -> bytes:
        """What one more ballot decides if these hosts are up. No other host matters to it, so it is tried once."""
        above = max(acceptor.promised for _, acceptor in up)
        proposer, promised = Proposer(b"new").begin(min(up)[0], above), []
        for voter, acceptor in up:
            after, agreed = acceptor.prepare(proposer.ballot)
            assert agreed, up
            promised.append((voter, after))
            promise = Promise(voter, after.accepted, after.value)
            proposer = proposer.on_promise(proposer.ballot, promise, self.is_enough)
        value = proposer.value
        assert value is not None, up
        for voter, acceptor in promised:
            _, agreed = acceptor.accept(proposer.ballot, value)
            assert agreed, up
            proposer = proposer.on_acceptance(proposer.ballot, voter)
        assert self.is_enough(proposer.acceptances), up
        return value

    def canonical(self, state: State) -> State:
        """The same state, with hosts exchanged that nothing distinguishes."""
        for group in self._alike:
            order = sorted(group, key=lambda host: _about(state, host))
            if order != group:
                state = _renamed(state, dict(zip(order, group, strict=True)))
        return state

    def _sets(self) -> Iterator[tuple[int, ...]]:
        """The sets of hosts that may decide, and could not before the last of them answered."""
        for count in range(1, len(self.hosts) + 1):
            for one in map(frozenset, combinations(self.hosts, count)):
                last = [host for host in one if not self.is_enough(one - {host})]
                if last and self.is_enough(one):
                    yield (*sorted(one - {last[0]}), last[0])


def hosts_of(sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The ranks of hosts with so many each."""
    firsts = [sum(sizes[:number]) for number in range(len(sizes))]
    return tuple(tuple(range(first, first + size)) for first, size in zip(firsts, sizes, strict=True))


def _about(state: State, host: int) -> tuple[object, ...]:
    """All that a state holds of a host, in an order that can be compared."""
    promises = [[one[1:] for one in ballot.promises if one.voter == host] for ballot in state.ballots]
    return state.voters[host], promises, [host in ballot.accepted_by for ballot in state.ballots]


def _renamed(state: State, new: dict[int, int]) -> State:
    voters = list(state.voters)
    for old, to in new.items():
        voters[to] = state.voters[old]
    ballots = (
        ballot._replace(
            promises=frozenset(one._replace(voter=new.get(one.voter, one.voter)) for one in ballot.promises),
            accepted_by=frozenset(new.get(one, one) for one in ballot.accepted_by),
        )
        for ballot in state.ballots
    )
    return State(tuple(voters), tuple(ballots))
