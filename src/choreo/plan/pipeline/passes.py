"""Passes of a pipeline: what they cost, when they ran, and how long the whole took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["PassCosts", "Pipeline", "PipelinePass"]


@dataclass(frozen=True, slots=True)
class PipelinePass:
    """A pass of one micro-batch through one chunk of a stage."""

    kind: str  # "F", "B" or "W"
    stage: int
    micro_batch: int
    chunk: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How long a pipeline takes, and how long each stage is busy in it."""

    time_s: float
    busy_s: tuple[float, ...]
    tasks: tuple[PipelinePass, ...] = ()

    @property
    def busiest(self) -> int:
        """The stage with the most to do."""
        return max(range(len(self.busy_s)), key=lambda stage: self.busy_s[stage])

    @property
    def bubble_s(self) -> float:
        """How long the busiest stage is idle."""
        return self.time_s - self.busy_s[self.busiest]


@dataclass(frozen=True, slots=True)
class PassCosts:
    """Seconds of the passes by stage and chunk, and of messages; see `simulate_pipeline`."""

    forward_s: Sequence[Sequence[float]]
    backward_s: Sequence[Sequence[float]]
    weight_s: Sequence[Sequence[float]]
    message_s: float
    blocking_s: float
    splits: bool
