"""The proof: its stories, its two methods, its slices, and its independence of how rows are written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from choreo.algorithms import build, list_algorithms
from choreo.errors import ProofError
from choreo.prove import prove
from choreo.prove import prove as prove_function
from choreo.schedule import Schedule, Steps, Transfers, move

STORIES = [
    (
        "sent before it was there",
        Schedule.from_list("broadcast", 3, [move(1, 2, 0), move(0, 1, 0)]),
        ("absent", 0, 1, 0),
        "step 0: rank 1 sends chunk 0 to rank 2 before it has it: it arrives only in step 1",
    ),
    (
        "never there",
        Schedule.from_list("broadcast", 4, [move(0, 1, 0), move(2, 3, 0)]),
        ("absent", 1, 2, 0),
        "step 1: rank 2 sends chunk 0 to rank 3 before it has it: it never gets there",
    ),
    (
        "not in the same step",
        Schedule.from_list("broadcast", 3, [[move(0, 1, 0), move(1, 2, 0)]]),
        ("absent", 0, 1, 0),
        "it arrives only in that same step",
    ),
    (
        "no input there",
        Schedule.from_list("broadcast", 3, [move(0, [1, 2], 0), move(1, 2, 0, from_input=True)]),
        ("absent", 1, 1, 0),
        "step 1: rank 1 sends chunk 0 to rank 2 from its input, but broadcast gives it no input there",
    ),
    (
        "sent before a contribution was there",
        Schedule.from_list(
            "all_reduce",
            3,
            [move(1, 0, 0, reduce=True), move(0, 1, 0), move(2, 0, 0, reduce=True), move(0, 2, 0)],
        ),
        ("missing", 1, 0, 0),
        "step 1: rank 0 sends chunk 0 to rank 1 before it has the contribution of rank 2",
    ),
    (
        "counted twice",
        Schedule.from_list(
            "all_reduce",
            3,
            [move(1, 0, 0, reduce=True), move(1, 2, 0, reduce=True), move(2, 0, 0, reduce=True), move(0, [1, 2], 0)],
        ),
        ("doubled", 2, 0, 0),
        "step 2: rank 0 adds chunk 0 from rank 2, but both already have the contribution of rank 1",
    ),
    (
        "overwritten",
        Schedule.from_list("reduce", 3, [move(1, 0, 0, reduce=True), move(2, 0, 0)]),
        ("missing", 1, 0, 0),
        "step 1: rank 0 stores chunk 0 from rank 2 over what it has, and loses the contribution of rank 0",
    ),
    (
        "never received",
        Schedule.from_list("scatter", 3, [move(0, 1, 1)]),
        ("missing", 0, 2, 2),
        "in the end, after step 0: rank 2 never receives chunk 2",
    ),
    (
        "never sent",
        Schedule.from_list("reduce", 3, [move(1, 0, 0, reduce=True)]),
        ("missing", 0, 0, 0),
        "the contribution of rank 2 to chunk 0 has never reached rank 0",
    ),
    (
        "contradiction",
        Schedule.from_list("reduce", 3, [[move(1, 0, 0), move(2, 0, 0, reduce=True)]]),
        ("contradiction", 0, 0, 0),
        "rank 0 is sent chunk 0 by rank 1 and by rank 2, and one stores into it while the other reduces into it",
    ),
    (
        "nothing happens",
        Schedule.from_list("all_gather", 2, []),
        ("missing", 0, 0, 1),
        "rank 0 never receives chunk 1",
    ),
]


@pytest.mark.parametrize(("schedule", "where", "story"), [s[1:] for s in STORIES], ids=[s[0] for s in STORIES])
@pytest.mark.parametrize("exact", [True, False])
def test_stories(schedule: Schedule, where: tuple[str, int, int, int], story: str, exact: bool) -> None:
    with pytest.raises(ProofError) as caught:
        prove(schedule, exact=exact)
    error = caught.value
    assert (error.kind, error.step, error.rank, error.chunk) == where
    assert story in error.story == str(error)


def test_the_first_thing_that_goes_wrong_is_reported() -> None:
    """Two chunks go wrong; the story is about the earlier step."""
    rows = build("all_reduce", "ring", 6).columns()
    late, early = len(rows) - 3, 7
    broken = replace(rows, reduce=np.where(np.isin(np.arange(len(rows)), (late, early)), ~rows.reduce, rows.reduce))
    with pytest.raises(ProofError) as caught:
        prove(Schedule("all_reduce", Steps.from_transfers(6, 6, 10, broken)))
    assert caught.value.step == int(rows.step[early])


def test_fingerprint_and_exact_agree_where_both_can_be_had() -> None:
    for found in list_algorithms():
        for ranks in (2, 7, 12):
            schedule = build(found.collective, found.name, ranks)
            exact, fast = prove(schedule, exact=True), prove(schedule, exact=False)
            assert (exact.method, exact.error_probability) == ("exact", 0.0)
            assert fast.num_transfers == exact.num_transfers == len(schedule.columns())
            if schedule.contract.reduces:
                assert fast.method == "fingerprint"
                assert 0 < fast.error_probability < 1e-12


def test_a_failure_among_many_ranks_is_traced_exactly() -> None:
    rows = build("all_reduce", "ring", 400).columns()
    kept = np.ones(len(rows), np.bool_)
    kept[12345] = False
    broken = Schedule("all_reduce", Steps.from_transfers(400, 400, 798, rows.take(kept)))
    with pytest.raises(ProofError) as caught:
        prove(broken)
    lost = {name: int(rows[name][12345]) for name in ("step", "src", "dst", "chunk")}
    assert caught.value.chunk == lost["chunk"]
    assert caught.value.step == lost["step"] - 1  # where the trail of the lost contributions ends
    assert caught.value.rank == lost["src"]
    assert f"gets as far as rank {lost['src']} and no further" in caught.value.story


def test_slices_of_chunks_give_the_same_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors too large for memory are proved some chunks at a time."""
    module = __import__("sys").modules["choreo.prove.prove"]
    for found in list_algorithms():
        monkeypatch.setattr(module, "SLICE_BYTES", 1 << 28)
        schedule = build(found.collective, found.name, 6)
        whole = prove(schedule)
        monkeypatch.setattr(module, "SLICE_BYTES", 20)
        assert prove_function(schedule) == whole
    rows = build("all_gather", "ring", 6).columns()
    broken = Schedule("all_gather", Steps.from_transfers(6, 6, 5, rows.take(np.arange(len(rows)) != 14)))
    stories = []
    for size in (20, 1 << 28):
        monkeypatch.setattr(module, "SLICE_BYTES", size)
        with pytest.raises(ProofError) as caught:
            prove(broken)
        stories.append(caught.value.story)
    assert stories[0] == stories[1]


def test_ranges_and_single_chunks_are_the_same_schedule() -> None:
    for algorithm in ("halving_doubling", "mst", "rabenseifner", "hierarchical"):
        schedule = build("all_reduce", algorithm, 12, segments=2)
        one_by_one = replace(
            schedule,
            body=Steps.from_transfers(12, schedule.num_chunks, schedule.num_steps, (schedule.columns().expanded())),
        )
        assert {**prove(one_by_one), "num_transfers": 0} == {**prove(schedule), "num_transfers": 0}


def test_one_rank_has_nothing_to_do() -> None:
    for found in list_algorithms():
        schedule = build(found.collective, found.name, 1)
        assert (schedule.num_steps, prove(schedule).num_transfers) == (0, 0)
    assert len(Transfers.none()) == 0
