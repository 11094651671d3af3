"""The proof against the oracle: on the library, on mutants of it, on wild schedules and on some nasty ones.

CHOREO_EXAMPLES=5000 in the environment searches longer than the usual run does.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from oracle import (
    ORDERING_RULE,
    Case,
    Row,
    WrongError,
    any_order_gives_the_same,
    check_form,
    contradictions,
    contributors,
    has_input,
    numbers,
    order_matters,
    places,
    reason,
    replay,
    right,
    run_in_any_order,
    shares,
    wants,
)
from strategies import (
    COLLECTIVES,
    MUTATIONS,
    can_build,
    every_mutant,
    is_rooted,
    library_case,
    library_cases,
    mutated,
    schedule_of,
    shuffle,
    wild_cases,
    with_rows,
)

from choreo.algorithms import list_algorithms
from choreo.errors import ProofError, ScheduleError
from choreo.prove import prove

EXAMPLES = int(os.environ.get("CHOREO_EXAMPLES", "60"))
settings.register_profile(
    "oracle",
    derandomize=True,
    deadline=None,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
PROFILE = settings.get_profile("oracle")
MANY = settings(PROFILE, max_examples=3 * EXAMPLES)

ALL_MUTATIONS = tuple(MUTATIONS.values())
METHODS = (None, True, False)
KINDS = ("absent", "missing", "doubled", "contradiction")


def refusal(case: Case, exact: bool | None) -> ProofError | ScheduleError | None:
    """Why `prove` refuses the case, or None."""
    try:
        prove(schedule_of(case), exact=exact)
    except (ProofError, ScheduleError) as error:
        return error
    return None


def first_wrong(case: Case) -> WrongError | None:
    """The first step at which the oracle cannot go on."""
    try:
        check_form(case)
        list(shares(case))
    except WrongError as wrong:
        return wrong
    return None


def check_agreement(case: Case) -> None:
    """`prove` and the oracle say the same, whichever method proves, and what `prove` says is true."""
    why = reason(case)
    for exact in METHODS:
        error = refusal(case, exact)
        if why is None:
            assert error is None, f"right, but refused with exact={exact}: {error}"
            continue
        assert error is not None, f"proved with exact={exact}, but wrong: {why}"
        if isinstance(error, ProofError):
            check_story(case, error)
        else:
            wrong = first_wrong(case)
            assert wrong is not None, f"refused for its form with exact={exact}: {error}; but the form is right"
            assert "form" in wrong.faults


def check_story(case: Case, error: ProofError) -> None:
    """The blame names a place in the schedule, says it in words, and is true."""
    assert error.kind in KINDS
    assert 0 <= error.step < max(1, case.num_steps)
    assert 0 <= error.rank < case.ranks
    assert 0 <= error.chunk < case.num_chunks
    assert str(error) == error.story
    if case.num_steps:
        assert re.search(rf"\bstep,? {error.step}\b", error.story), error.story
    assert re.search(rf"\brank {error.rank}\b", error.story), error.story
    assert re.search(rf"\bchunk {error.chunk}\b", error.story), error.story
    wrong = first_wrong(case)
    if wrong is None:
        check_blame(case, error)
    elif "form" in wrong.faults:
        # Rows are read as they are needed, so a fault of an earlier step may come first; it must be one.
        assert not right(with_rows(case, [row for row in case.rows if row.step <= error.step]))
    else:
        assert error.step == wrong.step, f"{error.story}; oracle: {wrong}"
        assert (error.rank, error.chunk) in wrong.faults.get(error.kind, ()), f"{error.story}; oracle: {wrong}"


def history(case: Case, error: ProofError) -> list[dict[int, int | None]]:
    """Of the chunk blamed, before each step and at the end: how often each rank has the contribution blamed.

    Ranks that have nothing of the chunk have None.
    """
    who = contributors(case, error.chunk)[0] if error.contributor is None else error.contributor
    moments = shares(case, lenient=True)
    places = [(rank, error.chunk) for rank in range(case.ranks)]
    return [{place[0]: work[place][who] if place in work else None for place in places} for work in moments]


def check_blame(case: Case, error: ProofError) -> None:
    """What is said to be missing or doubled is so in the end where it matters, and there and then too."""
    assert error.kind in ("missing", "doubled")
    assert error.contributor in contributors(case, error.chunk)
    had = history(case, error)
    ends = [had[-1][rank] or 0 for rank in range(case.ranks) if wants(case, rank, error.chunk)]
    around = [had[moment][error.rank] or 0 for moment in (error.step, min(error.step + 1, case.num_steps))]
    # A rank may also send from its input, where nobody else's contribution ever is.
    sent_own = any(r.from_input and (r.step, r.src) == (error.step, error.rank) for r in case.rows)
    if error.kind == "missing":
        assert 0 in ends, f"it is missing nowhere in the end: {error.story}"
        assert 0 in around or sent_own, f"it is not missing there and then: {error.story}"
    else:
        assert max(ends) > 1, f"it is doubled nowhere in the end: {error.story}"
        assert max(around) > 1, f"it is not doubled there and then: {error.story}"


def check_stories(case: Case) -> None:
    """The words of a refusal for what the schedule does, by either method."""
    try:
        check_form(case)
    except WrongError:
        return
    for exact in METHODS:
        error = refusal(case, exact)
        if isinstance(error, ProofError):
            check_words(case, error)


def check_words(case: Case, error: ProofError) -> None:
    """Every statement that a story makes about the course of events is true."""
    had = history(case, error)
    here = [moment[error.rank] for moment in had]
    before, after = here[error.step], here[min(error.step + 1, case.num_steps)]
    on_chunk = [row for row in case.rows if error.chunk in row.chunks]
    carrying = [row for row in on_chunk if row.step == error.step]
    arrives = [row.step for row in on_chunk if row.dst == error.rank]
    reaches = [step for step in range(case.num_steps) if not here[step] and here[step + 1]]

    def sends(row: Row, dst: str) -> bool:
        return (row.src, row.dst) == (error.rank, int(dst))

    def gets(row: Row, src: str) -> bool:
        return (row.dst, row.src) == (error.rank, int(src))

    def had_by(moments: int) -> set[int]:
        return {rank for moment in had[:moments] for rank, times in moment.items() if times}

    claims: dict[str, Callable[[str], bool]] = {
        r"sends chunk \d+ to rank (\d+)": lambda dst: any(sends(row, dst) for row in carrying),
        r"has it: it arrives only in step (\d+)": lambda step: arrives[0] == int(step) >= error.step,
        r"(it never gets there)": lambda _: not arrives,
        r"reaches it only in step (\d+)": lambda step: (
            not before and int(step) == min((k for k in reaches if k >= error.step), default=-1)
        ),
        r"is sent chunk \d+ by rank (\d+)": lambda src: any(gets(row, src) for row in carrying),
        r"is sent chunk \d+ by rank \d+ and by rank (\d+)": lambda src: any(gets(row, src) for row in carrying),
        r"is sent chunk \d+ twice by rank (\d+)": lambda src: sum(gets(row, src) for row in carrying) > 1,
        r"(gets chunk \d+ complete), but": lambda _: not before and after == 1,
        r"to which it last sent it in step (\d+)": lambda step: (
            int(step) in {r.step for r in on_chunk if r.src == error.rank}
        ),
        r"(reaches it only in that same step)": lambda _: not before and error.step in reaches,
        r"(it arrives only in that same step)": lambda _: arrives[0] == error.step,
        r"(gets as far as) rank": lambda _: not any(here[: error.step + 1]) and bool(after),
        r"(and no further), so": lambda _: had_by(len(had)) == had_by(error.step + 2),
        r"so that it does not reach rank (\d+)": lambda rank: not any(moment[int(rank)] for moment in had),
        r"it never leaves rank (\d+)": lambda rank: all(not m[r] for m in had for r in m if r != int(rank)),
        r"(both store into it)": lambda _: sum(row.dst == error.rank and not row.reduce for row in carrying) > 1,
        r"(one stores into it while)": lambda _: len({r.reduce for r in carrying if r.dst == error.rank}) == 2,
        r"from its input, but (\w+) gives it no": lambda name: (
            name == case.collective and not has_input(case, error.rank, error.chunk)
        ),
        r"(never receives) chunk": lambda _: here == [None] * len(here),
        r"(has never reached) rank": lambda _: not any(here),
        r"stores chunk \d+ from rank (\d+) over what": lambda src: (
            bool(before) and not after and any(gets(row, src) and not row.reduce for row in carrying)
        ),
        r"adds chunk \d+ from rank (\d+), but both": lambda src: (
            (after or 0) > 1 and any(gets(row, src) and row.reduce for row in carrying)
        ),
    }
    made = {words: found for words in claims if (found := re.search(words, error.story))}
    assert made, f"a story of a new kind, which nobody checks: {error.story}"
    for words, found in made.items():
        assert claims[words](found[1]), f"{error.story}: not so: {words}; it had {here}"


# The library.


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_library_is_right_by_the_oracle_and_in_any_order(collective: str, ranks: int) -> None:
    for algorithm in list_algorithms(collective):
        if not can_build(algorithm, ranks):
            continue
        for root in sorted({0, ranks // 2, ranks - 1}) if is_rooted(collective) else [None]:
            case = library_case(collective, algorithm.name, ranks, root=root)
            assert reason(case) is None, algorithm.name
            assert any_order_gives_the_same(case, seed=ranks, executions=1), algorithm.name
            assert [refusal(case, exact) for exact in METHODS] == [None, None, None]


@PROFILE
@given(library_cases(), st.integers(0, 1000))
def test_any_library_schedule_is_right(case: Case, seed: int) -> None:
    assert reason(case) is None
    assert any_order_gives_the_same(case, seed)
    assert [refusal(case, exact) for exact in METHODS] == [None, None, None]


@PROFILE
@given(library_cases())
def test_library_never_counts_a_contribution_twice(case: Case) -> None:
    for work in shares(case):
        for (_, chunk), times in work.items():
            assert {rank for rank, count in enumerate(times) if count} <= set(contributors(case, chunk))
            assert max(times) == 1


# Mutants.


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_mutant_at_two_ranks(collective: str) -> None:
    for algorithm in list_algorithms(collective):
        root = 1 if is_rooted(collective) else None
        for case in every_mutant(library_case(collective, algorithm.name, 2, root=root, segments=1)):
            check_agreement(case)


@pytest.mark.parametrize("name", MUTATIONS)
def test_one_mutation(name: str) -> None:
    @PROFILE
    @given(mutated(library_cases(), [MUTATIONS[name]]))
    def agrees(case: Case) -> None:
        check_agreement(case)

    agrees()


@MANY
@given(mutated(library_cases(max_ranks=6), ALL_MUTATIONS, at_most=4))
def test_several_mutations(case: Case) -> None:
    check_agreement(case)


@MANY
@given(mutated(library_cases(max_ranks=6), ALL_MUTATIONS, at_most=2))
def test_stories_of_mutants_are_true(case: Case) -> None:
    check_stories(case)


@PROFILE
@given(mutated(library_cases(max_ranks=6), [shuffle]))
def test_the_order_of_rows_within_a_step_is_nothing(case: Case) -> None:
    check_agreement(case)
    assert right(case)


@MANY
@given(library_cases(), st.data())
def test_a_dropped_transfer_is_blamed_on_a_chunk_it_carried(whole: Case, data: st.DataObject) -> None:
    carried = data.draw(st.sampled_from(whole.rows))
    case = with_rows(whole, [row for row in whole.rows if row != carried])
    assume(not right(case))
    *_, ends = shares(case, lenient=True)
    for exact in METHODS:
        error = refusal(case, exact)
        assert isinstance(error, ProofError)
        assert error.chunk in carried.chunks
        promised = tuple(int(rank in contributors(case, error.chunk)) for rank in range(case.ranks))
        wanting = [rank for rank in range(case.ranks) if wants(case, rank, error.chunk)]
        assert any(ends.get((rank, error.chunk)) != promised for rank in wanting), error.story


@pytest.mark.parametrize("from_input", [False, True])
def test_no_transfer_invents_data(from_input: bool) -> None:
    @PROFILE
    @given(library_cases(max_ranks=6), st.data())
    def is_refused(case: Case, data: st.DataObject) -> None:
        step = data.draw(st.integers(0, case.num_steps))
        held = [place for place in places(case) if has_input(case, *place)] if from_input else list(shares(case))[step]
        empty = [place for place in places(case) if place not in held]
        assume(empty)
        rank, chunk = data.draw(st.sampled_from(empty))
        dst = (rank + data.draw(st.integers(1, case.ranks - 1))) % case.ranks
        later = [replace(row, step=row.step + (row.step >= step)) for row in case.rows]
        forged = Row(step, rank, dst, chunk, 1, data.draw(st.booleans()), from_input)
        for exact in METHODS:
            error = refusal(with_rows(case, [*later, forged]), exact)
            assert isinstance(error, ProofError)
            assert (error.kind, error.step, error.rank, error.chunk) == ("absent", step, rank, chunk)

    is_refused()


@pytest.mark.parametrize("ranks", [16, 33])
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [("all_reduce", "ring"), ("all_reduce", "rabenseifner"), ("all_gather", "bruck"), ("broadcast", "mst")],
)
def test_mutants_of_more_ranks(collective: str, algorithm: str, ranks: int) -> None:
    cases = st.just(library_case(collective, algorithm, ranks))

    @settings(PROFILE, max_examples=max(3, EXAMPLES // 15))
    @given(mutated(cases, ALL_MUTATIONS))
    def agrees(case: Case) -> None:
        check_agreement(case)

    agrees()


# Schedules that nobody would write.


@MANY
@given(wild_cases())
def test_wild_schedules(case: Case) -> None:
    check_agreement(case)


@MANY
@given(wild_cases(mended=True))
def test_wild_schedules_that_end_well(case: Case) -> None:
    assert reason(case) is None
    check_agreement(case)


@MANY
@given(mutated(wild_cases(mended=True), ALL_MUTATIONS, at_most=2))
def test_mutants_of_wild_schedules(case: Case) -> None:
    check_agreement(case)


@MANY
@given(wild_cases() | mutated(wild_cases(mended=True), ALL_MUTATIONS, at_most=2))
def test_stories_of_wild_schedules_are_true(case: Case) -> None:
    check_stories(case)


# In any order.


@MANY
@given(
    mutated(library_cases(max_ranks=6), ALL_MUTATIONS, at_most=3)
    | wild_cases()
    | mutated(wild_cases(mended=True), ALL_MUTATIONS, at_most=2),
    st.integers(0, 1000),
)
def test_every_order_the_rule_allows_gives_the_same_data(case: Case, seed: int) -> None:
    try:
        check_form(case)
    except WrongError:
        assume(False)
    for step in range(case.num_steps):
        assume(not contradictions([row for row in case.rows if row.step == step]))
    assert any_order_gives_the_same(case, seed)


def store(step: int, src: int, dst: int, chunk: int = 0, count: int = 1, *, from_input: bool = False) -> Row:
    return Row(step, src, dst, chunk, count, False, from_input)


def add(step: int, src: int, dst: int, chunk: int = 0, count: int = 1, *, from_input: bool = False) -> Row:
    return Row(step, src, dst, chunk, count, True, from_input)


@pytest.mark.parametrize("clause", ORDERING_RULE)
def test_every_clause_of_the_ordering_rule_is_needed(clause: str) -> None:
    rows = (add(0, 0, 1), add(0, 2, 1), store(0, 1, 2), add(1, 1, 0), store(2, 0, 1), store(2, 0, 2))
    case = Case("all_reduce", 3, None, 1, rows)
    given, rest = numbers(case, 1), tuple(other for other in ORDERING_RULE if other != clause)
    *_, expected = replay(case, given, order_matters)
    with_all = [run_in_any_order(case, given, order_matters, random.Random(seed)) for seed in range(50)]
    without = [run_in_any_order(case, given, order_matters, random.Random(seed), rest) for seed in range(50)]
    assert all(work == expected for work in with_all)
    assert any(work != expected for work in without)


# Nasty ones, by hand.


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


# Easily blamed on something that did not happen.
HARD_TO_TELL: dict[str, Case] = {
    "its own contribution lost and never back": Case("reduce", 2, 0, 1, (store(0, 1, 0), store(1, 1, 0))),
    "its input sent where its work place had more": Case(
        "all_reduce",
        3,
        None,
        1,
        (
            *(store(0, 0, 1, from_input=True), add(0, 1, 2, from_input=True), add(0, 2, 0, from_input=True)),
            *(add(1, 0, 2, from_input=True), add(1, 1, 0, from_input=True), add(1, 2, 1, from_input=True)),
        ),
    ),
}


@pytest.mark.parametrize("name", HARD_TO_TELL)
def test_stories_that_are_hard_to_tell(name: str) -> None:
    assert not right(HARD_TO_TELL[name])
    check_agreement(HARD_TO_TELL[name])
    check_stories(HARD_TO_TELL[name])


@pytest.mark.parametrize("exact", METHODS)
def test_a_story_about_no_steps_names_no_step(exact: bool | None) -> None:
    error = refusal(Case("broadcast", 2, 0, 1, ()), exact)
    assert isinstance(error, ProofError)
    assert "-1" not in error.story
