"""CUDA tensors: several ranks on one GPU. Without a GPU these tests are skipped."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.suite.torch import dist, mp, torch

# As text it is asked when a test starts, so that collecting imports no torch.
pytestmark = pytest.mark.skipif("not torch.cuda.is_available()", reason="there is no GPU")


def in_ranks(work: Callable[[int, int], None], ranks: int, backend: str = "choreo") -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (ranks, folder, work, backend), ranks)


def _rank(rank: int, ranks: int, folder: str, work: Callable[[int, int], None], backend: str) -> None:
    import choreo.torch_backend

    choreo.torch_backend.register()
    torch.cuda.set_device(0)
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    work(rank, ranks)
    dist.destroy_process_group()


def same(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found.cpu(), torch.as_tensor(wanted, dtype=found.dtype).expand(found.shape))


def collectives(rank: int, ranks: int) -> None:
    device = torch.device("cuda", 0)
    total = ranks * (ranks + 1) / 2
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for count in (0, 1, 1000, 300_001, 9_000_001):
            x = torch.full((count,), rank + 1, dtype=dtype, device=device)
            dist.all_reduce(x)
            same(x, total)
            x = torch.full((count,), rank + 1, dtype=dtype, device=device)
            work = dist.all_reduce(x, dist.ReduceOp.MAX, async_op=True)
            work.wait()
            same(x, ranks)
            x = torch.full((count,), rank, dtype=dtype, device=device)
            dist.broadcast(x, ranks - 1)
            same(x, ranks - 1)
            parts = [torch.empty(count, dtype=dtype, device=device) for _ in range(ranks)]
            dist.all_gather(parts, torch.full((count,), rank, dtype=dtype, device=device))
            for source, part in enumerate(parts):
                same(part, source)
            out = torch.empty(count * ranks, dtype=dtype, device=device)
            dist.all_gather_into_tensor(out, torch.full((count,), rank, dtype=dtype, device=device))
            same(out.view(ranks, -1), torch.arange(ranks).view(-1, 1))
            mine = torch.empty(count, dtype=dtype, device=device)
            dist.reduce_scatter_tensor(mine, torch.arange(ranks, device=device).repeat_interleave(count).to(dtype))
            same(mine, rank * ranks)
            there = torch.empty(count * ranks, dtype=dtype, device=device)
            dist.all_to_all_single(there, torch.full((count * ranks,), rank, dtype=dtype, device=device))
            same(there.view(ranks, -1), torch.arange(ranks).view(-1, 1))
    x = torch.full((10, 7), float(rank), device=device).t()  # not contiguous
    dist.all_reduce(x)
    same(x, ranks * (ranks - 1) / 2)
    reduced = torch.full((5,), float(rank), device=device)
    dist.reduce(reduced, 0)
    if rank == 0:
        same(reduced, ranks * (ranks - 1) / 2)
    if rank == 0:
        dist.send(torch.arange(4.0, device=device), 1)
    if rank == 1:
        got = torch.empty(4, device=device)
        dist.recv(got, 0)
        same(got, torch.arange(4.0))
    dist.barrier()
    objects: list[Any] = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": one} for one in range(ranks)]


def streams(rank: int, ranks: int) -> None:
    """The call sees what the stream has computed, and the stream sees its result, without a word from the host."""
    device = torch.device("cuda", 0)
    side = torch.cuda.Stream()
    for _ in range(20):
        with torch.cuda.stream(side):
            x = torch.zeros(1 << 20, device=device)
            a = torch.randn(2048, 2048, device=device)
            for _ in range(10):
                a = a @ a * 0.01
            x += rank + 1 + 0 * a.sum().nan_to_num(0, 0, 0)
            work = dist.all_reduce(x, async_op=True)
            b = torch.randn(2048, 2048, device=device) @ a  # goes on meanwhile
            work.wait()
            y = x * 2
        del x, b
        side.synchronize()
        same(y, ranks * (ranks + 1))


def training(rank: int, ranks: int) -> None:
    """DDP and FSDP2 on several ranks of one GPU give what one process gives."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    device = torch.device("cuda", 0)

    def make() -> Any:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)]
        return torch.nn.Sequential(*layers).to(device)

    def train(model: Any, batch: Any) -> float:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
        return float(loss.detach())

    torch.manual_seed(1)
    whole = torch.randn(8 * ranks, 64, device=device)
    alone = train(make(), whole)
    mine = whole[8 * rank : 8 * rank + 8]
    for kind in ("ddp", "fsdp"):
        model = make()
        if kind == "ddp":
            model = DistributedDataParallel(model, device_ids=[0])
        else:
            fully_shard(model, mesh=init_device_mesh("cuda", (ranks,)))
        loss = torch.tensor(train(model, mine), device=device)
        dist.all_reduce(loss, dist.ReduceOp.AVG)
        torch.testing.assert_close(float(loss), alone, rtol=1e-4, atol=1e-6)


def beside_nccl(rank: int, ranks: int) -> None:
    """CUDA tensors go through NCCL and CPU tensors through Choreo, also in a group of some ranks."""
    del rank
    some: Any = dist.new_group(list(range(ranks)))
    for group in (dist.group.WORLD, some):
        assert group._get_backend(torch.device("cuda")).name() == "nccl"
        assert group._get_backend(torch.device("cpu")).name() == "choreo"
        for device in ("cpu", "cuda"):
            x = torch.ones(1000, device=device)
            dist.all_reduce(x, group=group)
            same(x, ranks)
    told: list[Any] = [None] * ranks
    dist.all_gather_object(told, "an object")
    assert told == ["an object"] * ranks
    some.abort()


def aborted(rank: int, ranks: int) -> None:
    """A watchdog ends a call on CUDA tensors that the other rank does not make."""
    del ranks
    group: Any = dist.new_group(backend="choreo")
    if rank == 0:
        watchdog = threading.Timer(0.5, group.abort)
        watchdog.start()
        with pytest.raises(dist.DistBackendError):
            dist.all_reduce(torch.ones(10, device="cuda"), group=group)
        watchdog.join()
    dist.barrier()


@pytest.mark.parametrize("work", [beside_nccl, collectives, training])
def test_nccl_where_it_is_named(work: Callable[[int, int], None]) -> None:
    """With one rank: NCCL refuses several on one GPU."""
    in_ranks(work, 1, "cpu:choreo,cuda:nccl")


def test_abort_ends_a_call_on_cuda_tensors() -> None:
    in_ranks(aborted, 2)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("work", [collectives, streams, training])
def test_ranks_that_share_a_gpu(work: Callable[[int, int], None], ranks: int) -> None:
    in_ranks(work, ranks)
