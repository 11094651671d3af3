"""The few plans that are worth a detailed evaluation: by estimate, the fastest of those that fit.

A published run that leaves most fields open may have been any of thousands of plans. Evaluating each in detail takes
minutes; estimating all of them takes less than a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from choreo.plan.job import TrainingJob
from choreo.plan.layer.table import tabulate
from choreo.plan.search.estimate import estimate
from choreo.plan.search.space import space_of
from choreo.workload import Plan

__all__ = ["FEW", "shortlist"]

FEW = 16  # plans evaluated in detail
SMALLEST = 2  # of them, those that need least memory, in case the estimate is wrong about what fits


def shortlist(job: TrainingJob, plans: Sequence[Plan], few: int = FEW) -> tuple[Plan, ...]:
    """At most `few` of the plans, in their order."""
    if len(plans) == 1:
        return tuple(plans)
    space = space_of(plans)
    guess = estimate(job, space, tabulate(job, space))
    by_memory = np.argsort(guess.memory_bytes, kind="stable")
    fits = guess.memory_bytes <= job.device.memory_bytes
    by_time = np.argsort(np.where(fits, guess.time_s, np.inf), kind="stable")[: int(np.count_nonzero(fits))]
    kept = dict.fromkeys([*by_memory[:SMALLEST].tolist(), *by_time.tolist(), *by_memory.tolist()])
    layers = guess.recompute_layers
    return tuple(
        replace(plans[row], recompute_layers=int(layers[row])) if layers[row] else plans[row]
        for row in sorted(list(kept)[:few])
    )
