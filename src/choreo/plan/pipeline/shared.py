"""A pipeline whose stages share cores: while some of them wait, the others compute faster.

Times are those with all stages busy. With w of p stages busy, each runs p / w times as fast, but no faster than a rank
with a core to itself, which is `sharing` times as fast. So the bubble costs little if ranks outnumber the cores, and a
step takes at least the sum of all work divided by the cores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from choreo.plan.pipeline.passes import PassCosts, Pipeline, PipelinePass

__all__ = ["simulate_shared"]

Work = tuple[str, int, int]  # kind, micro-batch, chunk


def simulate_shared(
    order: Sequence[Sequence[Work]], costs: PassCosts, sharing: float, *, keep: bool = False
) -> Pipeline:
    """Run the passes of each stage in order; `costs` as in `simulate_pipeline`.

    >>> costs = PassCosts([[1.0], [1.0]], [[2.0], [2.0]], (), 0.0, 0.0, False)
    >>> order = [[("F", 0, 0), ("B", 0, 0)]] * 2
    >>> simulate_shared(order, costs, 1.0).time_s, simulate_shared(order, costs, 2.0).time_s
    (6.0, 3.0)
    """
    return _Shared(order, costs, sharing, keep).run()


class _Shared:
    def __init__(self, order: Sequence[Sequence[Work]], costs: PassCosts, sharing: float, keep: bool) -> None:
        self.order, self.costs, self.sharing = order, costs, sharing
        stages = len(order)
        self.last = stages * len(costs.forward_s[0]) - 1
        self.ended: dict[tuple[str, int, int], float] = {}  # kind, virtual stage, micro-batch
        self.at, self.busy, self.began = [0] * stages, [0.0] * stages, [0.0] * stages
        self.owed: list[list[Work]] = [[] for _ in range(stages)]  # postponed weight gradients
        self.doing: list[Work | None] = [None] * stages
        self.left = [0.0] * stages
        self.tasks: list[PipelinePass] | None = [] if keep else None
        self.now = 0.0

    def run(self) -> Pipeline:
        """Advance from the end of one pass to the next."""
        stages = range(len(self.order))
        while True:
            arrivals = [self.start(stage) for stage in stages if self.doing[stage] is None]
            working = [stage for stage in stages if self.doing[stage] is not None]
            coming = min((when for when in arrivals if when > self.now), default=math.inf)
            if not working:
                if coming == math.inf:
                    return Pipeline(self.now, tuple(self.busy), tuple(self.tasks or ()))
                self.now = coming
                continue
            rate = min(self.sharing, len(self.order) / len(working))
            step = min(min(self.left[stage] for stage in working) / rate, coming - self.now)
            self.now += step
            for stage in working:
                self.left[stage] -= step * rate
                self.busy[stage] += step
                if self.left[stage] <= 1e-12:
                    self.end(stage)

    def start(self, stage: int) -> float:
        """Begin the next pass of a stage if it can; otherwise return when its message comes, or infinity."""
        order, costs, owed = self.order[stage], self.costs, self.owed[stage]
        after = math.inf
        if self.at[stage] < len(order) and len(owed) <= max(1, stage):
            kind, micro_batch, chunk = order[self.at[stage]]
            ready, held = self.ready(stage, kind, micro_batch, chunk)
            if ready <= self.now:
                weight = costs.weight_s[stage][chunk] if costs.splits else 0.0
                cost = costs.forward_s[stage][chunk] if kind == "F" else costs.backward_s[stage][chunk] - weight
                self.at[stage] += 1
                return self.begin(stage, (kind, micro_batch, chunk), cost + held)
            after = ready
        if owed:
            work = owed.pop(0)
            return self.begin(stage, work, costs.weight_s[stage][work[2]])
        return after

    def begin(self, stage: int, work: Work, cost: float) -> float:
        """Start a pass now."""
        self.doing[stage], self.left[stage], self.began[stage] = work, cost, self.now
        return self.now

    def ready(self, stage: int, kind: str, micro_batch: int, chunk: int) -> tuple[float, float]:
        """When a pass has its input, and how long the message blocks the stage."""
        virtual = chunk * len(self.order) + stage
        if kind == "B" and virtual == self.last:
            return self.ended.get(("F", virtual, micro_batch), math.inf), 0.0
        source = virtual - 1 if kind == "F" else virtual + 1
        if source < 0:
            return 0.0, 0.0
        return self.ended.get((kind, source, micro_batch), math.inf) + self.costs.message_s, self.costs.blocking_s

    def end(self, stage: int) -> None:
        """A pass is over."""
        work = self.doing[stage]
        assert work is not None
        kind, micro_batch, chunk = work
        self.doing[stage] = None
        self.ended[kind, chunk * len(self.order) + stage, micro_batch] = self.now
        if self.tasks is not None:
            self.tasks.append(PipelinePass(kind, stage, micro_batch, chunk, self.began[stage], self.now))
        if self.costs.splits and kind == "B":
            self.owed[stage].append(("W", micro_batch, chunk))
