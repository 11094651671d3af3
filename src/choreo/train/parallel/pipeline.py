"""Pipeline parallelism by torch.distributed.pipelining: stages, and a schedule that runs micro-batches through them.

Importing torch's pipelining takes longer than importing torch, so only a rank of a pipeline imports this file.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.nn.parallel import DistributedDataParallel

from choreo.train.parallel.mesh import Mesh

__all__ = ["Pipeline"]

ONE_STAGE = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B"}
SEVERAL_STAGES = {"interleaved": "ScheduleInterleaved1F1B", "zero-bubble": "ScheduleInterleavedZeroBubble"}


class Timer(Protocol):
    """The observer that is notified of passes."""

    def passing(self, kind: str, micro_batch: int, chunk: int = 0) -> AbstractContextManager[None]:
        """Around a pass."""

    def backward_done(self) -> None:
        """After a backward pass."""


class _Stage(pipelining.PipelineStage):
    """A stage whose passes are timed."""

    timer: Timer
    chunk: int

    def forward_one_chunk(self, fwd_chunk_id: int, *arguments: Any, **options: Any) -> Any:
        with self.timer.passing("F", fwd_chunk_id, self.chunk):
            return super().forward_one_chunk(fwd_chunk_id, *arguments, **options)

    def backward_one_chunk(self, bwd_chunk_id: int, *arguments: Any, **options: Any) -> Any:
        with self.timer.passing("B", bwd_chunk_id, self.chunk):
            found = super().backward_one_chunk(bwd_chunk_id, *arguments, **options)
        self.timer.backward_done()
        if isinstance(self.submod, DistributedDataParallel) and not options.get("last_backward"):
            # DDP notes the order of the gradients in the first backward pass, and uses it in the next forward pass. A
            # schedule may have none before its next backward pass, whose gradients would be noted as well.
            self.submod.reducer._rebuild_buckets()
        return found

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *arguments: Any, **options: Any) -> Any:
        with self.timer.passing("W", bwd_chunk_id, self.chunk):
            return super().backward_weight_one_chunk(bwd_chunk_id, *arguments, **options)


class Pipeline:
    """The stages of this rank, and their schedule."""

    def __init__(
        self,
        mesh: Mesh,
        stages: dict[int, nn.Module],
        micro_batches: int,
        loss: Callable[[Tensor, Tensor], Tensor],
        timer: Timer,
    ) -> None:
        plan = mesh.plan
        self._made = []
        for number, module in stages.items():
            stage = _Stage(module, number, plan.pp * plan.interleave, mesh.device, group=mesh.group("pp"))
            stage.timer, stage.chunk = timer, number // plan.pp
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
        first = inputs[:1] if any(stage.is_first for stage in self._made) else ()
        last = any(stage.is_last for stage in self._made)
        further = {"further": inputs[1]} if len(inputs) > 1 and last else {}
        wanted = targets if last else None
        self._schedule.step(*first, target=wanted, losses=losses, return_outputs=False, **further)
        return torch.stack([loss.detach() for loss in losses]).sum() if losses else torch.zeros(())
