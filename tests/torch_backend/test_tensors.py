"""Tensors in the calls of a communicator, without a process group of torch."""

from __future__ import annotations

import pytest

from choreo.errors import UsageError
from choreo.run.communicator import Communicator
from tests.helpers.ranks.forks import import_torch
from tests.helpers.ranks.run import Job
from tests.helpers.suite.torch import torch


def with_tensors(comm: Communicator) -> None:
    p = comm.world_size
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        x = torch.ones(6, dtype=dtype)
        assert comm.all_reduce(x) is x
        assert (x == (1 if dtype is torch.bool else p)).all()
        gathered = comm.all_gather(x)
        assert isinstance(gathered, torch.Tensor)
        assert (gathered.dtype, tuple(gathered.shape)) == (dtype, (p, 6))
    wide = torch.zeros(4, 4)
    wide[:, 1] = 1
    comm.all_reduce(wide[:, 1])
    assert wide.sum() == 4 * p
    weights = torch.ones(3, requires_grad=True)
    comm.all_reduce(weights)
    assert (weights == p).all()
    with pytest.raises(UsageError, match="sparse"):
        comm.all_reduce(torch.eye(2).to_sparse())
    with pytest.raises(UsageError, match="x is on meta"):
        comm.all_reduce(torch.empty(2, device="meta"))
    with pytest.raises(UsageError, match="conjugate"):
        comm.all_reduce(torch.ones(2, dtype=torch.complex64).conj())


def test_tensors() -> None:
    pytest.importorskip("ml_dtypes")
    import_torch()
    with Job(2) as job:
        job.run(with_tensors)
