"""Stretches of time by rank, against sets of ticks."""

from __future__ import annotations

import random

import numpy as np
import pytest

from choreo.simulate.execution.intervals import Covered, latest_before

RANKS = 4


@pytest.mark.parametrize("seed", range(20))
def test_the_union_of_stretches_is_that_of_their_ticks(seed: int) -> None:
    chance = random.Random(seed)
    ticks: list[set[int]] = [set() for _ in range(RANKS)]
    rows = [(chance.randrange(RANKS), begin := chance.randrange(20), begin + chance.randrange(6)) for _ in range(seed)]
    for rank, begin, end in rows:
        ticks[rank].update(range(begin, end))
    ranks, starts, ends = np.array(rows, np.int64).reshape(-1, 3).T
    covered = Covered(ranks, starts.astype(float), ends.astype(float), RANKS)
    assert covered.total_s.tolist() == [len(one) for one in ticks]
    asked = [(one, begin, begin + length) for one in range(RANKS) for begin in range(0, 25, 3) for length in (0, 1, 9)]
    found = covered.between(*(np.array(column) for column in zip(*asked, strict=True)))
    assert found.tolist() == [len(ticks[one] & set(range(begin, end))) for one, begin, end in asked]


def test_what_ended_before_is_that_of_the_same_rank() -> None:
    chance = random.Random(1)
    rows = sorted((chance.randrange(RANKS), chance.random()) for _ in range(40))
    chance.shuffle(ends := [end for _, end in rows])
    ranks = [rank for rank, _ in rows]
    slow = [max((ends[j] for j in range(i) if ranks[j] == rank), default=-np.inf) for i, rank in enumerate(ranks)]
    assert latest_before(np.array(ranks), np.array(ends)).tolist() == slow
