"""What training programs do with a process group: the results are those of one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.ranks.run import Job
from tests.helpers.suite.torch import dist, nn, torch

Groups = Callable[[int], Job]
BATCH = 12


def model() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


def batch() -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, 8, generator=generator), torch.randn(BATCH, 4, generator=generator)


def trained_alone(steps: int = 3) -> Any:
    alone, (x, y) = model(), batch()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(alone(x), y).backward()
        optimizer.step()
    return alone


def share(x: Any) -> Any:
    return x.chunk(dist.get_world_size())[dist.get_rank()]


def same(found: Any, expected: Any, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def train(module: Any, parameters: Any, steps: int = 3) -> None:
    x, y = batch()
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(module(share(x)), share(y)).backward()
        optimizer.step()


def ddp(_: Any, hook: str) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    # PowerSGD's callbacks call collectives, so with several buckets their order would differ between ranks.
    module = nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=25 if hook == "powersgd" else 0.001)
    if hook == "fp16":
        module.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(module, module.parameters(), steps=4)
    if hook != "powersgd":
        for found, expected in zip(module.parameters(), trained_alone(4).parameters(), strict=True):
            same(found, expected, 1e-6 if hook == "none" else 1e-2)
    gathered = [torch.empty_like(next(module.parameters())) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, next(module.parameters()).detach())
    assert all(torch.equal(one, gathered[0]) for one in gathered)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("hook", ["none", "fp16", "powersgd"])
def test_data_parallel(groups: Groups, ranks: int, hook: str) -> None:
    groups(ranks).run(ddp, hook)


def ddp_in_the_backward_pass(_: Any) -> None:
    """Where ranks share all cores, buckets are reduced by the thread that has run the backward pass."""
    group: Any = dist.group.WORLD
    left: list[bool] = []
    run = group._held._run

    def run_and_look() -> None:
        run()
        left.append(group.comm.progress.pending)

    group._held._shares_cores, group._held._run = True, run_and_look
    options: dict[str, Any]
    for options in ({}, {"static_graph": True}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}):
        module = nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.001, **options)
        train(module, module.parameters())
        for found, expected in zip(module.parameters(), trained_alone().parameters(), strict=True):
            same(found, expected)
    assert left == [False] * (4 * 3 - 1)  # all backward passes but the first with a static graph, which starts none


@pytest.mark.parametrize("ranks", [1, 3])
def test_data_parallel_where_ranks_share_cores(groups: Groups, ranks: int) -> None:
    groups(ranks).run(ddp_in_the_backward_pass)


def fsdp(_: Any, dtype: str) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    module = model()
    policy = MixedPrecisionPolicy(param_dtype=getattr(torch, dtype), reduce_dtype=getattr(torch, dtype))
    for layer in (module[0], module[2], module[4], module):
        fully_shard(layer, mp_policy=policy)
    x, y = batch()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(module(share(x)).float(), share(y)).backward()
        optimizer.step()
    for found, expected in zip(module.parameters(), trained_alone().parameters(), strict=True):
        same(found.full_tensor(), expected, 1e-6 if dtype == "float32" else 3e-2)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fully_sharded(groups: Groups, ranks: int, dtype: str) -> None:
    groups(ranks).run(fsdp, dtype)


def meshes(_: Any) -> None:
    """Data and tensor parallelism on a device mesh, and what DTensor calls."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    module = model()
    parallelize_module(module, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(module, mesh=mesh["dp"])
    x, y = batch()
    part = mesh["dp"].get_local_rank()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(module(x.chunk(2)[part]), y.chunk(2)[part]).backward()
        optimizer.step()
    for found, expected in zip(module.parameters(), trained_alone().parameters(), strict=True):
        same(found.full_tensor(), expected)
    whole = torch.arange(24.0).view(6, 4)
    cut = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    same(cut.redistribute(mesh, [Shard(1), Replicate()]).full_tensor(), whole)
    same((cut @ cut.t()).full_tensor(), whole @ whole.t())


def test_device_meshes(groups: Groups) -> None:
    groups(4).run(meshes)


def pipeline(_: Any, schedule: str) -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    rank, size = dist.get_rank(), dist.get_world_size()
    whole = model()
    layers = list(whole)
    per_stage = -(-len(layers) // size)
    mine = nn.Sequential(*layers[rank * per_stage : (rank + 1) * per_stage])
    stage = PipelineStage(mine, rank, size, torch.device("cpu"))
    kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[schedule]
    runner = kind(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    x, y = batch()
    for _ in range(2):
        mine.zero_grad()
        if rank == 0:
            runner.step(x)
        elif rank == size - 1:
            runner.step(target=y)
        else:
            runner.step()
    alone = copy.deepcopy(model())
    nn.functional.mse_loss(alone(x), y).backward()
    expected = nn.Sequential(*list(alone)[rank * per_stage : (rank + 1) * per_stage])
    for one, other in zip(mine.parameters(), expected.parameters(), strict=True):
        same(one.grad, other.grad)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_pipelines(groups: Groups, ranks: int, schedule: str) -> None:
    groups(ranks).run(pipeline, schedule)


def functional(_: Any) -> None:
    from torch.distributed import _coalescing_manager
    from torch.distributed import _functional_collectives as funcol

    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    x = torch.full((2, 3), rank + 1.0)
    total = sum(range(1, size + 1))
    same(funcol.all_reduce(x, "sum", group), torch.full((2, 3), float(total)))
    same(funcol.all_gather_single(x, 0, group)[::2, 0], torch.arange(1.0, size + 1))
    same(funcol.reduce_scatter_single(x.repeat(size, 1), "avg", 0, group), torch.full((2, 3), total / size))
    many = funcol.all_reduce_coalesced([x, x[:1].clone()], "max", group)
    same(many[1], torch.full((1, 3), float(size)))
    same(funcol.all_to_all_single(torch.full((size,), float(rank)), None, None, group), torch.arange(float(size)))
    same(funcol.broadcast(x, size - 1, group), torch.full((2, 3), float(size)))
    with _coalescing_manager() as manager:
        parts = [torch.ones(3) for _ in range(3)]
        for one in parts:
            dist.all_reduce(one)
    del manager
    assert all(one[0] == size for one in parts)
    with _coalescing_manager(device=torch.device("cpu"), async_ops=True) as works:
        for one in parts:
            dist.all_reduce(one)
    works.wait()
    assert all(one[0] == size * size for one in parts)


@pytest.mark.parametrize("ranks", [1, 3])
def test_functional_and_coalesced_collectives(groups: Groups, ranks: int) -> None:
    groups(ranks).run(functional)


def objects(_: Any) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    found: list[Any] = [None] * size
    dist.all_gather_object(found, {"rank": rank, "text": "x" * rank * 1000})
    assert [one["rank"] for one in found] == list(range(size))
    given = [{"from": 0}, "two"] if rank == 0 else [None, None]
    dist.broadcast_object_list(given, src=0)
    assert given == [{"from": 0}, "two"]
    got: list[Any] = [None]
    dist.scatter_object_list(got, list(range(10, 10 + size)) if rank == 0 else None, src=0)
    assert got == [10 + rank]
    gathered: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object(rank, gathered, dst=0)
    assert gathered in (None, list(range(size)))
    if size > 1:
        if rank == 0:
            dist.send_object_list(["hello"], dst=1)
        elif rank == 1:
            dist.recv_object_list(got, src=0)
            assert got == ["hello"]


@pytest.mark.parametrize("ranks", [1, 3])
def test_objects(groups: Groups, ranks: int) -> None:
    groups(ranks).run(objects)


def checkpoint(_: Any, folder: str) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import fully_shard

    module = fully_shard(model())
    train(module, module.parameters(), steps=2)
    saved = [one.full_tensor() for one in module.parameters()]
    dcp.save({"model": module.state_dict()}, checkpoint_id=folder)
    again = fully_shard(model())
    state = {"model": again.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    again.load_state_dict(state["model"])
    for found, expected in zip(again.parameters(), saved, strict=True):
        same(found.full_tensor(), expected, 0.0)


def test_distributed_checkpoints(groups: Groups, tmp_path: Path) -> None:
    groups(3).run(checkpoint, str(tmp_path / "checkpoint"))


def join(_: Any) -> None:
    from torch.distributed.algorithms.join import Join
    from torch.distributed.optim import ZeroRedundancyOptimizer

    module = nn.parallel.DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(module.parameters(), torch.optim.SGD, lr=0.1)
    x, _y = batch()
    with Join([module]):
        for _ in range(dist.get_rank() + 1):
            optimizer.zero_grad()
            module(x).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("ranks", [1, 3])
def test_join_with_uneven_inputs(groups: Groups, ranks: int) -> None:
    groups(ranks).run(join)
