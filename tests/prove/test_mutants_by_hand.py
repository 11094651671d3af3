"""The proof against the oracle: nasty schedules, written by hand."""

from __future__ import annotations

import pytest

from choreo.errors import ProofError, ScheduleError
from tests.helpers.mutants import METHODS, add, check_agreement, check_story, refusal, store
from tests.helpers.strategies import COLLECTIVES, is_rooted
from tests.oracles.replay import Case, any_order_gives_the_same, reason, right


@pytest.mark.parametrize("extra", [0, 1], ids=["alone", "plus one"])
@pytest.mark.parametrize(
    "doublings", [1, 7, 8, 15, 16, 17, 19, 31, 32, 33, 52, 53, 61, 62, 63, 64, 65, 70, 89, 107, 127, 128, 200]
)
def test_a_count_beyond_any_machine_word_is_not_one(doublings: int, extra: int) -> None:
    # Ranks 1 and 2 add what they have to one another: 2^k times the share of rank 0, then perhaps once more.
    # In words of k bits that is none or one; modulo a Mersenne prime 2^k - 1 it is one or two.
    rows = [
        store(0, 0, 1),
        store(0, 0, 2),
        store(0, 1, 0, 1),
        store(0, 1, 2, 1),
        store(0, 2, 0, 2),
        store(0, 2, 1, 2),
    ]
    for step in range(1, 1 + doublings):
        rows += [add(step, 1, 2), add(step, 2, 1)]
    rows += [add(1 + doublings, 0, rank) for rank in (1, 2) if extra]
    case = Case("all_gather", 3, None, 3, tuple(rows))
    assert not right(case)
    for exact in METHODS:
        error = refusal(case, exact)
        assert isinstance(error, ProofError)
        assert (error.kind, error.chunk, error.contributor) == ("doubled", 0, 0)
        check_story(case, error)


@pytest.mark.parametrize("doublings", [31, 32, 61, 64, 70, 127, 128])
def test_a_sum_doubled_beyond_any_machine_word_is_not_the_sum(doublings: int) -> None:
    rows = [row for step in range(1 + doublings) for row in (add(step, 0, 1), add(step, 1, 0))]
    case = Case("all_reduce", 2, None, 1, tuple(rows))
    assert not right(case)
    assert all(isinstance(refusal(case, exact), ProofError) for exact in METHODS)


@pytest.mark.parametrize("doublings", [1, 31, 61, 64, 70, 128])
def test_a_doubled_value_may_be_replaced_by_a_right_one(doublings: int) -> None:
    rows = [store(0, 0, 1), store(0, 0, 2)]
    for step in range(1, 1 + doublings):
        rows += [add(step, 1, 2), add(step, 2, 1)]
    rows += [store(1 + doublings, 0, 1), store(1 + doublings, 0, 2)]
    check_agreement(Case("broadcast", 3, 0, 1, tuple(rows)))
    assert right(Case("broadcast", 3, 0, 1, tuple(rows)))


RIGHT: dict[str, Case] = {
    "an exchange in one step": Case("all_reduce", 2, None, 1, (add(0, 0, 1), add(0, 1, 0))),
    "two values change places, then meet": Case(
        "all_reduce", 2, None, 1, (store(0, 0, 1), store(0, 1, 0), add(1, 0, 1), add(1, 1, 0))
    ),
    "a store over what another reads in that step": Case(
        "reduce", 3, 2, 1, (add(0, 1, 2), store(0, 0, 1), add(1, 1, 2))
    ),
    "an input outlives the work place": Case(
        "all_reduce", 2, None, 1, (store(0, 0, 1), add(1, 1, 0, from_input=True), store(2, 0, 1))
    ),
    "reducing into an empty place": Case("broadcast", 3, 1, 1, (add(0, 1, 0), add(1, 0, 2))),
    "reducing two shares into an empty place": Case("reduce", 3, 0, 2, (add(0, 1, 0, 0, 2), add(0, 2, 0, 0, 2))),
    "the same value stored again": Case("broadcast", 2, 0, 1, (store(0, 0, 1), store(1, 0, 1), store(2, 1, 0))),
    "ranges that touch": Case("broadcast", 2, 0, 4, (store(0, 0, 1, 0, 2), store(0, 0, 1, 2, 2))),
    "rubbish where nobody looks": Case("reduce", 3, 0, 1, (add(0, 1, 0), add(0, 2, 0), add(1, 0, 1), add(1, 0, 2))),
    "all pairs": Case("all_to_all", 2, None, 4, (store(0, 0, 1, 1), store(0, 1, 0, 2))),
    "a round of neighbours": Case("send_recv", 3, None, 3, (store(0, 0, 1, 0), store(0, 1, 2, 1), store(0, 2, 0, 2))),
    "tokens for two": Case("barrier", 2, None, 2, (store(0, 0, 1, 0), store(0, 1, 0, 1))),
}

