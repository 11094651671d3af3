"""Traces made here: a step of a torch program, whose other ranks torch's `fake` backend stands for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from choreo.errors import TraceError, UsageError
from choreo.simulate.execution import simulate_workload
from choreo.trace import read_trace
from choreo.trace.recording import record_command

BEGINNING = """
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
torch.set_num_threads(1)
dist.init_process_group("fake", rank=0, world_size=16, store=FakeStore())
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
"""
DDP = """
model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.02)
def reduce(state, bucket):  # the fake backend's own future has no result
    dist.all_reduce(bucket.buffer())
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
model.register_comm_hook(None, reduce)
"""
FSDP = """
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (16,))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
"""
STEPS = """
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("wrapped", "collectives"),
    [
        (DDP, {"all_reduce"}),
        (FSDP, {"all_gather", "reduce_scatter"}),
    ],
    ids=["ddp", "fsdp"],
)
@pytest.mark.grid  # the page on training steps does the same
def test_a_step_of_sixteen_ranks_is_traced_in_one_process(tmp_path: Path, wrapped: str, collectives: set[str]) -> None:
    program = tmp_path / "train.py"
    program.write_text(BEGINNING + wrapped + STEPS)
    folder = tmp_path / "traces"
    record_command([sys.executable, str(program)], folder, step=3)
    assert sorted(file.name for file in folder.iterdir()) == ["et.0.json", "kineto.0.json"]
    trace = read_trace(folder)
    assert trace.graph.ranks == 16 and trace.format == "execution_trace+kineto"
    found = simulate_workload(trace.graph, "dgx-a100:2")
    assert {one.collective for one in found.exposed} == collectives
    assert {one.ranks for one in found.exposed} == {16}
    assert found.compute_s > 0
    with pytest.raises(UsageError, match="is there already and not empty"):
        record_command([sys.executable, str(program)], folder)


def test_a_program_that_fails_or_never_steps_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="ended with code 3"):
        record_command([sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "a")
    with pytest.raises(TraceError, match="no process stepped a torch optimizer 2 times"):
        record_command([sys.executable, "-c", "pass"], tmp_path / "b", step=2)
    with pytest.raises(UsageError, match="cannot be run"):
        record_command([str(tmp_path / "nothing")], tmp_path / "c")
    with pytest.raises(UsageError, match="counted from 1"):
        record_command(["true"], tmp_path / "d", step=0)
    assert list(tmp_path.iterdir()) == []  # a folder that got nothing would be taken for a trace
