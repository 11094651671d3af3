"""Decide which calls ranks of one GPU run in shared GPU memory.

All ranks decide the same: by the call, its operation and its sizes, which are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from choreo.torch_backend.cuda.shared_gpu import SharedGpu, can_reduce

__all__ = ["SHARED_CALLS", "SharedCall"]

# What runs a call in shared memory; None if only the host can.
SharedCall = Callable[[SharedGpu], None]


def _all_reduce(tensors: Any, opts: Any) -> SharedCall | None:
    if not can_reduce(tensors[0], opts.reduceOp):
        return None
    return lambda shared: shared.all_reduce(tensors[0], opts.reduceOp)


def _broadcast(tensors: Any, opts: Any) -> SharedCall:
    return lambda shared: shared.broadcast(tensors[0], opts.rootRank)


def _all_gather(outputs: Any, inputs: Any, opts: Any) -> SharedCall | None:
    del opts
    if len({output.numel() for output in outputs[0]}) != 1:
        return None
    return lambda shared: shared.all_gather(outputs[0], inputs[0])


def _all_gather_single(outputs: Any, inputs: Any, opts: Any) -> SharedCall:
    del opts

    def run(shared: SharedGpu) -> None:
        for output, given in zip(outputs, inputs, strict=True):
            shared.all_gather(list(output.view(shared.ranks, -1)), given)

    return run


def _reduce_scatter_single(outputs: Any, inputs: Any, opts: Any) -> SharedCall | None:
    if not can_reduce(inputs[0], opts.reduceOp):
        return None

    def run(shared: SharedGpu) -> None:
        for output, given in zip(outputs, inputs, strict=True):
            shared.reduce_scatter(output, given, opts.reduceOp)

    return run


def _all_to_all_single(output: Any, tensor: Any, output_sizes: Any, input_sizes: Any, opts: Any) -> SharedCall | None:
    del opts
    return None if output_sizes or input_sizes else lambda shared: shared.all_to_all(output, tensor)


SHARED_CALLS: dict[str, Callable[..., SharedCall | None]] = {
    "allreduce": _all_reduce,
    "broadcast": _broadcast,
    "allgather": _all_gather,
    "all_gather_single_coalesced": _all_gather_single,
    "reduce_scatter_single_coalesced": _reduce_scatter_single,
    "all_to_all_single": _all_to_all_single,
}