WRONG: dict[str, tuple[str, Case]] = {
    "reading in the step of the write": (
        "absent",
        Case("broadcast", 3, 0, 1, (store(0, 0, 1), store(0, 1, 2))),
    ),
    "reading a sum in the step of the addition": (
        "missing",
        Case("reduce", 3, 2, 1, (add(0, 0, 1), add(0, 1, 2))),
    ),
    "a store over what another reads only later": (
        "missing",
        Case("reduce", 3, 2, 1, (store(0, 0, 1), add(1, 1, 2))),
    ),
    "reducing twice into an empty place": (
        "doubled",
        Case("broadcast", 2, 0, 1, (add(0, 0, 1), add(1, 0, 1))),
    ),
    "reducing twice at once into an empty place": (
        "doubled",
        Case("broadcast", 2, 0, 1, (add(0, 0, 1), add(0, 0, 1))),
    ),
    "an input that is not there": (
        "absent",
        Case("broadcast", 3, 0, 1, (store(0, 0, 1), store(1, 1, 2, from_input=True))),
    ),
    "the input for the sum": (
        "missing",
        Case("all_reduce", 2, None, 1, (add(0, 0, 1), store(1, 1, 0, from_input=True))),
    ),
    "as many shares as promised, but one twice": (
        "doubled",
        Case("reduce", 3, 2, 1, (store(0, 0, 1), add(1, 1, 2), add(1, 0, 2))),
    ),
    "one share twice besides all others": (
        "doubled",
        Case("reduce", 3, 0, 1, (add(0, 1, 0), add(0, 2, 0), add(1, 1, 0))),
    ),
    "two stores": (
        "contradiction",
        Case("all_gather", 2, None, 2, (store(0, 0, 1), store(0, 0, 1), store(0, 1, 0, 1))),
    ),
    "a store and a sum": ("contradiction", Case("reduce", 3, 2, 1, (store(0, 0, 2), add(0, 1, 2)))),
    "stores that overlap": (
        "contradiction",
        Case("broadcast", 2, 0, 3, (store(0, 0, 1, 0, 2), store(0, 0, 1, 1, 2))),
    ),
    "a store and a sum that overlap": (
        "contradiction",
        Case("broadcast", 2, 0, 3, (store(0, 0, 1, 1, 2), add(0, 0, 1, 0, 2))),
    ),
    "a contradiction where nobody looks": (
        "contradiction",
        Case("reduce", 3, 0, 1, (add(0, 1, 0), add(0, 2, 0), store(1, 0, 1), store(1, 2, 1))),
    ),
    "a range that is partly empty": ("absent", Case("gather", 2, 0, 2, (store(0, 1, 0, 0, 2),))),
    "nothing sent where nobody looks": (
        "absent",
        Case("scatter", 3, 0, 3, (store(0, 0, 1, 1), store(0, 0, 2, 2), store(0, 1, 2, 0))),
    ),
    "right for a while": (
        "missing",
        Case("all_reduce", 2, None, 1, (add(0, 0, 1), add(0, 1, 0), store(1, 0, 1, from_input=True))),
    ),
    "the pairs the other way round": (
        "absent",
        Case("all_to_all", 2, None, 4, (store(0, 0, 1, 2), store(0, 1, 0, 1))),
    ),
    "neighbours the other way round": (
        "missing",
        Case("send_recv", 3, None, 3, (store(0, 1, 0, 1), store(0, 2, 1, 2), store(0, 0, 2, 0))),
    ),
    "a token that is not heard": ("missing", Case("barrier", 2, None, 2, (store(0, 0, 1, 0),))),
}

MALFORMED: dict[str, Case] = {
    "a rank that sends to itself": Case("broadcast", 2, 0, 1, (store(0, 0, 1), store(1, 0, 0))),
    "no such source": Case("broadcast", 2, 0, 1, (store(0, 0, 1), store(1, 2, 0))),
    "no such destination": Case("broadcast", 2, 0, 1, (store(0, 0, 1), store(0, 0, 2))),
    "a negative rank": Case("broadcast", 2, 0, 1, (store(0, 0, 1), store(0, 0, -1))),
    "no such chunk": Case("broadcast", 2, 0, 1, (store(0, 0, 1), store(0, 0, 1, 1))),
    "a negative chunk": Case("broadcast", 2, 0, 1, (store(0, 0, 1), store(0, 0, 1, -1))),
    "too many chunks": Case("broadcast", 2, 0, 2, (store(0, 0, 1, 0, 3),)),
    "no chunks": Case("broadcast", 2, 0, 1, (store(0, 0, 1), store(1, 0, 1, 0, 0))),
    "a step without transfers": Case("broadcast", 2, 0, 1, (store(1, 0, 1),)),
    "a step without transfers in between": Case("broadcast", 2, 0, 1, (store(0, 0, 1), store(2, 0, 1))),
    "one rank that sends": Case("broadcast", 1, 0, 1, (store(0, 0, 0),)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_by_hand(name: str) -> None:
    assert reason(RIGHT[name]) is None
    check_agreement(RIGHT[name])
    assert any_order_gives_the_same(RIGHT[name], seed=1, executions=20)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_by_hand(name: str) -> None:
    kind, case = WRONG[name]
    assert not right(case)
    check_agreement(case)
    for exact in METHODS:
        error = refusal(case, exact)
        assert isinstance(error, ProofError)
        assert error.kind == kind, error.story


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_by_hand(name: str) -> None:
    assert not right(MALFORMED[name])
    assert all(isinstance(refusal(MALFORMED[name], exact), ScheduleError) for exact in METHODS)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_doing_nothing_is_right_for_one_rank_and_for_no_more(collective: str) -> None:
    root = 0 if is_rooted(collective) else None
    alone, two = Case(collective, 1, root, 1, ()), Case(collective, 2, root, 4, ())
    assert right(alone)
    assert not right(two)
    check_agreement(alone)
    check_agreement(two)
