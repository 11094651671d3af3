"""Tensor parallelism (Shoeybi et al., 2019) by functions whose backward pass is another collective.

    copy      forward nothing, backward all_reduce        into layers that are cut by columns
    reduce    forward all_reduce, backward nothing        out of layers that are cut by rows
    gather    forward all_gather, backward reduce_scatter      the same two where the sequence is cut as well
    scatter   forward reduce_scatter, backward all_gather      (Korthikanti et al., 2022)
    whole     forward all_gather, backward this rank's part    for layers that every rank repeats

A group of None stands for one rank: nothing is sent.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

__all__ = ["copy", "cross_entropy", "gather", "reduce", "scatter", "whole"]

SEQUENCE = 1  # the dim of an activation (batch, sequence, features) that sequence parallelism cuts


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _summed(grad, ctx.group), None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        found = _summed(x, group)
        if found is x:
            ctx.mark_dirty(x)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, dim: int) -> Tensor:
        ctx.group, ctx.dim = group, dim
        return _gathered(x, group, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _scattered(grad, ctx.group, ctx.dim), None, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, dim: int) -> Tensor:
        ctx.group, ctx.dim = group, dim
        return _scattered(x, group, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _gathered(grad, ctx.group, ctx.dim), None, None


class _Whole(_Gather):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        own = dist.get_rank(ctx.group)
        return grad.chunk(dist.get_world_size(ctx.group), ctx.dim)[own].contiguous(), None, None


def copy(x: Tensor, group: Any) -> Tensor:
    """The same values, for products with a part of the weights; their gradients are summed over the group."""
    return x if group is None else _Copy.apply(x, group)


def reduce(x: Tensor, group: Any) -> Tensor:
    """The sum over the group."""
    return x if group is None else _Reduce.apply(x, group)


def gather(x: Tensor, group: Any, dim: int = SEQUENCE) -> Tensor:
    """The parts of all ranks; their gradients are summed, and each rank gets its part."""
    return x if group is None else _Gather.apply(x, group, dim)


def scatter(x: Tensor, group: Any, dim: int = SEQUENCE) -> Tensor:
    """This rank's part of the sum over the group."""
    return x if group is None else _Scatter.apply(x, group, dim)


def whole(x: Tensor, group: Any, dim: int = SEQUENCE) -> Tensor:
    """The parts of all ranks, for a computation that each of them repeats."""
    return x if group is None else _Whole.apply(x, group, dim)


def _summed(x: Tensor, group: Any) -> Tensor:
    """Sum in place: nothing else uses the result of a matmul, and a copy would take as long as the sum."""
    x = x.contiguous()
    dist.all_reduce(x, group=group)
    return x


def _gathered(x: Tensor, group: Any, dim: int) -> Tensor:
    parts = dist.get_world_size(group)
    out = x.new_empty((parts, *x.shape))
    dist.all_gather_into_tensor(out.view(-1), x.contiguous().view(-1), group=group)
    return out.movedim(0, dim).reshape(*x.shape[:dim], parts * x.shape[dim], *x.shape[dim + 1 :])


def _scattered(x: Tensor, group: Any, dim: int) -> Tensor:
    parts = dist.get_world_size(group)
    cut = x.view(*x.shape[:dim], parts, x.shape[dim] // parts, *x.shape[dim + 1 :]).movedim(dim, 0).contiguous()
    out = torch.empty_like(cut[0])
    dist.reduce_scatter_tensor(out.view(-1), cut.view(-1), group=group)
    return out


class _CrossEntropy(torch.autograd.Function):
    """The loss of logits whose vocabulary is cut over the group; only three numbers per token are sent."""

    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any, logits: Tensor, targets: Tensor, start: int, count: int, group: Any, weights: Tensor | None
    ) -> Tensor:
        most = logits.amax(-1)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
        shifted = (logits - most[:, None]).exp_()
        own = targets - start
        here = (own >= 0) & (own < count)
        own = own.clamp(0, count - 1)
        chosen = logits.gather(1, own[:, None])[:, 0].where(here, torch.zeros_like(most))
        both = torch.stack((shifted.sum(-1), chosen))
        dist.all_reduce(both, group=group)
        ctx.save_for_backward(shifted.div_(both[0][:, None]), own, here, weights)
        losses = both[0].log() + most - both[1]
        return losses.sum() if weights is None else losses @ weights

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        shares, own, here, weights = ctx.saved_tensors
        out = shares.clone()
        out.scatter_add_(1, own[:, None], -here[:, None].to(out.dtype))
        return out * (grad if weights is None else grad * weights[:, None]), None, None, None, None, None


def cross_entropy(  # noqa: PLR0917
    logits: Tensor, targets: Tensor, start: int, count: int, group: Any, weights: Tensor | None = None
) -> Tensor:
    """The summed loss of some tokens; this rank has the logits of `count` words from `start` on, and maybe padding."""
    logits = logits.float()
    if group is not None:
        return _CrossEntropy.apply(logits, targets, start, count, group, weights)
    if weights is None:
        return F.cross_entropy(logits, targets, reduction="sum")
    return F.cross_entropy(logits, targets, reduction="none") @ weights
