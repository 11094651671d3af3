"""The words of a refusal: whatever a story says of the course of events is true."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given

from choreo.errors import ProofError
from tests.helpers.mutants import ALL_MUTATIONS, MANY, METHODS, add, check_agreement, history, refusal, store
from tests.helpers.strategies import library_cases, mutated, wild_cases
from tests.oracles.replay import Case, Row, WrongError, check_form, has_input, right


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
    # To the oracle a switch is a member like any other.
    story = re.sub(r"\bswitch (\d+)", lambda found: f"rank {case.ranks + int(found[1])}", error.story)
    made = {words: found for words in claims if (found := re.search(words, story))}
    assert made, f"a story of a new kind, which nobody checks: {error.story}"
    for words, found in made.items():
        assert claims[words](found[1]), f"{error.story}: not so: {words}; it had {here}"


@MANY
@given(mutated(library_cases(max_ranks=6), ALL_MUTATIONS, at_most=2))
def test_stories_of_mutants_are_true(case: Case) -> None:
    check_stories(case)


@MANY
@given(wild_cases() | mutated(wild_cases(mended=True), ALL_MUTATIONS, at_most=2))
def test_stories_of_wild_schedules_are_true(case: Case) -> None:
    check_stories(case)


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
