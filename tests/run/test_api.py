"""What a communicator promises besides its results: arrays of any kind, work, messages, groups, memory, the end."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from choreo.errors import CollectiveMismatch, CommunicatorClosed, PeerFailure, UsageError
from choreo.run.communicator import Communicator
from choreo.run.init import init
from tests.helpers.ranks.run import Job

Array = npt.NDArray[Any]


def odd_arrays(comm: Communicator) -> None:
    p = comm.world_size
    scalar = np.array(2.0)
    assert comm.all_reduce(scalar) is scalar
    assert scalar == 2 * p
    assert comm.all_gather(np.array(3)).tolist() == [3] * p
    assert comm.all_gather(np.empty((0, 2))).shape == (p, 0, 2)
    assert comm.reduce_scatter(np.empty((0, 2))).shape == (0, 2)
    unaligned = np.frombuffer(bytearray(17), np.float32, 4, 1)
    assert not unaligned.flags.aligned
    unaligned[:] = 1
    comm.all_reduce(unaligned)
    assert (unaligned == p).all()
    shifted = np.arange(10.0)
    comm.all_reduce(shifted[1:], out=shifted[:-1])  # overlapping
    assert shifted.tolist() == [*(np.arange(1, 10) * p), 9]
    same = np.ones(5)
    assert comm.all_reduce(same, out=same) is same
    assert (same == p).all()
    table = np.zeros((p, 3))
    table[comm.rank] = comm.rank
    comm.all_gather(table[comm.rank], out=table)
    assert (table == np.arange(p)[:, None]).all()
    assert type(comm.all_gather(np.ones((2, 2)).view(np.matrix))) is np.ndarray
    uneven = comm.reduce_scatter(np.arange(10.0).reshape(5, 2), sizes=[5 - p + 1] + [1] * (p - 1))
    start = 0 if comm.rank == 0 else 5 - p + comm.rank
    assert (uneven == np.arange(10.0).reshape(5, 2)[start : start + len(uneven)] * p).all()


@pytest.mark.parametrize("ranks", [1, 3])
def test_odd_arrays(jobs: Callable[[int], Job], ranks: int) -> None:
    jobs(ranks).run(odd_arrays)


def uneven_all_to_all(comm: Communicator) -> None:
    p, rank = comm.world_size, comm.rank
    counts = np.array([[(s * 2 + d) % 4 for d in range(p)] for s in range(p)])
    rows = [np.concatenate([np.full((counts[s, d], 2), 10 * s + d) for d in range(p)]) for s in range(p)]
    want = np.concatenate([np.full((counts[s, rank], 2), 10 * s + rank) for s in range(p)])
    send, receive = counts[rank].tolist(), counts[:, rank].tolist()
    for arguments in ({}, {"recv_sizes": receive}, {"recv_sizes": receive, "out": np.empty_like(want)}):
        assert (comm.all_to_all(rows[rank], send_sizes=send, **arguments) == want).all()
    work = comm.all_to_all(rows[rank], send_sizes=send, async_op=True)
    assert (work.result() == want).all()
    wrong = [n + 1 for n in receive] if rank == 0 else receive
    with pytest.raises(CollectiveMismatch, match="rank 0 expects 1 rows from rank 0, which sends 0"):
        comm.all_to_all(rows[rank], send_sizes=send, recv_sizes=wrong)
    comm.barrier()


@pytest.mark.parametrize("ranks", [1, 3])
def test_all_to_all_with_uneven_sizes(jobs: Callable[[int], Job], ranks: int) -> None:
    jobs(ranks).run(uneven_all_to_all)


# Work


def in_order(comm: Communicator) -> None:
    x = np.ones(50_000, np.float32)
    works = [comm.all_reduce(x, async_op=True) for _ in range(5)]
    comm.all_reduce(x)  # after all of them
    assert (x == comm.world_size**6).all()
    assert all(work.done() for work in works)
    assert works[0].result() is x
    works[1].wait()
    assert "all_reduce: done" in repr(works[0])
    assert comm.barrier(async_op=True).result() is None


def late(comm: Communicator) -> None:
    if comm.rank == 0:
        time.sleep(0.5)
    x = np.ones(3)
    work = comm.all_reduce(x, async_op=True)
    if comm.rank == 1:
        with pytest.raises(TimeoutError, match=r"all_reduce is not done after 0\.05 s"):
            work.wait(0.05)
    assert (work.result(10) == comm.world_size).all()


@pytest.mark.parametrize("ranks", [1, 2])
def test_work_is_done_in_order(jobs: Callable[[int], Job], ranks: int) -> None:
    jobs(ranks).run(in_order)


def test_waiting_for_work_can_end_before_it(jobs: Callable[[int], Job]) -> None:
    jobs(2).run(late)


def views_into_views(comm: Communicator) -> None:
    """Parts of an array, into parts of another, and of the same: what is sent is what was there before."""
    room = np.zeros((comm.world_size + 1, 4))
    for _ in range(3):  # the later calls take the quick way
        x = np.arange(8.0)[2:6] + comm.rank
        found = comm.all_gather(x, out=room[1:])
        assert (found == np.arange(2.0, 6.0) + np.arange(comm.world_size)[:, None]).all()
        room[1] = comm.rank
        found = comm.all_gather(room[1], out=room[1:])
        assert (found == np.arange(comm.world_size)[:, None]).all()


def test_views_into_views(jobs: Callable[[int], Job]) -> None:
    jobs(2).run(views_into_views)


def large_calls(comm: Communicator) -> None:
    """Beyond what is staged at once, and beyond what caches hold; rank 1's arrays can be read in place."""
    for count in (70_001, 1_500_003, 5_000_001):
        x = comm.empty(count, np.float32) if comm.rank else np.empty(count, np.float32)
        for _ in range(2):
            x[:] = np.arange(count) % 1000 + comm.rank
            comm.all_reduce(x)
            assert (x == 2 * (np.arange(count) % 1000) + 1).all()
            comm.broadcast(x, 1)
            assert (comm.all_gather(x) == x).all()
            both = np.concatenate((x, x))
            assert (comm.reduce_scatter(both) == 2 * x).all()


