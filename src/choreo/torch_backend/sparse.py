"""The all_reduce of sparse tensors: every rank gathers the non-zero elements of all, and adds them up."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from choreo.errors import UsageError
from choreo.run.communicator import Communicator
from choreo.run.execute.dtypes import ReduceOp
from choreo.torch_backend.calls import Reduction
from choreo.torch_backend.tensors import flat

__all__ = ["all_reduce_sparse"]


def all_reduce_sparse(comm: Communicator, tensor: Any, how: Reduction) -> None:
    """Reduce sparse tensors in place."""
    if how.op is not ReduceOp.SUM:
        raise UsageError(f"sparse tensors can only be added up, not reduced by {how.op.value}")
    mine = how.before(tensor.detach()).coalesce()
    indices, values = mine.indices(), mine.values()
    counts = comm.all_gather(np.array([values.shape[0]]))[:, 0]
    most = int(counts.max())
    all_indices = _gathered(comm, indices.t().contiguous(), most)
    all_values = _gathered(comm, values, most)
    total = torch.zeros_like(tensor)
    for count, index, value in zip(counts.tolist(), all_indices, all_values, strict=True):
        total = total + torch.sparse_coo_tensor(index[:count].t(), value[:count], tensor.shape, check_invariants=False)
    total = total.coalesce()
    if how.divisor > 1:
        total = total / how.divisor
    with torch.no_grad():
        tensor.copy_(total)  # of a detached alias, the original would keep its indices


def _gathered(comm: Communicator, rows: Any, most: int) -> Any:
    """The rows of all ranks, each padded to `most`."""
    padded = rows.new_zeros((most, *rows.shape[1:]))
    padded[: len(rows)] = rows
    found = rows.new_empty((comm.world_size, *padded.shape))
    comm.all_gather(flat(padded), out=flat(found).reshape(comm.world_size, -1))
    return found
