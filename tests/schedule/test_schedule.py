"""The schedule type: the three ways to write one, blocks, bounds and weights."""

from __future__ import annotations

import pickle

import numpy as np
import numpy.typing as npt
import pytest

from choreo.algorithms import Algorithm, build, list_algorithms
from choreo.errors import ScheduleError, UsageError
from choreo.schedule import Move, Schedule, Steps, Transfers, move
from choreo.schedule import steps as steps_module


def rows_of(schedule: Schedule) -> list[tuple[object, ...]]:
    columns = schedule.columns()
    return sorted(zip(*(columns[name].tolist() for name in columns.keys()), strict=True))  # noqa: SIM118 - no dict


def test_a_rule_may_give_lists() -> None:
    """An item for each transfer, each calculated with the step number."""
    p = 4
    ring = Schedule.from_rule(
        "all_gather",
        p,
        num_steps=p - 1,
        rule=lambda k: move(list(range(p)), [(r + 1) % p for r in range(p)], [(r - k) % p for r in range(p)]),
    )
    rank = np.arange(p)
    same = Schedule.from_rule(
        "all_gather", p, num_steps=p - 1, rule=lambda k: move(rank, (rank + 1) % p, (rank - k) % p)
    )
    assert rows_of(ring) == rows_of(same)


def test_rule_function_and_list_agree() -> None:
    rank = np.arange(5)

    def hop(k: int | npt.NDArray[np.int64]) -> Move:
        return move(rank, (rank + 1) % 5, (rank - k) % 5)

    by_rule = Schedule.from_rule("all_gather", 5, 4, hop)
    by_function = Schedule.from_function("all_gather", 5, 4, hop)
    by_list = Schedule.from_list("all_gather", 5, [hop(k) for k in range(4)])
    assert rows_of(by_rule) == rows_of(by_function) == rows_of(by_list) == rows_of(build("all_gather", "ring", 5))


