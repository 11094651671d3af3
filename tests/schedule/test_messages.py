"""The transfers of one step between the same two members are one message."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from choreo.schedule import Transfers, first_rows, message_of
from choreo.schedule.transfers import IntColumn


def table(rows: list[tuple[int, int, int]]) -> Transfers:
    """Transfers with these steps, senders and receivers."""
    step, src, dst = np.array(rows, np.int64).reshape(-1, 3).T
    ones = np.ones(len(rows), np.int64)
    return Transfers(step, src, dst, ones, ones, ones > 1, ones > 1)


def obvious(rows: list[tuple[int, int, int]]) -> list[int]:
    """The number of each row's message, found one by one."""
    seen: dict[tuple[int, int, int], int] = {}
    return [seen.setdefault(row, len(seen)) for row in rows]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 4)), max_size=40))
def test_rows_of_one_step_between_two_members_are_one_message(rows: list[tuple[int, int, int]]) -> None:
    rows.sort(key=lambda row: row[0])
    message = message_of(table(rows))
    assert message.tolist() == obvious(rows)
    assert first_rows(message).tolist() == [obvious(rows).index(one) for one in range(len(set(rows)))]


def test_many_members_in_many_steps_do_not_overflow() -> None:
    members = 1 << 22
    rows = [(0, members - 1, 0), (0, 1, 2), (0, members - 1, 0), (1 << 20, members - 1, 0), (1 << 20, 0, 1)]
    assert message_of(table(rows)).tolist() == [0, 1, 0, 2, 3]


def test_a_message_a_row_in_any_order() -> None:
    backwards: IntColumn = np.arange(6)[::-1]
    ones = np.ones(6, np.int64)
    rows = Transfers(0 * ones, backwards, (backwards + 1) % 6, ones, ones, ones > 1, ones > 1)
    assert message_of(rows).tolist() == list(range(6))
