"""Staging through the caches and past them: programs try both, and results are the same."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest

from choreo.run.communicator import Communicator
from choreo.run.execute.calls import CallSpec, prepare_call
from choreo.run.execute.dtypes import dtype_code
from tests.helpers.ranks.run import Job

CALLS = 60  # the first trial has 20 parts, and the fewest parts of a call are one


def many_large_calls(comm: Communicator, count: int) -> None:
    p, rank = comm.world_size, comm.rank
    ramp = np.arange(count, dtype=np.float32) % 1000
    for call in range(CALLS):
        x = ramp + (rank + call)
        comm.all_reduce(x)
        assert (x == p * ramp + p * (p - 1) // 2 + p * call).all(), f"call {call}"
        y = ramp * (rank == call % p) + call
        comm.broadcast(y, root=call % p)
        assert (y == ramp + call).all(), f"call {call}"


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("count", [150_001, 700_000], ids=["at once", "in parts"])
def test_calls_that_try_both_ways(jobs: Callable[[int], Job], ranks: int, count: int) -> None:
    jobs(ranks).run(many_large_calls, count)


def few_calls_larger_than_the_caches(comm: Communicator, count: int) -> None:
    p, rank = comm.world_size, comm.rank
    ramp = np.arange(count, dtype=np.float32) % 1000
    total = p * ramp + p * (p - 1) // 2
    for _ in range(3):
        x, y = ramp + rank, np.zeros(count, np.float32)
        comm.all_reduce(x, out=y)
        assert (y == total).all()
        assert (x == ramp + rank).all()
        comm.all_reduce(x)
        assert (x == total).all()


def test_results_larger_than_the_caches(jobs: Callable[[int], Job]) -> None:
    """They are stored past the caches, or not if what they replace has just been staged."""
    jobs(2).run(few_calls_larger_than_the_caches, (4 << 20) + 5)


def test_rounding_does_not_decide_how_data_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is staged is rounded up to cache lines, which must not make it dearer than reading a peer's memory."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    for count in (65_536, 65_552):  # halves of whole cache lines, and not
        call = CallSpec("all_reduce", (count,), 4, dtype_code(np.dtype(np.float32)), 0, None, "direct")
        prepared = prepare_call(call, 0, 2, np.zeros(2, np.bool_), same=True, stages=True)
        assert prepared.stages, f"{count} elements are read in place"
