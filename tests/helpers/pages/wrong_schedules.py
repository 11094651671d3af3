"""Schedules that do not do what they promise, for pictures to say so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from choreo.schedule import Schedule, Steps, move

__all__ = ["doubling", "without"]


def without(schedule: Schedule, step: int, src: int) -> Schedule:
    """The schedule without what one rank sends in one step."""
    rows = schedule.columns()
    kept = rows.take((rows.step != step) | (rows.src != src))
    return replace(schedule, body=Steps.from_transfers(schedule.ranks, schedule.num_chunks, schedule.num_steps, kept))


def doubling() -> Schedule:
    """An all_reduce that goes one step too far round the ring, and so adds every rank's own input twice."""
    rank = np.arange(4)
    steps = [move(rank, (rank + 1) % 4, (rank - k) % 4, reduce=True) for k in range(4)]
    return Schedule.from_list("all_reduce", 4, steps, num_chunks=4)
