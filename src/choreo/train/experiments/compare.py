"""Compare the kinds of data parallelism: the same model and data with each, one after another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from choreo.errors import UsageError
from choreo.train.experiments.kinds import ASYNC_PARAMETER_SERVER, KINDS
from choreo.train.result import TrainingRun
from choreo.train.train import train
from choreo.workload import Plan, Workload

__all__ = ["compare_kinds"]


def compare_kinds(
    model: str | Path | Workload,
    *,
    ranks: int | None = None,
    plan: Plan | None = None,
    servers: int | None = None,
    staleness: int | None = None,
    on_note: Callable[[str], None] | None = None,
    **options: Any,
) -> list[TrainingRun]:
    """A run for each of `KINDS`; the options are those of `train`. Without a plan all ranks are replicas.

    >>> runs = compare_kinds("gpt2-124m", scale="tiny", ranks=4, steps=20)  # doctest: +SKIP
    >>> [run.time_s for run in runs]  # doctest: +SKIP
    """
    if options.get("checkpoint"):
        raise UsageError("runs that are compared write no checkpoints; leave out --checkpoint")
    plan = Plan(dp=ranks or 1, precision="fp32") if plan is None else plan
    runs = []
    for kind in KINDS:
        if on_note is not None:
            on_note(f"{kind} ...")
        of_servers: dict[str, Any] = {}
        if kind == ASYNC_PARAMETER_SERVER:
            of_servers = {"servers": servers, "staleness": staleness}
        runs.append(train(model, ranks=ranks, plan=plan, data_parallel=kind, **of_servers, **options))
    return runs
