"""Memory of a rank: what is freed is kept for the next tensor, and what stays is made before what goes."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from choreo.heap import keep_freed_memory
from choreo.train.rank import memory
from choreo.workload import Plan
from tests.helpers.ranks.forks import forked_function, import_torch
from tests.helpers.suite.torch import dist, torch

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
    [adam] = made.optimizers
    assert all(adam.state[parameter][name].eq(0).all() for name in MOMENTS)
    parameter.grad = torch.ones(3)
    made.step()  # the first step of Adam is as long as the learning rate
    assert parameter.detach().tolist() == pytest.approx([-0.5] * 3)


def test_tensor_parallel_sums_are_made_in_place() -> None:
    """Copies took as long as the sums, and left holes of 20 MB in 140."""
    import_torch()

    def rank() -> int:
        from choreo.train.parallel.tensor import copy, reduce

        dist.init_process_group("choreo", store=dist.HashStore(), rank=0, world_size=1)
        first, weight = torch.ones(2, 3, requires_grad=True), torch.ones(3, 3, requires_grad=True)
        product = copy(first, dist.group.WORLD) @ weight
        total = reduce(product, dist.group.WORLD)
        total.square().sum().backward()
        right = first.grad.eq(18).all() and weight.grad.eq(12).all()  # 2 x 3 for each of three, and of two
        in_rows = reduce((first * 2).t(), dist.group.WORLD)  # what does not lie in one piece is copied
        right = right and in_rows.eq(2).all() and in_rows.is_contiguous()
        dist.destroy_process_group()
        return 0 if right and total.data_ptr() == product.data_ptr() else 1

    ran = forked_function(rank)
    assert ran.code == 0, ran.err


def test_code_that_is_read_from_files_is_no_memory_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"VmRSS": 300, "RssFile": 90, "VmHWM": 300}
    monkeypatch.setattr(memory, "_status", lambda name, file=None: found[name])
    monkeypatch.setattr(memory, "CLEAR", Path(os.devnull))
    memory.reset_peak()
    found.update(VmHWM=420, RssFile=110)
    assert memory.peak_bytes() == 100


def test_a_group_of_several_axes_is_named_by_what_it_is_used_for() -> None:
    from choreo.train.parallel.mesh import Mesh

    mesh, everybody = Mesh(Plan(), 0, torch.device("cpu")), object()
    mesh.groups.update(cp=everybody, replicas=everybody, ep=everybody)
    used = [mesh.axis_of(everybody, name) for name in ("all_gather", "all_reduce", "all_to_all")]
    assert used == ["cp", "dp", "ep"]
