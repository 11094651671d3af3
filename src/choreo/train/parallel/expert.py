"""Expert parallelism: tokens travel to the rank of their expert, and back, by all_to_all."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["exchange", "exchange_counts"]


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: list[int], received: list[int], group: Any) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _exchanged(x, sent, received, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(grad, ctx.received, ctx.sent, ctx.group), None, None, None


def exchange(x: Tensor, sent: list[int], received: list[int], group: Any) -> Tensor:
    """Rows of every rank: the first `sent[0]` go to rank 0 of the group, and so on."""
    return x if group is None else _Exchange.apply(x, sent, received, group)


def exchange_counts(counts: Tensor, group: Any) -> Tensor:
    """Tokens for each of this rank's experts from each rank of the group, from tokens for each expert of all."""
    if group is None:
        return counts[None]
    parts = dist.get_world_size(group)
    out = torch.empty_like(counts)
    dist.all_to_all_single(out, counts, group=group)
    return out.view(parts, -1)


def _exchanged(x: Tensor, sent: list[int], received: list[int], group: Any) -> Tensor:
    out = x.new_empty((sum(received), *x.shape[1:]))
    dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
    return out
