"""Every collective of a process group, against what torch computes from the tensors of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from choreo.run import collective_calls
from tests.helpers.ranks.run import Job
from tests.helpers.suite.torch import dist, torch

Groups = Callable[[int], Job]
RANKS = [1, 2, 3, 4]
TYPES = ["float32", "bfloat16", "float16", "float64", "int64", "uint8", "bool", "complex64", "float8_e5m2"]


def of(rank: int, count: int, dtype: Any) -> Any:
    """What a rank gives: small whole numbers, which all types have."""
    return ((torch.arange(count) + rank) % 3).to(dtype)


def moved(_: Any, name: str) -> None:
    rank, size, dtype = dist.get_rank(), dist.get_world_size(), getattr(torch, name)
    for count in (0, 1, 5, 4096):
        mine, all_of_them = of(rank, count, dtype), [of(one, count, dtype) for one in range(size)]

        def same(found: Any, expected: Any) -> None:
            assert torch.equal(found.to(torch.complex64), expected.to(torch.complex64)), (name, found, expected)

        x = mine.clone()
        dist.broadcast(x, src=size - 1)
        same(x, all_of_them[-1])
        found = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(found, mine)
        for one, expected in zip(found, all_of_them, strict=True):
            same(one, expected)
        whole = torch.empty(size * count, dtype=dtype)
        dist.all_gather_single(whole, mine)
        same(whole, torch.cat(all_of_them))
        found = [torch.empty_like(mine) for _ in range(size)] if rank == 0 else []
        dist.gather(mine, found or None, dst=0)
        for one, expected in zip(found, all_of_them if found else [], strict=True):
            same(one, expected)
        x = torch.empty_like(mine)
        dist.scatter(x, [one.clone() for one in all_of_them] if rank == 0 else None, src=0)
        same(x, mine)
        sent = of(rank, size * count, dtype)
        x = torch.empty_like(sent)
        dist.all_to_all_single(x, sent)
        same(x, torch.cat([of(one, size * count, dtype)[rank * count : (rank + 1) * count] for one in range(size)]))
        if size > 1:
            x = torch.empty_like(mine)
            works = [dist.isend(mine, (rank + 1) % size), dist.irecv(x, (rank - 1) % size)]
            for work in works:
                work.wait()
            same(x, all_of_them[rank - 1])


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", TYPES)
def test_data_is_moved(groups: Groups, ranks: int, dtype: str) -> None:
    groups(ranks).run(moved, dtype)


def reduced(_: Any, name: str, op_name: str, async_op: bool) -> None:
    rank, size, dtype = dist.get_rank(), dist.get_world_size(), getattr(torch, name)
    op = getattr(dist.ReduceOp, op_name)
    for count in (0, 1, 7, 5000):
        total = expected(torch.stack([of(one, count * size, dtype) for one in range(size)]), op_name)

        def done(work: Any) -> None:
            if work is not None:
                work.wait()

        x = of(rank, count * size, dtype)
        done(dist.all_reduce(x, op, async_op=async_op))
        assert torch.equal(x, total), (x, total)
        strided = of(rank, count * size, dtype).repeat_interleave(2)[::2]
        done(dist.all_reduce(strided, op, async_op=async_op))
        assert torch.equal(strided, total)
        x = of(rank, count * size, dtype)
        done(dist.reduce(x, dst=size - 1, op=op, async_op=async_op))
        assert rank != size - 1 or torch.equal(x, total)
        mine = torch.empty(count, dtype=dtype)
        done(dist.reduce_scatter_single(mine, of(rank, count * size, dtype), op, async_op=async_op))
        assert torch.equal(mine, total[rank * count : (rank + 1) * count])
        mine = torch.empty(count, dtype=dtype)
        parts = [one.clone() for one in of(rank, count * size, dtype).split(count)] if count else [mine] * size
        done(dist.reduce_scatter(mine, parts, op, async_op=async_op))
        assert torch.equal(mine, total[rank * count : (rank + 1) * count])


def expected(stacked: Any, op: str) -> Any:
    dtype = stacked.dtype
    wide = stacked.to(torch.float64) if dtype.is_floating_point else stacked.to(torch.int64)
    match op:
        case "SUM":
            return wide.sum(0).to(dtype)
        case "AVG":
            return (wide.sum(0).to(dtype) / stacked.shape[0]).to(dtype)
        case "PRODUCT":
            return wide.prod(0).to(dtype)
        case "MIN" | "MAX":
            return getattr(wide, f"a{op.lower()}")(0).to(dtype)
    found = wide[0]
    for one in wide[1:]:
        found = {"BAND": found & one, "BOR": found | one, "BXOR": found ^ one}[op]
    return found.to(dtype)


FLOATS, WHOLE = ["float32", "bfloat16"], ["int64", "uint8"]
REDUCTIONS = [(dtype, op) for dtype in FLOATS + WHOLE for op in ("SUM", "PRODUCT", "MIN", "MAX")]
REDUCTIONS += [(dtype, "AVG") for dtype in FLOATS] + [(dtype, op) for dtype in WHOLE for op in ("BAND", "BOR", "BXOR")]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(("dtype", "op"), REDUCTIONS, ids=lambda one: one)
def test_tensors_are_reduced(groups: Groups, ranks: int, dtype: str, op: str, async_op: bool) -> None:
    groups(ranks).run(reduced, dtype, op, async_op)


def uneven(_: Any) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    found = [torch.empty(one + 1) for one in range(size)]
    dist.all_gather(found, torch.full((rank + 1,), float(rank)))
    assert [one.tolist() for one in found] == [[float(one)] * (one + 1) for one in range(size)]
    mine = torch.empty(rank)
    dist.reduce_scatter(mine, [torch.full((one,), float(one)) for one in range(size)])
    assert mine.tolist() == [float(rank * size)] * rank
    sent = torch.arange(float(sum(range(size))) * 2).view(-1, 2) + 100 * rank
    x = torch.empty(rank * size, 2)
    dist.all_to_all_single(x, sent, [rank] * size, list(range(size)))
    first = sum(range(rank))
    expected = [torch.arange(first * 2.0, (first + rank) * 2.0).view(-1, 2) + 100 * one for one in range(size)]
    assert torch.equal(x, torch.cat(expected))
    given = [torch.full((2, one + 1), float(rank)) for one in range(size)]
    lists = [torch.empty(2, rank + 1).t().contiguous().t() for _ in range(size)]
    dist.all_to_all(lists, given)
    assert all(torch.equal(one, torch.full((2, rank + 1), float(source))) for source, one in enumerate(lists))


@pytest.mark.parametrize("ranks", RANKS)
def test_sizes_may_differ_between_ranks(groups: Groups, ranks: int) -> None:
    groups(ranks).run(uneven)


def no_copy(_: Any) -> None:
    x = torch.ones(100, requires_grad=True)
    at = x.data_ptr()
    dist.all_reduce(x)
    assert (x.data_ptr(), x[0].item()) == (at, dist.get_world_size())
    whole = torch.zeros(dist.get_world_size(), 3)
    dist.all_gather(list(whole.unbind()), torch.full((3,), dist.get_rank() + 1.0))
    assert whole[:, 0].tolist() == [one + 1.0 for one in range(dist.get_world_size())]


def gathered_in_place(_: Any) -> None:
    """As FSDP2 does: each rank's part is in its place of the result already."""
    whole = torch.zeros(dist.get_world_size(), 977)
    whole[dist.get_rank()] = dist.get_rank() + 1.0
    for unused in ("apart", "take"):  # no copy is made, and the second call is a cached one
        with mock.patch.object(collective_calls, unused, side_effect=AssertionError):
            dist.all_gather_single(whole, whole[dist.get_rank()])
        assert torch.equal(whole, torch.arange(1.0, dist.get_world_size() + 1)[:, None].expand_as(whole))


@pytest.mark.parametrize("ranks", RANKS)
def test_a_part_in_its_place_is_not_copied(groups: Groups, ranks: int) -> None:
    groups(ranks).run(gathered_in_place)


@pytest.mark.parametrize("ranks", RANKS)
def test_results_are_in_the_tensors_own_memory(groups: Groups, ranks: int) -> None:
    groups(ranks).run(no_copy)


def sparse(_: Any) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    indices = torch.tensor([[0, rank], [1, 0]])
    x = torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0]), (size, 2), check_invariants=True)
    dist.all_reduce(x)
    dense = torch.zeros(size, 2)
    dense[:, 0] = 2.0
    dense[0, 1] = size
    assert torch.equal(x.to_dense(), dense), x.to_dense()
    one = torch.sparse_coo_tensor([[rank]], [1.0], (size,), check_invariants=True)
    dist.all_reduce(one)
    assert one._nnz() == size


@pytest.mark.parametrize("ranks", RANKS)
def test_sparse_tensors_are_added_up(groups: Groups, ranks: int) -> None:
    groups(ranks).run(sparse)