@pytest.mark.parametrize("found", list_algorithms(), ids=lambda a: f"{a.collective}-{a.name}")
def test_any_range_of_steps_can_be_asked_for(found: Algorithm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of any size give the same rows: composition must not depend on how rows are fetched."""
    schedule = build(found.collective, found.name, 6, segments=2)
    whole = rows_of(schedule)
    one_by_one = [schedule.body.rows(k, k + 1) for k in range(schedule.num_steps)]
    assert all((rows.step == k).all() and len(rows) for k, rows in enumerate(one_by_one))
    monkeypatch.setattr(steps_module, "ROWS_A_BLOCK", 7)
    assert rows_of(schedule) == whole
    joined = Transfers.join(one_by_one)
    assert sorted(joined.chunk.tolist()) == sorted(schedule.columns().chunk.tolist())
    assert [len(step) for step in schedule.steps()] == [len(rows) for rows in one_by_one]


@pytest.mark.parametrize(
    ("row", "message", "field"),
    [
        (move(3, 1, 0), "step 0: src 3 is out of range; with 3 ranks it must be 0 to 2", "steps[0][0].src"),
        (move(0, -1, 0), "step 0: dst -1 is out of range", "steps[0][0].dst"),
        (move(0, [1, 2], [0, 4]), "step 0: chunk 4 is out of range; with 4 chunks", "steps[0][1].chunk"),
        (move(0, 1, 2, 3), "count 3 is out of range; from chunk 2 on it must be 1 to 2", "steps[0][0].count"),
        (move(0, 1, 0, 0), "count 0 is out of range", "steps[0][0].count"),
        (move(1, 1, 0), "dst 1 is the sender itself", "steps[0][0].dst"),
    ],
)
def test_rows_out_of_bounds_are_refused(row: Move, message: str, field: str) -> None:
    schedule = Schedule.from_list("broadcast", 3, [row], num_chunks=4)
    with pytest.raises(ScheduleError, match=message) as caught:
        schedule.columns()
    assert caught.value.field == field


def test_a_step_without_transfers_is_refused() -> None:
    schedule = Schedule.from_list("broadcast", 3, [move(0, 1, 0), [], move(0, 2, 0)])
    with pytest.raises(ScheduleError, match="step 1 has no transfers"):
        schedule.columns()


def test_moves_that_do_not_fit() -> None:
    with pytest.raises(ScheduleError, match="do not broadcast"):
        Schedule.from_list("broadcast", 9, [move([0, 1], [1, 2, 3], 0)])
    with pytest.raises(ScheduleError, match="must be whole numbers, not float64"):
        Schedule.from_list("broadcast", 9, [move(0.5, 1, 0)])
    with pytest.raises(ScheduleError, match="one-dimensional"):
        Schedule.from_list("broadcast", 9, [move(np.zeros((1, 2, 3), int), 1, 0)])


def test_ranks_chunks_and_weights_are_checked() -> None:
    with pytest.raises(UsageError, match="ranks must be a whole number from 1 to 4194304, not 0"):
        Schedule.from_list("broadcast", 0, [])
    with pytest.raises(ScheduleError, match="3 blocks, so the number of chunks must be a multiple of that, not 4"):
        Schedule.from_list("scatter", 3, [], num_chunks=4)
    body = Steps.from_list(2, 2, [move(0, 1, 0, 2)])
    weighted = Schedule("broadcast", body, weights=np.array([3, 1]))
    assert weighted.total_weight == 4
    assert weighted.weights_of(weighted.columns()).tolist() == [4]
    for wrong in ([1], [1, -1], [0, 0], [0.5, 0.5], [1, 1 << 40]):
        with pytest.raises(ScheduleError, match="weights"):
            Schedule("broadcast", body, weights=np.array(wrong))
    mine = np.array([1 << 40, 1 << 41])
    halves = Schedule("broadcast", body, weights=mine)
    mine[0] = 7  # the schedule has its own
    assert halves.weights is not None
    assert halves.weights.tolist() == [1, 2]


def test_repr_says_what_it_is() -> None:
    assert (
        repr(build("broadcast", "mst", 5, root=3)) == "<Schedule broadcast by mst: 5 ranks, root 3, 1 chunk, 3 steps>"
    )


def test_numpy_numbers_are_numbers() -> None:
    for found in list_algorithms():
        schedule = build(found.collective, found.name, np.int8(6), segments=np.int64(2))  # type: ignore[arg-type]
        assert type(schedule.ranks) is int
    rooted = build("broadcast", "mst", 8, root=np.int64(3))  # type: ignore[arg-type]
    assert type(rooted.root) is int


def test_a_count_beyond_all_numbers_is_out_of_range() -> None:
    with pytest.raises(ScheduleError, match="count 9223372036854775807 is out of range"):
        Schedule.from_list("broadcast", 4, [move(0, 1, 1, 2**63 - 1)], num_chunks=4).columns()


def test_a_schedule_pickles() -> None:
    weighted = Schedule("scatter", build("scatter", "mst", 4).body, 0, "uneven", np.array([1, 2, 3, 4]))
    for schedule in (build("all_reduce", "ring", 5), weighted):
        back = pickle.loads(pickle.dumps(schedule))
        assert (repr(back), back.phases, rows_of(back)) == (repr(schedule), schedule.phases, rows_of(schedule))
        assert str(back.weights) == str(schedule.weights)


def test_what_is_not_steps_is_refused() -> None:
    with pytest.raises(UsageError, match="made of Steps, not of Schedule"):
        Schedule("all_reduce", build("all_reduce", "ring", 4))  # type: ignore[arg-type]  # the mistake is the test
    with pytest.raises(UsageError, match="num_steps must be a whole number of at least 0, not -3"):
        Schedule.from_function("broadcast", 4, -3, lambda k: move(0, 1, 0))


@pytest.mark.parametrize(("most", "count"), [(0, 4), (23, 24), (24, 24), (100, 24)])
def test_transfers_are_counted_no_further_than_asked(most: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = build("all_reduce", "ring", 4)  # 6 steps of 4 transfers
    monkeypatch.setattr(steps_module, "ROWS_A_BLOCK", 4)
    assert schedule.count_transfers(most) == count
