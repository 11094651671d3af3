"""Who goes on after a cut: the rule, and every order of events in which hosts can decide it (see `model`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import product

import pytest

from choreo.errors import UsageError
from choreo.run.consensus.paxos import Acceptor, Promise, Proposer, ballot_of
from choreo.run.consensus.quorum import Quorum, given_quorum
from tests.run.consensus.model import Model, hosts_of

SIZES = [
    (1,),
    (1, 1),
    (2, 2),
    (3, 1),
    (1, 3),
    (1, 1, 1),
    (2, 1, 1),
    (1, 2, 1),
    (4, 4, 4),
    (1, 1, 1, 1),
    (2, 1, 1, 1, 1),
]


def partitions(count: int, sides: int) -> Iterator[list[set[int]]]:
    """All ways to cut so many hosts into so many sides, empty ones among them."""
    for where in product(range(sides), repeat=count):
        yield [{host for host in range(count) if where[host] == side} for side in range(sides)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_of_two_sides_one_goes_on_and_of_more_at_most_one(sizes: tuple[int, ...]) -> None:
    quorum = Quorum(hosts_of(sizes))
    for one, other in partitions(len(sizes), 2):
        assert quorum.is_enough(one) != quorum.is_enough(other)
    for sides in partitions(len(sizes), 3):
        assert sum(map(quorum.is_enough, sides)) <= 1
    for both in product(range(1 << len(sizes)), repeat=2):
        sets = [{host for host in range(len(sizes)) if bits >> host & 1} for bits in both]
        if all(map(quorum.is_enough, sets)):
            assert sets[0] & sets[1], "any two sides that may decide have a host in common"


def test_the_votes_of_the_dead_are_their_hosts() -> None:
    quorum = Quorum(((0, 1, 2, 3), (4, 5)))
    assert quorum.can_go_on([3]) and not quorum.can_go_on([4, 5])
    assert quorum.verdict([4]) == "this side has 2 of 6 votes"
    assert Quorum(((0, 2), (1, 3))).verdict([1, 3]) == "this side has 2 of 4 votes, and the other half has rank 0"
    assert Quorum(((0, 1), (2,)), "any").can_go_on([2])


def test_the_rule_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHOREO_QUORUM", raising=False)
    assert given_quorum(None) == "majority"
    monkeypatch.setenv("CHOREO_QUORUM", "any")
    assert (given_quorum(None), given_quorum("majority")) == ("any", "majority")
    with pytest.raises(UsageError, match="quorum is most; write majority or any"):
        given_quorum("most")
    monkeypatch.setenv("CHOREO_QUORUM", "all")
    with pytest.raises(UsageError, match="CHOREO_QUORUM is all"):
        given_quorum(None)


def test_a_proposer_takes_over_what_may_be_chosen() -> None:
    proposer = Proposer(b"mine").begin(1, above=ballot_of(2, above=0))
    both = frozenset({0, 1})
    proposer = proposer.on_promise(proposer.ballot, Promise(0, 5, b"theirs"), both.__le__)
    assert proposer.value is None
    proposer = proposer.on_promise(proposer.ballot, Promise(1, 0, b""), both.__le__)
    assert proposer.value == b"theirs"
    voter, agreed = Acceptor().prepare(7)
    assert agreed and not voter.prepare(6)[1] and not voter.accept(6, b"late")[1]


# Hosts, which of them propose, and how many ballots there are.
PLAIN = [((1, 1, 1), (0, 1), 3), ((2, 1, 1), (0, 1), 2), ((1, 1, 1, 1), (1, 2), 2), ((1, 1, 1, 1, 1), (0, 1), 2)]
GRID = [
    ((1, 1, 1), (0, 1, 2), 3),
    ((2, 1, 1), (0, 1), 3),
    ((1, 1, 1, 1), (0, 1), 3),  # 640,000 states
    ((2, 1, 1, 1), (0, 1), 2),
    ((1, 1, 1, 1, 1), (1, 2), 2),
]


@pytest.mark.parametrize(("sizes", "who", "ballots"), PLAIN)
def test_every_order_of_events(sizes: tuple[int, ...], who: tuple[int, ...], ballots: int) -> None:
    model = Model(sizes, who, ballots)
    model.explore()
    print(f"{model.states} states, {model.decided} of them with a decision")
    assert model.states > 2000 and model.decided > 500


@pytest.mark.grid
@pytest.mark.parametrize(("sizes", "who", "ballots"), GRID)
def test_every_order_of_more_events(sizes: tuple[int, ...], who: tuple[int, ...], ballots: int) -> None:
    test_every_order_of_events(sizes, who, ballots)


class Half(Quorum):
    """A rule that is wrong: either half may decide."""

    def is_enough(self, voters: Collection[int]) -> bool:
        return 2 * self.votes(voters) >= self.votes(range(len(self.hosts)))


def test_the_model_finds_what_a_wrong_rule_allows() -> None:
    with pytest.raises(AssertionError):
        Model((1, 1), (0, 1), 2, Half).explore()
