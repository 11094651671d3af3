"""Data parallelism by torch: DDP, and fully_shard for ZeRO-2 and 3; ZeRO-1 is in `zero.py`.

A gradient is the sum over the ranks' tokens. Torch divides by the number of replicas, so the loss is multiplied by it.
Parameters that not all replicas hold (experts), and those that more ranks than the replicas share (a tied embedding,
norms under sequence parallelism), are summed after the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from choreo.train.parallel.adam import adamw_options, state_of
from choreo.train.parallel.mesh import Mesh
from choreo.train.parallel.zero import ZeroOptimizer
from choreo.workload import Plan

__all__ = ["Optimizers", "finish_gradients", "replicate"]

WITHOUT_OVERLAP_MB = 1 << 20  # one bucket for all gradients


def replicate(stage: nn.Module, mesh: Mesh, *, by_hand: bool, on_bucket: Callable[[], None]) -> nn.Module:
    """A stage as its replicas train it; `by_hand` leaves the gradients to `finish_gradients`.

    `on_bucket` is called when a bucket of gradients is on its way.
    """
    plan, group = mesh.plan, mesh.group("replicas")
    if group is None or by_hand or plan.zero == 1:
        return stage
    if plan.zero >= 2:
        return _fully_sharded(stage, mesh, plan)
    ignored = [name for name, parameter in stage.named_parameters() if _alone(parameter)]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(stage, ignored)
    wrapped = DistributedDataParallel(
        stage,
        process_group=group,
        broadcast_buffers=False,
        init_sync=False,
        gradient_as_bucket_view=True,
        bucket_cap_mb=None if plan.overlap else WITHOUT_OVERLAP_MB,
    )

    def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        sent = allreduce_hook(state, bucket)
        on_bucket()
        return sent

    # Torch compares annotations with the types themselves.
    hook.__annotations__.update(bucket=dist.GradBucket, **{"return": torch.futures.Future[Tensor]})
    wrapped.register_comm_hook(group, hook)
    return wrapped


def _fully_sharded(stage: nn.Module, mesh: Mesh, plan: Plan) -> nn.Module:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    options: dict[str, Any] = {
        "mesh": DeviceMesh.from_group(mesh.group("replicas"), mesh.device.type, mesh=mesh.members["replicas"]),
        "reshard_after_forward": plan.zero == 3,
        "ignored_params": {parameter for parameter in stage.parameters() if _alone(parameter)},
    }
    notes = {name: dict(vars(parameter)) for name, parameter in stage.named_parameters()}
    for name in ("blocks", "further"):
        for block in getattr(stage, name, nn.ModuleDict()).values():
            fully_shard(block, **options)
    sharded = fully_shard(stage, **options)
    for name, parameter in sharded.named_parameters():  # they are new parameters, which know nothing of pieces and sums
        vars(parameter).update(notes[name])
    return sharded


def _alone(parameter: Tensor) -> bool:
    """Whether not all replicas of the dense parameters hold this one."""
    return getattr(parameter, "alone", False)


def finish_gradients(parameters: Iterable[Tensor], mesh: Mesh, *, by_hand: bool) -> None:
    """Sum the gradients that torch has not: over tensor ranks, the two ends of a pipeline, and experts' replicas."""
    sums: dict[int, tuple[Any, list[Tensor]]] = {}
    by_optimizer = mesh.plan.zero == 1
    for parameter in parameters:
        if parameter.grad is None:
            continue
        grad = parameter.grad.to_local() if hasattr(parameter.grad, "to_local") else parameter.grad
        alone = _alone(parameter)
        reduced = None
        if (alone or by_hand) and not (by_optimizer and mesh.group("edp" if alone else "replicas")):
            grad /= mesh.size("replicas")
            reduced = mesh.group("edp" if alone else "replicas")
        for group in (reduced, getattr(parameter, "summed", None), getattr(parameter, "shared", None)):
            if group is not None:
                sums.setdefault(id(group), (group, []))[1].append(grad)
    for group, grads in sums.values():
        flat = _flatten_dense_tensors(grads)
        dist.all_reduce(flat, group=group)
        for grad, value in zip(grads, _unflatten_dense_tensors(flat, grads), strict=True):
            if grad.data_ptr() != value.data_ptr():  # one tensor is summed in place
                grad.copy_(value)


class Optimizers:
    """AdamW over all parameters of a rank; ZeRO-1 cuts its state over the replicas of each."""

    def __init__(self, parameters: list[Tensor], mesh: Mesh, lr: float) -> None:
        options = adamw_options(lr)
        replicas = mesh.size("replicas")
        self.optimizers: list[Any] = []
        whole = parameters
        if mesh.plan.zero == 1 and replicas > 1:
            whole = []
            for alone, axis in ((False, "replicas"), (True, "edp")):
                some = [parameter for parameter in parameters if _alone(parameter) is alone]
                if some and mesh.group(axis) is not None:
                    self.optimizers.append(ZeroOptimizer(some, mesh.group(axis), replicas, **options))
                else:
                    whole += some
        # One for the parameters that fully_shard has cut and one for those it has not: they do not mix.
        for cut in (False, True):
            some = [parameter for parameter in whole if hasattr(parameter, "to_local") is cut]
            if some:
                adam = torch.optim.AdamW(some, **options)
                for parameter in some:
                    state_of(adam, parameter)
                self.optimizers.append(adam)

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self) -> None:
        """Update the parameters."""
        for optimizer in self.optimizers:
            optimizer.step()
