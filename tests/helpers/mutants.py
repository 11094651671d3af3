"""Holding the proof to the oracle; CHOREO_EXAMPLES=5000 in the environment searches longer than usual."""

from __future__ import annotations

import os
import re

from hypothesis import HealthCheck, settings

from choreo.errors import ProofError, ScheduleError
from choreo.prove import prove
from tests.helpers.strategies import MUTATIONS, schedule_of, with_rows
from tests.oracles.replay import Case, Row, WrongError, check_form, contributors, reason, right, shares, wants

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
    assert 0 <= error.rank < case.members
    assert 0 <= error.chunk < case.num_chunks
    assert str(error) == error.story
    if case.num_steps:
        assert re.search(rf"\bstep,? {error.step}\b", error.story), error.story
    who = f"rank {error.rank}" if error.rank < case.ranks else f"switch {error.rank - case.ranks}"
    assert re.search(rf"\b{who}\b", error.story), error.story
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
    places = [(member, error.chunk) for member in range(case.members)]
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


def store(step: int, src: int, dst: int, chunk: int = 0, count: int = 1, *, from_input: bool = False) -> Row:
    return Row(step, src, dst, chunk, count, False, from_input)


def add(step: int, src: int, dst: int, chunk: int = 0, count: int = 1, *, from_input: bool = False) -> Row:
    return Row(step, src, dst, chunk, count, True, from_input)
