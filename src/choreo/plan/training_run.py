"""A whole training run from one step: days and cost for so many tokens, and what failures take.

Failures come at random, independently of one another, so a job of N devices that each fail once in M hours fails once
in M / N. With a checkpoint of d seconds every t seconds of work, and r seconds to come back after a failure, t seconds
of work take

    m exp(r / m) (exp((t + d) / m) - 1)        m the time between failures of the job

in the mean (Daly 2006, equation 20, exact for such failures). The best interval makes that least a second of work; to
first order it is sqrt(2 d m) (Young 1974).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from choreo.errors import UsageError
from choreo.results import Result, result
from choreo.units import format_time

__all__ = ["Failures", "TrainingRun", "training_run"]

# Bytes of a checkpoint per parameter: two for the parameter itself, and twelve for fp32 state.
STATE_BYTES = 14
# What a device writes to storage, and what it takes to find a failure, start again and read: Llama 3 (Grattafiori et
# al. 2024, section 3.3.1) had 2 TB/s in all for 16,384 devices, and restarts of minutes.
WRITE_BYTES_PER_S, RESTART_S = 2e12 / 16384, 600.0

LEAST_GOODPUT = 1e-3  # with less, no job ends


@dataclass(frozen=True, slots=True)
class Failures:
    """How often one device fails, and the time of a checkpoint and a restart, in seconds; 0: estimated."""

    mtbf_s: float
    checkpoint_s: float = 0.0
    restart_s: float = RESTART_S


@result
class TrainingRun(Result):
    """Training on this many tokens: how long, how many device-hours, at what cost, and how failures slow it down."""

    columns: ClassVar[tuple[str, ...]] = (
        "tokens", "steps", "days", "gpu_hours", "cost", "goodput", "failure_s", "checkpoint_s",
        "checkpoint_interval_s", "failures",
    )  # fmt: skip

    tokens: float
    steps: float
    days: float
    gpu_hours: float
    cost: float | None = None  # in the currency of the price
    goodput: float = 1.0  # the share of the time that is work
    failure_s: float | None = None  # between failures of the job
    checkpoint_s: float | None = None
    checkpoint_interval_s: float | None = None
    failures: float = 0.0

    def summary(self) -> str:
        """Days, device-hours and cost."""
        cost = "" if self.cost is None else f", {self.cost:,.0f} in all"
        return f"{self.tokens:.3g} tokens in {self.days:.3g} days, {self.gpu_hours:.3g} GPU-hours{cost}"


def training_run(
    step_time_s: float,
    step_tokens: float,
    gpus: int,
    *,
    tokens: float,
    parameters: float = 0.0,
    price_per_gpu_hour: float | None = None,
    failures: Failures | None = None,
) -> TrainingRun:
    """A run of `tokens`, from the time of one step.

    >>> run = training_run(10.0, 4e6, 1024, tokens=1e12, price_per_gpu_hour=2.0)
    >>> f"{run.days:.1f} days, {run.cost:,.0f}"
    '28.9 days, 1,422,222'
    """
    for name, value in (("tokens", tokens), ("price_per_gpu_hour", price_per_gpu_hour)):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise UsageError(f"{name} must be more than 0, not {value!r}")
    work = tokens / step_tokens * step_time_s
    goodput, apart, cost_s, interval = 1.0, None, None, None
    if failures is not None:
        if not failures.mtbf_s > 0:
            raise UsageError(f"mtbf must be more than 0, not {failures.mtbf_s!r}")
        apart = failures.mtbf_s / gpus
        cost_s = failures.checkpoint_s or STATE_BYTES * parameters / (gpus * WRITE_BYTES_PER_S)
        interval, goodput = best_interval(apart, max(cost_s, 1e-3), failures.restart_s)
        if goodput < LEAST_GOODPUT:
            raise UsageError(
                f"mtbf is that of one device: with {format_time(failures.mtbf_s)}, one of {gpus} fails every "
                f"{format_time(apart)}, and a job that takes {format_time(failures.restart_s)} to restart gets nowhere"
            )
    seconds = work / goodput
    hours = seconds * gpus / 3600
    return TrainingRun(
        tokens=tokens,
        steps=tokens / step_tokens,
        days=seconds / 86400,
        gpu_hours=hours,
        cost=None if price_per_gpu_hour is None else hours * price_per_gpu_hour,
        goodput=goodput,
        failure_s=apart,
        checkpoint_s=cost_s,
        checkpoint_interval_s=interval,
        failures=0.0 if apart is None else seconds / apart,
    )


def best_interval(mtbf_s: float, checkpoint_s: float, restart_s: float) -> tuple[float, float]:
    """The best interval between checkpoints, in seconds of work, and the share of the time that is then work.

    >>> interval, goodput = best_interval(10_000.0, 10.0, 300.0)
    >>> f"{interval:.0f} s, {goodput:.3f}"
    '441 s, 0.928'
    """

    def taken(work: float) -> float:
        """Seconds in the mean for a second of work; its logarithm, which does not overflow."""
        much = (work + checkpoint_s) / mtbf_s
        grown = much + math.log1p(-math.exp(-much))  # log(exp(much) - 1)
        return math.log(mtbf_s) + restart_s / mtbf_s + grown - math.log(work)

    low, high = math.log(checkpoint_s * 1e-3), math.log(max(mtbf_s, checkpoint_s) * 1e2)
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(100):  # golden-section search: the curve has one minimum
        first, second = high - ratio * (high - low), low + ratio * (high - low)
        if taken(math.exp(first)) < taken(math.exp(second)):
            high = second
        else:
            low = first
    interval = math.exp((low + high) / 2)
    return interval, math.exp(-taken(interval))
