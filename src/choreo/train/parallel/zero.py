"""ZeRO-1 (Rajbhandari et al., 2020): every rank keeps the optimizer's state of a shard of the parameters.

Gradients are summed by reduce_scatter, so that a rank gets those of its shard; it updates its shard, and all_gather
gives all ranks the new parameters. That sends as many bytes as one all_reduce. Torch's ZeroRedundancyOptimizer sends
half as many again: it all_reduces the gradients and broadcasts each parameter from its owner.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from choreo.train.parallel.adam import state_of

__all__ = ["ZeroOptimizer"]


class ZeroOptimizer:
    """AdamW whose state is cut over a group; `divide` is what the summed gradients are divided by."""

    def __init__(self, parameters: list[Tensor], group: Any, divide: float, **options: Any) -> None:
        self.group, self.divide, self.parameters = group, divide, parameters
        parts, self.own = dist.get_world_size(group), dist.get_rank(group)
        sizes = [parameter.numel() for parameter in parameters]
        each = -(-sum(sizes) // parts)
        first = parameters[0]
        self.flat = torch.zeros(each * parts, dtype=first.dtype, device=first.device)
        self.grads = torch.zeros_like(self.flat)
        start = 0
        for parameter, size in zip(parameters, sizes, strict=True):
            place = self.flat[start : start + size].view_as(parameter)
            place.copy_(parameter.detach())
            parameter.data = place
            parameter.grad = self.grads[start : start + size].view_as(parameter)
            start += size
        self.share = torch.nn.Parameter(torch.empty_like(self.flat[:each]))
        self.take_share()
        self.adam = torch.optim.AdamW([self.share], **options)
        state_of(self.adam, self.share)

    @torch.no_grad()
    def take_share(self) -> None:
        """Copy this rank's shard out of the parameters, whose values are new."""
        self.share.copy_(self.flat.chunk(self.flat.numel() // self.share.numel())[self.own])

    def zero_grad(self) -> None:
        """Set the gradients to zero, in place: they are views of one buffer."""
        self.grads.zero_()

    @torch.no_grad()
    def step(self) -> None:
        """Sum the gradients, update this rank's shard, and gather those of all ranks."""
        if self.share.grad is None:
            self.share.grad = torch.empty_like(self.share)
        dist.reduce_scatter_tensor(self.share.grad, self.grads, group=self.group)
        self.share.grad /= self.divide
        self.adam.step()
        dist.all_gather_into_tensor(self.flat, self.share.detach(), group=self.group)