def test_large_calls(jobs: Callable[[int], Job]) -> None:
    jobs(2).run(large_calls)


def many_shapes(comm: Communicator) -> None:
    p = comm.world_size
    for _ in range(2):  # the second time they take the quick way
        for rows in (300, 200, 100):
            x = np.arange(rows * p, dtype=np.float64)
            assert (comm.reduce_scatter(x) == p * x[rows * comm.rank : rows * (comm.rank + 1)]).all()


def test_calls_that_are_kept_differ_by_shape(jobs: Callable[[int], Job]) -> None:
    jobs(2).run(many_shapes)


# Messages


def exchange_messages(comm: Communicator) -> None:
    p, rank = comm.world_size, comm.rank
    right, left = (rank + 1) % p, (rank - 1) % p
    large = np.full(1_000_000, rank, np.int64)
    comm.send(large[:3], right, tag=7)
    comm.send(large, right, tag=1)  # more than a socket holds, and nobody asks for it yet
    works = [comm.isend(np.array([rank * 10 + n]), right, tag=2) for n in range(3)]
    small = np.empty((3, 2), np.int64)[:, 0]  # not contiguous
    got = [np.zeros(1, np.int64) for _ in range(3)]
    receiving = [comm.irecv(one, left, tag=2) for one in got]
    for work in (*works, *receiving):
        work.wait()
    assert [int(one[0]) for one in got] == [left * 10 + n for n in range(3)]
    assert (comm.recv(np.empty_like(large), left, tag=1) == left).all()
    assert comm.recv(small, left, tag=7) is small
    assert (small == left).all()
    comm.send(np.empty(0), right)
    comm.recv(np.empty(0), left)
    with pytest.raises(PeerFailure, match=r"recv of 8 bytes with tag 99 from rank \d .*: rank \d sent nothing before"):
        comm.recv(np.empty(1), left, tag=99, timeout=0.1)
    comm.send(np.ones(2), right, tag=5)
    with pytest.raises(CollectiveMismatch, match=r"sent 16 bytes of float64 with tag 5, but rank . asked for 8 "):
        comm.recv(np.empty(1), left, tag=5)
    comm.barrier()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_messages(jobs: Callable[[int], Job], ranks: int) -> None:
    jobs(ranks).run(exchange_messages)


# Objects


def exchange_objects(comm: Communicator) -> None:
    p, rank = comm.world_size, comm.rank
    assert comm.all_gather_object({"rank": rank, "pad": "x" * rank}) == [{"rank": r, "pad": "x" * r} for r in range(p)]
    given = ["from the last", {1, 2}] if rank == p - 1 else None
    assert comm.broadcast_object(given, root=p - 1) == ["from the last", {1, 2}]
    assert comm.scatter_object([f"for {r}" * r for r in range(p)] if rank == 0 else None) == f"for {rank}" * rank


@pytest.mark.parametrize("ranks", [1, 3])
def test_objects(jobs: Callable[[int], Job], ranks: int) -> None:
    jobs(ranks).run(exchange_objects)


# Groups


def grouped(comm: Communicator) -> None:
    group = comm.new_group([2, 0])
    if isinstance(group, Communicator):
        assert (group.rank, group.world_size) == ([2, 0].index(comm.rank), 2)
        assert group.all_gather(np.array(comm.rank)).tolist() == [2, 0]
        x = comm.empty(300_000)  # in the parent's heap, not in the group's
        x[:] = 1
        assert (group.all_reduce(x) == 2).all()
    else:
        assert comm.rank == 1
        assert not group
        with pytest.raises(UsageError, match=r"rank 1 is not a member of the group \[2, 0\]"):
            group.all_reduce(np.ones(4, np.float32))
    group.close()
    with pytest.raises(CollectiveMismatch, match="new_group: rank"):
        comm.new_group([0, 1] if comm.rank else [1, 0])
    comm.barrier()


def test_groups(jobs: Callable[[int], Job]) -> None:
    jobs(3).run(grouped)


