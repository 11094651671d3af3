"""Memory of a rank: what is freed is kept for the next tensor, and what stays is made before what goes."""

from __future__ import annotations

import os
import resource

import pytest

from choreo.heap import keep_freed_memory
from choreo.workload import Plan
from tests.helpers.suite.torch import torch

BLOCK_BYTES = 40 << 20  # glibc maps blocks from 32 MiB on by themselves


def faults_of_a_block(block_bytes: int = BLOCK_BYTES) -> int:
    """Pages that the kernel gives for one large block, once such a block was freed."""
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        bytes([1]) * block_bytes  # NumPy would ask for huge pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_a_large_block_is_paid_for_once() -> None:
    child = os.fork()  # it holds for a process as long as it lives
    if child == 0:
        code = 1
        try:
            paid = faults_of_a_block()
            kept = keep_freed_memory()
            code = 0 if not kept or (paid > 1000 and faults_of_a_block() < 100) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_adams_state_is_there_before_the_first_step() -> None:
    values = torch.zeros(3)
    from choreo.train.parallel.adam import MOMENTS
    from choreo.train.parallel.data import Optimizers
    from choreo.train.parallel.mesh import Mesh

    parameter = torch.nn.Parameter(values)
    made = Optimizers([parameter], Mesh(Plan(), 0, torch.device("cpu")), lr=0.5)
    [adam] = made.made
    assert all(adam.state[parameter][name].eq(0).all() for name in MOMENTS)
    parameter.grad = torch.ones(3)
    made.step()  # the first step of Adam is as long as the learning rate
    assert parameter.detach().tolist() == pytest.approx([-0.5] * 3)
