"""Pipelines in several chunks that the first pass of a search leaves out, and that may be faster than all it has.

Layers that do not divide into chunks can be balanced over any number of them, but all of these plans together are
several times as many as the others. More chunks shorten the bubble and even out the stages, and hold more activations.
So a plan with one chunk, without its bubble and with equal stages, takes at most as long as the same with more. Only
cuts, micro-batches and ways to shard for which that is less than the best time so far can have a better plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from choreo.plan.job import TrainingJob
from choreo.plan.pipeline.split import above_mean
from choreo.plan.search.estimate import Estimate
from choreo.plan.search.products import Reasoned
from choreo.plan.search.space import Among, Space
from choreo.workload.legal import Columns

__all__ = ["may_be_faster"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# What the bounds may be off: stages cost what their FLOPs say only about, and layers are whole.
LESS_TIME, MORE_MEMORY = 0.97, 1.1
RUN, SHARDING = ("cut", "micro_batch"), ("cut", "zero", "sequence_parallel")


def may_be_faster(job: TrainingJob, space: Space, guess: Estimate, room: float) -> Among | None:
    """The cuts and rules of plans in several chunks that may be faster than the best of the space; None if none may."""
    fits = guess.memory_bytes <= room
    rows = np.flatnonzero((space["pp"] > 1) & (space["interleave"] == 1) & (guess.memory_bytes <= MORE_MEMORY * room))
    if not fits.any() or not len(rows):
        return None
    rows = rows[_least(job, space, guess, rows) < guess.time_s[fits].min()]
    if not len(rows):
        return None
    there = {name: space[name][rows] for name in (*RUN, *SHARDING)}
    rules: list[Reasoned] = [("slower than others", _among(there, names)) for names in (RUN, SHARDING)]
    return Among(np.unique(there["cut"]), rules)


def _least(job: TrainingJob, space: Space, guess: Estimate, rows: Ints) -> Floats:
    """Seconds of plans without their bubble and with equal stages."""
    stages, splits = space["pp"][rows], space["split"][rows]
    busiest = np.ones(len(rows))
    for pp, split in {*zip(stages.tolist(), splits.tolist(), strict=True)}:
        more = above_mean(job.model, pp, job.seq, job.precision, space.splits[split])
        busiest[(stages == pp) & (splits == split)] = more
    count = job.global_batch / (space["dp"][rows] * space["micro_batch"][rows])
    return np.asarray(LESS_TIME * guess.time_s[rows] * count / ((count - 1) * busiest + stages))


def _among(there: Columns, names: Sequence[str]) -> Callable[[Columns], Bools]:
    """A test of whether a table's rows agree in some columns with rows of another."""
    sizes = [int(there[name].max()) + 1 for name in names]

    def code(table: Columns) -> Ints:
        found = np.zeros(len(table[names[0]]), np.int64)
        for name, size in zip(names, sizes, strict=True):
            found = np.where((found >= 0) & (table[name] < size), found * size + table[name], -1)
        return found

    known = np.unique(code(there))
    return lambda table: np.isin(code(table), known)
