"""The result of `train`: every step with its loss, its time and where the time went, next to the prediction."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, ClassVar

from choreo.results import Result, result
from choreo.units import counted, format_time
from choreo.workload import Plan

__all__ = ["Prediction", "TrainingRun", "TrainingStep"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """The planner's prediction for a run on this machine."""

    time_s: float
    parts: Mapping[str, float]
    memory_bytes: float
    timeline: tuple[Mapping[str, Any], ...] = ()  # the passes of each stage, and what comes after them


@result
class TrainingStep(Result):
    """One training step. `parts` are seconds, averaged over the ranks, and add up to `time_s`, the slowest rank's.

    `core_wait_s` is the mean time that a rank was ready to run while other threads had the cores. It is included in the
    parts.
    """

    columns: ClassVar[tuple[str, ...]] = (
        "step",
        "loss",
        "tokens_per_s",
        "time_s",
        "predicted_s",
        "mfu",
        "parts",
        "core_wait_s",
    )

    step: int
    loss: float
    tokens_per_s: float
    time_s: float
    predicted_s: float | None
    mfu: float
    parts: Mapping[str, float]
    core_wait_s: float = 0.0

    def summary(self) -> str:
        """Loss and time."""
        return f"step {self.step}: loss {self.loss:.4f}, {format_time(self.time_s)}"


@result(eq=False)
class TrainingRun(Result):
    """The result of a training run: its steps, the memory of the fullest rank, and the predictions of both."""

    columns: ClassVar[tuple[str, ...]] = (
        "model",
        "plan",
        "ranks",
        "device",
        "backend",
        "global_batch",
        "seq",
        "steps",
        "memory_bytes",
        "predicted_memory_bytes",
        "predicted_parts",
        "data_parallel",
        "traffic",
        "staleness",
        "timeline",
        "predicted_timeline",
        "check",
    )

    model: str
    plan: Plan
    ranks: int
    device: str
    backend: str
    global_batch: int
    seq: int  # tokens of a sequence; 0 where samples are no sequences
    steps: tuple[TrainingStep, ...]
    memory_bytes: float
    predicted_memory_bytes: float | None = None
    predicted_parts: Mapping[str, float] = field(default_factory=dict)
    data_parallel: str = "all-reduce"
    traffic: tuple[Mapping[str, Any], ...] = ()  # what all ranks send in a step, by axis and collective
    staleness: Mapping[str, int] = field(default_factory=dict)  # steps ahead of the slowest worker, and how often
    timeline: tuple[Mapping[str, Any], ...] = ()  # of the last step: what each rank did from when to when
    predicted_timeline: tuple[Mapping[str, Any], ...] = ()  # the same of a stage
    check: Mapping[str, Any] | None = None  # the losses of one process, and how far off these are

    @property
    def losses(self) -> list[float]:
        """The loss of every step."""
        return [step.loss for step in self.steps]

    @property
    def time_s(self) -> float:
        """The median time of a step; the first, a warm-up, does not count if there are others."""
        return median(step.time_s for step in self.steps[1:] or self.steps)

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of the median step by part, which add up to its time; between two middle steps, their mean."""
        by_time = sorted(self.steps[1:] or self.steps, key=lambda step: step.time_s)
        middle = by_time[(len(by_time) - 1) // 2 : len(by_time) // 2 + 1]
        names = dict.fromkeys(name for step in middle for name in step.parts)
        return {name: sum(step.parts.get(name, 0.0) for step in middle) / len(middle) for name in names}

    @property
    def core_wait(self) -> float:
        """The fraction of a step that ranks waited for a core, in the median step."""
        return median(step.core_wait_s / step.time_s for step in self.steps[1:] or self.steps)

    @property
    def disturbed(self) -> str:
        """A sentence if other programs used the cores for more than a tenth of a step; empty if not."""
        cores = len(os.sched_getaffinity(0))
        own = max(0.0, 1 - cores / self.ranks)  # ranks that outnumber the cores wait for each other
        if self.device != "cpu" or self.core_wait < own + 0.1:
            return ""
        share = f"ranks waited for a core in {100 * self.core_wait:.0f} % of a step"
        unpredicted = ", which the prediction does not include" if self.predicted_parts else ""
        same = "the same core" if cores == 1 else f"the same {cores} cores"
        return f"{share}: other programs use {same}{unpredicted}"

    def to_dict(self) -> dict[str, Any]:
        """The run, with its plan's fields and all steps."""
        return {name: self.plan.fields() if name == "plan" else self._plain(name) for name in self.columns}

    def summary(self) -> str:
        """Model, plan, first and last loss, and the median step."""
        losses = f"loss {self.losses[0]:.4f} to {self.losses[-1]:.4f} in {counted(len(self.steps), 'step')}"
        job = f"{self.model} on {counted(self.ranks, 'rank')}, {self.plan}"
        return f"{job}: {losses}, {format_time(self.time_s)} a step"
