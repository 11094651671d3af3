"""Staging through the caches and past them: programs try both, and results are the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from choreo.run.communicator import Communicator
from tests.helpers.ranks.run import Job

CALLS = 60  # a trial begins after 64 ranges, and has 16


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
