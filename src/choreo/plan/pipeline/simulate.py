"""Pipeline schedules, simulated micro-batch by micro-batch and stage by stage.

A stage does forwards (F), backwards (B) and, if the schedule splits them off, weight gradients (W), one at a time and
in the order of the schedule. It waits for messages from its neighbours. With p equal stages GPipe and 1F1B idle for (p
- 1)(F + B); v interleaved chunks per device divide that by v; splitting off W fills most of it. Here the idle time is a
result: stages may differ (embedding, head, layers that do not divide), and messages take time, which blocks the stages
if a library waits for its sends.

DualPipe is in `dual.py`. Sources: Huang et al., GPipe, NeurIPS 2019; Narayanan et al., PipeDream-2BW, ICML 2021, and
Megatron-LM, SC 2021; Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from choreo.plan.pipeline.dual import DUAL, dual_ranks, simulate_dual
from choreo.plan.pipeline.levels import Levels, levels, time_of_levels
from choreo.plan.pipeline.passes import PassCosts, Pipeline, PipelinePass
from choreo.plan.pipeline.shared import simulate_shared
from choreo.workload.plan import SCHEDULES

__all__ = ["SCHEDULES", "Pipeline", "PipelinePass", "in_flight", "orders", "simulate_pipeline"]

Ints = npt.NDArray[np.int64]

# After this many times p micro-batches every further one takes the same time, or nearly so if chunks differ. That time
# is measured over ROUNDS times p. Where weight gradients are split off, rounds differ and take longer to settle.
STEADY, ROUNDS = 2, 1
STEADY_SPLIT, ROUNDS_SPLIT = 8, 6
# Up to this many forward passes are all simulated.
FEW = 1024
# What part of a weight gradient may delay the next pass. Neither is best for all costs: as Qi et al. do, both orders
# are tried, and the quicker is kept.
OVERRUNS = (0.0, 0.25)


def simulate_pipeline(
    schedule: str,
    micro_batches: int,
    forward_s: Sequence[Sequence[float]],
    backward_s: Sequence[Sequence[float]],
    *,
    weight_s: Sequence[Sequence[float]] | None = None,
    message_s: float = 0.0,
    blocking_s: float = 0.0,
    sharing: float = 1.0,
    timeline: bool = False,
) -> Pipeline:
    """Time of one step's forwards and backwards; `forward_s[stage][chunk]` is that of one micro-batch.

    `backward_s` includes the weight gradients; `weight_s` is their part of it, for schedules that split them off. A
    message between stages arrives after `message_s`, and blocks the receiver for `blocking_s`. `sharing` ranks share a
    core, and times are those with all stages busy (see `shared.py`). Without `timeline` a long run of equal
    micro-batches is not simulated to its end. For DualPipe `micro_batches` are those of one direction.

    >>> found = simulate_pipeline("1f1b", 8, [[1.0]] * 4, [[2.0]] * 4)
    >>> found.time_s, found.bubble_s
    (33.0, 9.0)
    """
    stages, chunks = len(forward_s), len(forward_s[0])
    if stages == 1 and chunks == 1:
        total = micro_batches * (forward_s[0][0] + backward_s[0][0])
        if not timeline:
            return Pipeline(total, (total,))
    splits = schedule == "zero-bubble" and weight_s is not None
    unit = stages if chunks > 1 else 1
    steady, rounds = (STEADY_SPLIT, ROUNDS_SPLIT) if splits else (STEADY, ROUNDS)
    base, longer = steady * stages + micro_batches % unit, rounds * stages
    costs = PassCosts(forward_s, backward_s, weight_s or (), message_s, blocking_s, splits)

    def run(count: int) -> Pipeline:
        if schedule in DUAL:
            return simulate_dual(schedule, count, costs, keep=timeline)
        if sharing > 1:
            return simulate_shared(orders(schedule, stages, count, chunks), costs, sharing, keep=timeline)
        if timeline or splits:
            order = orders(schedule, stages, count, chunks)
            tries = OVERRUNS if splits else (0.0,)
            found = [_Run(order, count, costs, overrun, keep=timeline).simulate() for overrun in tries]
            return min(found, key=lambda one: one.time_s)
        total = time_of_levels(_levels(schedule, stages, count, chunks), forward_s, backward_s, message_s, blocking_s)
        return Pipeline(total, tuple(count * (sum(f) + sum(b)) for f, b in zip(forward_s, backward_s, strict=True)))

    if timeline or micro_batches <= base + longer or micro_batches * stages * chunks <= FEW:
        return run(micro_batches)
    first, second = run(base), run(base + longer)
    more = (micro_batches - base) / longer
    added = [long - short for short, long in zip(first.busy_s, second.busy_s, strict=True)]
    busy = tuple(short + more * each for short, each in zip(first.busy_s, added, strict=True))
    # While the fill is still being used up, a round seems to take less than the busiest stage's work.
    return Pipeline(first.time_s + more * max(second.time_s - first.time_s, *added), busy)


def in_flight(
    stage: npt.ArrayLike,
    stages: int,
    micro_batches: npt.ArrayLike,
    chunks: int,
    schedule: str = "1f1b",
    *,
    gpipe: npt.ArrayLike = False,
) -> Ints:
    """The most chunks whose activations a stage holds at once, one for each pass in flight; arrays broadcast.

    `schedule` matters where it is a DualPipe, and `gpipe` says for each plan whether it is that.

    >>> in_flight([0, 1, 2, 3], 4, micro_batches=64, chunks=1)
    array([4, 3, 2, 1])
    """
    total = np.asarray(micro_batches) * chunks
    if schedule in DUAL:
        held = np.full(np.shape(stage), dual_ranks(schedule, stages) + 1)
        return np.asarray(np.minimum(total, held))
    held = np.minimum(total, _warm_up(stage, stages, micro_batches, chunks) + 1)
    return np.asarray(np.where(gpipe, total, held))


@lru_cache(maxsize=64)
def orders(schedule: str, stages: int, micro_batches: int, chunks: int) -> tuple[tuple[tuple[str, int, int], ...], ...]:
    """The (kind, micro-batch, chunk) of each stage's passes, in order; the simulation places W. Not for DualPipe.

    >>> [" ".join(f"{kind}{number}" for kind, number, _ in order) for order in orders("1f1b", 2, 3, 1)]
    ['F0 F1 B0 F2 B1 B2', 'F0 B0 F1 B1 F2 B2']
    """
    return tuple(
        tuple(_order("gpipe" if schedule == "gpipe" else "1f1b", stage, stages, micro_batches, chunks))
        for stage in range(stages)
    )


@lru_cache(maxsize=64)
def _levels(schedule: str, stages: int, micro_batches: int, chunks: int) -> Levels:
    return levels(orders(schedule, stages, micro_batches, chunks), chunks)


def _warm_up(stage: npt.ArrayLike, stages: int, micro_batches: npt.ArrayLike, chunks: int) -> Ints:
    """Forwards before the first backward; with chunks as in Megatron-LM."""
    after, count = stages - np.asarray(stage) - 1, np.asarray(micro_batches)
    total = count * chunks
    if chunks == 1:
        return np.asarray(np.minimum(after, total))
    ahead = after * 2 + (chunks - 1) * (stages + count % stages)
    return np.asarray(np.where(count <= stages, total, np.minimum(total, ahead)))


def _groups(stages: int, micro_batches: int) -> list[range]:
    """Micro-batches that go through one chunk before the next: as many as there are stages.

    A remainder joins the first group: a last group smaller than the number of stages would wait for itself.
    """
    first = min(micro_batches, stages + micro_batches % stages)
    return [range(first), *(range(start, start + stages) for start in range(first, micro_batches, stages))]


def _order(schedule: str, stage: int, stages: int, micro_batches: int, chunks: int) -> list[tuple[str, int, int]]:
    forwards: list[tuple[int, int]] = []
    backwards: list[tuple[int, int]] = []
    for members in _groups(stages, micro_batches):
        forwards += [(micro_batch, chunk) for chunk in range(chunks) for micro_batch in members]
        backwards += [(micro_batch, chunk) for chunk in reversed(range(chunks)) for micro_batch in members]
    total = len(forwards)
    warm_up = total if schedule == "gpipe" else int(_warm_up(stage, stages, micro_batches, chunks))
    order = [("F", *work) for work in forwards[:warm_up]]
    for index in range(total - warm_up):
        order.append(("F", *forwards[warm_up + index]))
        order.append(("B", *backwards[index]))
    order += [("B", *work) for work in backwards[total - warm_up :]]
    return order


class _Run:
    """The state of a simulation: the next pass of each stage, and when each pass ended."""

    def __init__(
        self,
        order: tuple[tuple[tuple[str, int, int], ...], ...],
        micro_batches: int,
        costs: PassCosts,
        overrun: float,
        *,
        keep: bool,
    ) -> None:
        stages = len(order)
        self.order, self.costs, self.stages, self.overrun = order, costs, stages, overrun
        self.last = stages * len(costs.forward_s[0]) - 1
        # End of each pass by virtual stage (chunk * stages + stage), then by micro-batch; negative: not yet.
        self.ends = {kind: [[-1.0] * micro_batches for _ in range(self.last + 1)] for kind in "FB"}
        self.at, self.free, self.busy = [0] * stages, [0.0] * stages, [0.0] * stages
        self.owed: list[list[tuple[int, int]]] = [[] for _ in range(stages)]  # postponed weight gradients
        self.tasks: list[PipelinePass] | None = [] if keep else None

    def simulate(self) -> Pipeline:
        waiting = list(range(self.stages))
        while waiting:
            before = sum(self.at)
            # Visit stages down and up in turn: forwards go down the pipeline, backwards up.
            waiting = [stage for stage in waiting if not self.advance(stage)][::-1]
            assert not waiting or sum(self.at) > before, "a pipeline schedule that waits for itself"
        return Pipeline(max(self.free), tuple(self.busy), tuple(self.tasks or ()))

    def advance(self, stage: int) -> bool:
        """Run the passes that a stage can run now; True if it has none left."""
        order, costs, free = self.order[stage], self.costs, self.free
        while self.at[stage] < len(order):
            kind, micro_batch, chunk = order[self.at[stage]]
            virtual = chunk * self.stages + stage
            forward = kind == "F"
            source = virtual - 1 if forward else virtual + 1
            ready = held = 0.0
            if not forward and virtual == self.last:
                ready = self.ends["F"][virtual][micro_batch]
            elif source >= 0:
                ready, held = self.ends[kind][source][micro_batch], costs.blocking_s
                if ready < 0:
                    return False
                ready += costs.message_s
            if self.owed[stage]:
                self.pay(stage, ready)
            # Being blocked is not work: it counts as idle.
            free[stage] = max(free[stage], ready) + held
            weight = costs.weight_s[stage][chunk] if costs.splits else 0.0
            cost = costs.forward_s[stage][chunk] if forward else costs.backward_s[stage][chunk] - weight
            self.do(stage, (kind, micro_batch, chunk), cost)
            self.ends[kind][virtual][micro_batch] = free[stage]
            if costs.splits and not forward:
                self.owed[stage].append((micro_batch, chunk))
                # Activations of a micro-batch live until its weight gradient: no more than 1F1B keeps.
                if len(self.owed[stage]) > max(1, stage):
                    self.pay(stage, free[stage] + weight)
            self.at[stage] += 1
        self.pay(stage, float("inf"))
        return True

    def pay(self, stage: int, until: float) -> None:
        """Run weight gradients that fit before `until`, or nearly so."""
        owed = self.owed[stage]
        while owed:
            micro_batch, chunk = owed[0]
            cost = self.costs.weight_s[stage][chunk]
            if self.free[stage] + (1 - self.overrun) * cost > until + 1e-12:
                return
            owed.pop(0)
            self.do(stage, ("W", micro_batch, chunk), cost)

    def do(self, stage: int, work: tuple[str, int, int], cost: float) -> None:
        """Run one pass."""
        start = self.free[stage]
        if self.tasks is not None:
            kind, micro_batch, chunk = work
            self.tasks.append(PipelinePass(kind, stage, micro_batch, chunk, start, start + cost))
        self.free[stage] = start + cost
        self.busy[stage] += cost
