"""A short soak: see `soak`, which makes as many calls as one likes."""

from __future__ import annotations

from tests.run.chaos.soak import soak


def test_many_calls_leave_nothing_behind() -> None:
    assert soak(2000, 2, seed=7) == []
