"""Collectives between ranks of one GPU, through GPU memory that they share by CUDA IPC.

Each rank has a buffer that all others can read. A phase of a call writes to the own buffer, waits until all ranks have
written, and reads the other buffers. The ranks' contexts take turns on the GPU, so nothing waits in a kernel: the
process waits for its stream, and then for the other processes. A buffer has two halves that phases use in turn. When a
rank writes to a half again, all ranks have passed the phase between, and have read what was there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import reduce_tensor

from choreo.errors import ChoreoError
from choreo.run.communicator import Communicator

__all__ = ["SharedGpu", "can_reduce", "share_gpu"]

HALF_BYTES = 32 << 20  # a multiple of the size of every element type

_REDUCE: dict[Any, Callable[[Any, Any], Any]] = {
    dist.ReduceOp.SUM: torch.Tensor.add_,
    dist.ReduceOp.AVG: torch.Tensor.add_,
    dist.ReduceOp.PRODUCT: torch.Tensor.mul_,
    dist.ReduceOp.MIN: lambda mine, other: torch.minimum(mine, other, out=mine),
    dist.ReduceOp.MAX: lambda mine, other: torch.maximum(mine, other, out=mine),
    dist.ReduceOp.BAND: torch.Tensor.bitwise_and_,
    dist.ReduceOp.BOR: torch.Tensor.bitwise_or_,
    dist.ReduceOp.BXOR: torch.Tensor.bitwise_xor_,
}


def share_gpu(comm: Communicator, device: torch.device) -> SharedGpu | None:
    """Shared memory of this GPU, if all ranks are on it; every rank calls it."""
    here = str(torch.cuda.get_device_properties(device).uuid)
    if len(set(comm.all_gather_object(here))) > 1 or comm.world_size == 1:
        return None
    mine = torch.empty(2 * HALF_BYTES, dtype=torch.uint8, device=device)
    shared = comm.all_gather_object(reduce_tensor(mine))
    buffers = [mine if rank == comm.rank else make(*how) for rank, (make, how) in enumerate(shared)]
    return SharedGpu(comm, buffers)


class SharedGpu:
    """The buffers of all ranks on one GPU. Tensors are contiguous.

    Calls are made on the thread of the process group, with its stream as the current one.
    """

    def __init__(self, comm: Communicator, buffers: list[Any]) -> None:
        self._comm, self._buffers = comm, buffers
        self._rank, self.ranks = comm.rank, comm.world_size
        self._half = 0

    def all_reduce(self, tensor: Any, op: Any) -> None:
        """Every rank reduces its part of what all have written, and reads the other parts."""
        flat = tensor.view(-1)
        for span in self._spans(flat, 1):
            whole = flat[span]
            ends = [len(whole) * rank // self.ranks for rank in range(self.ranks + 1)]
            parts = [slice(*ends[rank : rank + 2]) for rank in range(self.ranks)]
            mine = whole[parts[self._rank]].clone()
            self._reduce(mine, self._phase(whole), parts[self._rank], op)
            _copy_all([whole[part] for part in parts], self._phase(mine))

    def reduce_scatter(self, output: Any, tensor: Any, op: Any) -> None:
        """Each rank reduces its part of what all have written."""
        into, rows = output.view(-1), tensor.view(self.ranks, -1)
        for span in self._spans(into, self.ranks):
            self._reduce(into[span], self._phase(rows[:, span]), self._own(into[span]), op)

    def all_gather(self, outputs: list[Any], tensor: Any) -> None:
        """Each rank reads what the others have written."""
        flat = tensor.view(-1)
        for span in self._spans(flat, 1):
            _copy_all([output.view(-1)[span] for output in outputs], self._phase(flat[span]))

    def broadcast(self, tensor: Any, root: int) -> None:
        """All read what the root has written."""
        flat = tensor.view(-1)
        for span in self._spans(flat, 1):
            found = self._phase(flat[span] if self._rank == root else flat[:0])
            if self._rank != root:
                _copy_all([flat[span]], [found[root]])

    def all_to_all(self, output: Any, tensor: Any) -> None:
        """Each rank reads its part of what each has written."""
        into, rows = output.view(self.ranks, -1), tensor.view(self.ranks, -1)
        for span in self._spans(rows[0], self.ranks):
            own = self._own(rows[0, span])
            _copy_all(list(into[:, span]), [_typed(buffer, into)[own] for buffer in self._phase(rows[:, span])])

    def close(self) -> None:
        """Release the other ranks' buffers first, and this rank's own when all have done so."""
        self._buffers = self._buffers[self._rank : self._rank + 1]
        torch.cuda.ipc_collect()
        with contextlib.suppress(ChoreoError):  # a rank that died has let go of everything
            self._comm.barrier()
        self._buffers.clear()

    def _phase(self, written: Any) -> list[Any]:
        """Write, wait until all have written, and return what they have written."""
        start = self._half * HALF_BYTES
        self._half ^= 1
        halves = [buffer[start : start + HALF_BYTES] for buffer in self._buffers]
        _typed(halves[self._rank], written)[: written.numel()].view(written.shape).copy_(written)
        torch.cuda.current_stream().synchronize()
        self._comm.barrier()
        return halves

    def _own(self, part: Any) -> slice:
        """This rank's part of a vector of equal parts."""
        return slice(self._rank * len(part), (self._rank + 1) * len(part))

    def _reduce(self, into: Any, found: list[Any], own: slice, op: Any) -> None:
        """Reduce a part of what all have written, in the order of the ranks."""
        kind = op.op if type(op) is dist.ReduceOp else op
        into.copy_(_typed(found[0], into)[own])
        for buffer in found[1:]:
            _REDUCE[kind](into, _typed(buffer, into)[own])
        if kind == dist.ReduceOp.AVG:
            into.div_(self.ranks, rounding_mode=None if into.is_floating_point() else "trunc")

    def _spans(self, elements: Any, copies: int) -> Iterator[slice]:
        """Pieces of a vector, `copies` of which fit into half a buffer; one empty piece if there are no elements."""
        most = HALF_BYTES // (copies * elements.element_size())
        for at in range(0, max(1, len(elements)), most):
            yield slice(at, min(at + most, len(elements)))


def can_reduce(tensor: Any, op: Any) -> bool:
    """Whether the GPU does this reduction; otherwise the host does."""
    kind = op.op if type(op) is dist.ReduceOp else op
    return kind in _REDUCE and not tensor.is_complex() and tensor.dtype is not torch.bool


def _typed(buffer: Any, like: Any) -> Any:
    return buffer.view(like.dtype)


def _copy_all(into: list[Any], found: list[Any]) -> None:
    for tensor, buffer in zip(into, found, strict=True):
        tensor.copy_(_typed(buffer, tensor)[: tensor.numel()])
