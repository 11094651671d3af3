"""Among measured plans, the planner's choice, compared with the best and with a rule of thumb.

A group is one model on one cluster with one batch, under different plans, some of which may have run out of memory. The
planner ranks these plans only: those that leave the default headroom free by its own estimate, the fastest first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import ClassVar

from choreo.plan.plan import HEADROOM
from choreo.results import Result, result
from choreo.validate.errors import grouped
from choreo.validate.plan.predicted_row import PredictedRow
from choreo.workload import Plan

__all__ = ["Choice", "choices_among", "over_best", "rule_of_thumb"]

# Bytes per parameter in mixed precision with Adam: parameter, gradient, and the state that ZeRO shards.
HELD, STATE = 6, 12
# The rule of thumb leaves half of the memory for activations.
FOR_STATE = 0.5


@result
class Choice(Result):
    """A group of measured plans. Times are None if the plan ran out of memory."""

    columns: ClassVar[tuple[str, ...]] = (
        "source",
        "software",
        "model",
        "gpu",
        "gpus",
        "global_batch",
        "seq",
        "plans",
        "ran",
        "chosen",
        "chosen_step_s",
        "best",
        "best_step_s",
        "over_best",
        "rule",
        "rule_step_s",
        "rule_over_best",
    )

    source: str
    software: str
    model: str
    gpu: str
    gpus: int
    global_batch: int
    seq: int
    plans: int
    ran: int
    chosen: Plan
    chosen_step_s: float | None
    best: Plan
    best_step_s: float
    rule: Plan
    rule_step_s: float | None

    @property
    def over_best(self) -> float | None:
        """Measured time of the chosen plan over that of the best."""
        return None if self.chosen_step_s is None else self.chosen_step_s / self.best_step_s

    @property
    def rule_over_best(self) -> float | None:
        """The same for the plan that the rule of thumb chooses."""
        return None if self.rule_step_s is None else self.rule_step_s / self.best_step_s


def choices_among(rows: Iterable[PredictedRow]) -> list[Choice]:
    """The choice in every group of measured plans."""
    known = [row for row in rows if row.global_batch is not None]
    found = []
    for members in grouped(known, _group).values():
        ran = [row for row in members if row.measured_step_s is not None]
        # A row without a time and without a reason was not measured.
        tried = [row for row in members if row.measured_step_s is not None or row.measured_fits is False]
        if ran and len({row.plan for row in tried}) > 1:
            found.append(_choice(tried, ran))
    return found


def over_best(choices: Sequence[Choice], *, rule: bool = False) -> tuple[float | None, int]:
    """The geometric mean of chosen over best, and how many chosen plans ran out of memory.

    >>> over_best([])
    (None, 0)
    """
    ratios = [choice.rule_over_best if rule else choice.over_best for choice in choices]
    there = [math.log(ratio) for ratio in ratios if ratio is not None]
    return math.exp(sum(there) / len(there)) if there else None, len(ratios) - len(there)


def rule_of_thumb(rows: Sequence[PredictedRow]) -> PredictedRow:
    """A common starting point: as little sharding as leaves half of the memory to activations, small micro-batches.

    Fewest pipeline stages first, then least tensor parallelism, then the smallest micro-batch.
    """
    roomy = [row for row in rows if _state_bytes(row) <= FOR_STATE * row.device_bytes]
    if not roomy:
        return min(rows, key=_state_bytes)
    return min(roomy, key=lambda row: (row.plan.pp, row.plan.tp, row.plan.micro_batch))


def _state_bytes(row: PredictedRow) -> float:
    plan = row.plan
    held = row.model_parameters / (plan.tp * plan.pp)
    replicas = plan.dp * plan.cp
    return held * (HELD / (replicas if plan.zero == 3 else 1) + STATE / (replicas if plan.zero else 1))


def _group(row: PredictedRow) -> str:
    return "|".join(
        str(part)
        for part in (
            row.source, row.software, row.model, row.gpu, row.gpus, row.seq, row.global_batch, row.precision
        )
    )  # fmt: skip


def _choice(tried: Sequence[PredictedRow], ran: Sequence[PredictedRow]) -> Choice:
    roomy = [row for row in tried if row.memory_share <= 1 - HEADROOM]
    chosen = min(roomy, key=lambda row: row.predicted_step_s) if roomy else min(tried, key=lambda row: row.memory_share)
    best = min(ran, key=lambda row: row.measured_step_s or math.inf)
    rule = rule_of_thumb(tried)
    assert best.measured_step_s is not None and best.global_batch is not None
    return Choice(
        source=best.source,
        software=best.software,
        model=best.model,
        gpu=best.gpu,
        gpus=best.gpus,
        global_batch=best.global_batch,
        seq=best.seq,
        plans=len(tried),
        ran=len(ran),
        chosen=chosen.plan,
        chosen_step_s=chosen.measured_step_s,
        best=best.plan,
        best_step_s=best.measured_step_s,
        rule=rule.plan,
        rule_step_s=rule.measured_step_s,
    )