def meshed(comm: Communicator) -> None:
    grid = comm.mesh((2, 2), names=("dp", "tp"))
    assert grid.coordinates == (comm.rank // 2, comm.rank % 2)
    assert grid["tp"].all_gather(np.array(comm.rank)).tolist() == [comm.rank // 2 * 2, comm.rank // 2 * 2 + 1]
    assert grid["dp"].all_gather(np.array(comm.rank)).tolist() == [comm.rank % 2, comm.rank % 2 + 2]
    with pytest.raises(UsageError, match="the mesh has no axis 'pp'; its axes are dp, tp"):
        grid["pp"]
    assert repr(grid) == "<Mesh dp 2 x tp 2>"
    grid.close()


def test_mesh(jobs: Callable[[int], Job]) -> None:
    jobs(4).run(meshed)


# Memory


def leased(comm: Communicator) -> None:
    def address(array: Array) -> int:
        return int(array.__array_interface__["data"][0])

    first = comm.empty((100, 1000))
    assert (first.shape, first.dtype.name) == ((100, 1000), "float32")
    assert comm._engine.heap.owns(first)
    assert not comm._engine.heap.owns(np.empty(3))
    place, part = address(first), first[10:20]
    del first
    gc.collect()
    second = comm.empty((100, 1000))
    assert address(second) != place  # a view still refers to it
    assert comm._engine.heap.owns(part)
    del part
    gc.collect()
    assert address(comm.empty((100, 1000))) == place
    comm.reduce_scatter(np.ones((comm.world_size, 200_000), np.float32))
    buffer = address(comm._engine.heap.buffer("work", 1))
    comm.reduce_scatter(np.ones((comm.world_size, 100_000), np.float64))
    assert address(comm._engine.heap.buffer("work", 1)) == buffer


def test_memory_is_used_again(jobs: Callable[[int], Job]) -> None:
    jobs(2).run(leased)


# The end


def closed(comm: Communicator) -> None:
    with comm.new_group(range(comm.world_size)) as other:
        kept = other.empty(10)
        kept[:] = 3
        x = np.ones(1000)
        work = other.all_reduce(x, async_op=True)
    assert work.done()
    assert (x == comm.world_size).all()
    assert (kept == 3).all()  # memory outlives the communicator
    other.close()
    for call in (other.barrier, lambda: other.all_reduce(x), lambda: other.empty(3), lambda: other.send(x, 0)):
        with pytest.raises(CommunicatorClosed, match="this communicator is closed"):
            call()
    comm.barrier()


@pytest.mark.parametrize("ranks", [1, 2])
def test_use_after_close(jobs: Callable[[int], Job], ranks: int) -> None:
    jobs(ranks).run(closed)


FORKS_CALLS: tuple[Callable[[Communicator], object], ...] = (
    lambda comm: comm.all_reduce(np.ones(2)),
    lambda comm: comm.all_reduce(np.ones(2), survive=True),
    lambda comm: comm.new_group([0]),
    lambda comm: comm.mesh((2,), ("all",)),
    lambda comm: comm.all_gather_object(1),
    lambda comm: comm.shrink(),
    lambda comm: comm.grow(),
)


def in_a_fork(comm: Communicator) -> None:
    comm.all_reduce(np.ones(2))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        for call in FORKS_CALLS:
            try:
                call(comm)
            except BaseException as error:
                said.append(f"{type(error).__name__}: {error}")
        comm.close()
        os.write(write, "\n".join(said).encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(read, 10_000).decode().splitlines()
    why = f"CommunicatorClosed: this communicator belongs to process {os.getpid()}, of which "
    assert [one.startswith(why) for one in said] == [True] * len(FORKS_CALLS)
    x = np.ones(2)
    comm.all_reduce(x)
    assert (x == comm.world_size).all()
    comm.send(x, comm.rank)


def test_a_fork_cannot_use_it(jobs: Callable[[int], Job]) -> None:
    jobs(2).run(in_a_fork)


def test_torch_is_not_imported() -> None:
    code = """
import sys, choreo, numpy
with choreo.init() as comm:
    comm.all_gather(comm.all_reduce(numpy.ones(2)))
    comm.broadcast_object({})
sys.exit("torch" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_timeout_may_be_text(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "CHOREO_RANK", "CHOREO_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with init(timeout="30s") as comm:
        assert comm.timeout_s == 30.0
        comm.barrier(timeout="20s")
        comm.barrier(timeout=np.int64(20))  # type: ignore[arg-type]
        assert comm.all_reduce(np.ones(1), timeout="20000ms").tolist() == [1.0]
        assert comm.all_gather_object(3, timeout="20s") == [3]
        comm.barrier(async_op=True).wait(timeout="20s")
        comm.isend(np.ones(1), dst=0, timeout="20s").wait(timeout="20s")
        assert comm.irecv(np.empty(1), src=0).result(timeout="20s") == 0
    with pytest.raises(UsageError, match="'soon' is not a time"):
        init(timeout="soon")
    with pytest.raises(UsageError, match="timeout must be a time of at least 0 seconds"):
        init(timeout=-1)
