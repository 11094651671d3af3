"""Pipeline parallelism by torch.distributed.pipelining: stages, and a schedule that runs micro-batches through them.

Importing torch's takes longer than importing torch, so only a rank of a pipeline imports this file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import pipelining

from choreo.train.parallel.mesh import Mesh

__all__ = ["Pipeline"]

ONE_STAGE = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B"}
SEVERAL_STAGES = {"interleaved": "ScheduleInterleaved1F1B", "zero-bubble": "ScheduleInterleavedZeroBubble"}


class _Stage(pipelining.PipelineStage):
    """A stage that says when a backward pass is over, so that exposed communication can be told."""

    after_backward: Callable[[], None]

    def backward_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        found = super().backward_one_chunk(*arguments, **options)
        self.after_backward()
        return found


class Pipeline:
    """The stages of this rank, and their schedule."""

    def __init__(
        self,
        mesh: Mesh,
        stages: dict[int, nn.Module],
        micro_batches: int,
        loss: Callable[[Tensor, Tensor], Tensor],
        after_backward: Callable[[], None],
    ) -> None:
        plan = mesh.plan
        self._made = []
        for number, module in stages.items():
            stage = _Stage(module, number, plan.pp * plan.interleave, mesh.device, group=mesh.group("pp"))
            stage.after_backward = after_backward
            self._made.append(stage)
        schedule = plan.schedule
        if plan.interleave > 1 and schedule == "1f1b":
            schedule = "interleaved"
        several = schedule in SEVERAL_STAGES
        kind = getattr(pipelining, (SEVERAL_STAGES if several else ONE_STAGE)[schedule])
        self._schedule = kind(self._made if several else self._made[0], micro_batches, loss_fn=loss, scale_grads=False)

    def step(self, inputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        """Run a batch forward and backward; the sum of the losses, which is zero but on the last stage."""
        losses: list[Tensor] = []
        first = inputs if any(stage.is_first for stage in self._made) else ()
        last = any(stage.is_last for stage in self._made)
        self._schedule.step(*first, target=targets if last else None, losses=losses, return_outputs=False)
        return torch.stack([loss.detach() for loss in losses]).sum() if losses else torch.zeros(())
