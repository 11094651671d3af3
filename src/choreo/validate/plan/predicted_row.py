"""A published run and its prediction."""

from __future__ import annotations

from typing import ClassVar

from choreo.results import Result, result
from choreo.validate.errors import relative_error
from choreo.workload import Plan

__all__ = ["PredictedRow"]


@result
class PredictedRow(Result):
    """A published run and its prediction."""

    columns: ClassVar[tuple[str, ...]] = (
        "index",
        "source",
        "software",
        "gpu",
        "measured_step_s",
        "predicted_step_s",
        "measured_mem_bytes",
        "predicted_mem_bytes",
        "predicted_fits",
        "chosen",
    )

    index: int
    source: str
    software: str
    gpu: str
    model: str
    gpus: int
    plan: Plan
    measured_step_s: float | None
    predicted_step_s: float
    measured_mem_bytes: float | None
    predicted_mem_bytes: float
    measured_fits: bool | None
    predicted_fits: bool
    chosen: dict[str, object]
    program: str = ""  # the program whose figures the prediction uses
    architecture: str = ""
    experts: bool = False
    precision: str = ""  # as the row has it
    seq: int = 0
    global_batch: int | None = None
    model_parameters: float = 0.0
    memory_share: float = 0.0  # of the device's memory, context included
    device_bytes: float = 0.0

    @property
    def step_error(self) -> float | None:
        """Relative: 0.1 is ten per cent too slow."""
        if self.measured_step_s is None:
            return None
        return relative_error(self.predicted_step_s, self.measured_step_s)

    @property
    def memory_error(self) -> float | None:
        """Relative, likewise."""
        if self.measured_mem_bytes is None:
            return None
        return relative_error(self.predicted_mem_bytes, self.measured_mem_bytes)

    @property
    def fits_right(self) -> bool | None:
        """Whether the prediction of what fits is right; None if the row does not say."""
        return None if self.measured_fits is None else self.measured_fits == self.predicted_fits
