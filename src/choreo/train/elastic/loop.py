"""One rank of `choreo train --elastic`, if every rank could train the whole model."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import replace

import torch
from torch import Tensor

from choreo.errors import TrainingError
from choreo.train.config import TrainConfig
from choreo.train.elastic.elastic import Elastic
from choreo.train.parallel.adam import adamw_options
from choreo.train.parallel.mesh import Mesh
from choreo.train.rank.accelerator import Accelerator
from choreo.train.rank.loop import AUTOCAST, Report
from choreo.train.rank.task import make_task

__all__ = ["train_elastic"]


def train_elastic(config: TrainConfig, report: Report) -> None:
    """Train until all steps are done. Every rank reports every step, since any of them may be gone at any moment."""
    plan, accelerator = config.plan, Accelerator(config.device)
    device = accelerator.device
    # One rank's work is cut into micro-batches, numbered across steps.
    alone = replace(config, plan=replace(plan, dp=1, zero=0), global_batch=plan.micro_batch)
    count = config.global_batch // plan.micro_batch
    accelerator.reset_peak()
    task = make_task(alone, Mesh(alone.plan, 0, device))
    [model] = task.stages.values()
    if config.compile:
        model.compile()
    peak = accelerator.peak_flops_per_s(plan.precision, config.ranks)
    dtype = AUTOCAST.get(plan.precision)

    def loss_of(number: int) -> Tensor:
        inputs, targets = task.batch(number)
        with torch.autocast(device.type, dtype) if dtype else contextlib.nullcontext():
            return task.loss(model(*inputs), targets) / task.units

    optimizer = torch.optim.AdamW(model.parameters(), **adamw_options(config.lr))
    with Elastic(model, optimizer, zero=plan.zero, seed=config.seed) as job:
        before_s, known = time.perf_counter(), 0
        for step in job.steps(config.steps):
            loss = job.backward(loss_of, samples=range(step * count, (step + 1) * count))
            job.step()
            now_s = time.perf_counter()
            if job.left_out:
                continue
            figures = {
                "step": step,
                "loss": loss,
                "tokens_per_s": task.units * count / (now_s - before_s),
                "time_s": now_s - before_s,
                "mfu": task.flops * count / (now_s - before_s) / peak,
            }
            report({"step": figures | {"parts": _parts(job, now_s - before_s, changed=len(job.changes) > known)}})
            before_s, known = now_s, len(job.changes)
            if not math.isfinite(loss):
                raise TrainingError(
                    f"the loss is not a number at step {step}; try a smaller --lr, and look at the data of that step "
                    "and at the precision"
                )
    report({"memory_bytes": float(accelerator.peak_bytes())})


def _parts(job: Elastic, time_s: float, *, changed: bool) -> dict[str, float]:
    """A step's seconds by part; the remainder is recovery, if ranks were lost or joined."""
    parts = dict(job.parts_s)
    rest = "recovery" if changed else "compute"
    parts[rest] = parts.get(rest, 0.0) + time_s - sum(parts.values())
    return parts
