"""The proof against the oracle: on the library, on mutants of it and on wild schedules."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from choreo.algorithms import list_algorithms
from choreo.errors import ProofError
from tests.helpers.mutants import ALL_MUTATIONS, EXAMPLES, MANY, METHODS, PROFILE, add, check_agreement, refusal, store
from tests.helpers.strategies import (
    COLLECTIVES,
    MUTATIONS,
    can_build,
    every_mutant,
    is_rooted,
    library_case,
    library_cases,
    mutated,
    shuffle,
    wild_cases,
    with_rows,
)
from tests.oracles.replay import (
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
        dst = (rank + data.draw(st.integers(1, case.members - 1))) % case.members
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
