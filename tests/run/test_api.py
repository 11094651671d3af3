"""What a communicator promises besides its results: mistakes told, work, messages, groups, objects, memory, the end."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from choreo.algorithms import build, list_algorithms
from choreo.errors import ChoreoError, CollectiveMismatch, CommunicatorClosed, PeerFailure, UsageError
from choreo.run.communicator import Communicator
from choreo.run.execute.choice import Chooser, forced_algorithms
from choreo.run.execute.constants import Band, Constants
from choreo.run.execute.dtypes import ReduceOp
from choreo.run.init import init
from tests.helpers.run import Job, RankError

Array = npt.NDArray[Any]


# Mistakes

ones = np.ones(4, np.float32)
read_only = np.ones(4, np.float32)
read_only.flags.writeable = False

MISTAKES: list[tuple[str, Callable[[Communicator], object], str]] = [
    ("a list", lambda c: c.all_reduce([1, 2]), "x must be a NumPy array or a CPU tensor, not list"),
    ("read-only", lambda c: c.all_reduce(read_only), "x is read-only"),
    ("read-only out", lambda c: c.all_reduce(ones, out=read_only), "out is read-only"),
    ("objects", lambda c: c.all_reduce(np.array([{}])), "arrays of object cannot be sent"),
    ("text", lambda c: c.broadcast(np.array(["a"])), "arrays of <U1 cannot be sent"),
    ("byte order", lambda c: c.all_reduce(np.ones(4, ">f4")), "in the machine's byte order"),
    ("masked", lambda c: c.all_reduce(np.ma.array([1.0], mask=[True])), "masked array"),
    ("out's shape", lambda c: c.all_reduce(ones, out=np.ones(3, "f4")), r"out is float32 of shape \(3,\), and must be"),
    ("out's type", lambda c: c.all_gather(ones, out=np.ones((2, 4))), "out is float64 of shape"),
    ("part's shape", lambda c: c.reduce_scatter(ones, out=np.ones(3, "f4")), "out is float32 of shape"),
    ("root", lambda c: c.broadcast(ones.copy(), root=2), "root must be a rank from 0 to 1, not 2"),
    ("negative root", lambda c: c.reduce(ones.copy(), root=-1), "root must be a rank from 0 to 1, not -1"),
    ("root of a kind", lambda c: c.gather(ones, root="0"), "root must be a rank"),  # type: ignore[arg-type]
    ("op", lambda c: c.all_reduce(ones.copy(), "sum"), "op must be a ReduceOp"),  # type: ignore[arg-type]
    ("op of type", lambda c: c.all_reduce(ones.copy(), ReduceOp.BXOR), "bitwise xor has no meaning for float32"),
    ("timeout", lambda c: c.barrier(timeout=0), "timeout must be a finite"),
    ("no op", lambda c: c.all_reduce(ones.copy(), None), "op must be a ReduceOp"),  # type: ignore[arg-type]
    ("survivors' out", lambda c: c.all_reduce(ones, out=np.empty(3), survive=True), "out is float64 of shape"),
    (
        "survivors' timeout",
        lambda c: c.all_reduce(ones.copy(), survive=True, timeout=0),
        "timeout must be a finite",
    ),
    (
        "survivors at leisure",
        lambda c: c.all_reduce(ones.copy(), survive=True, async_op=True),
        "cannot be asynchronous",
    ),
    ("shrink's timeout", lambda c: c.shrink(timeout="soon"), "'soon' is not a time"),
    ("text of no time", lambda c: c.barrier(timeout="0s"), "timeout must be a finite"),
    ("text without a unit", lambda c: c.barrier(timeout="30"), "30 what"),
    ("grow's timeout", lambda c: c.grow(timeout=-1), "timeout must be a finite"),
    ("no end", lambda c: c.all_reduce(ones.copy(), timeout=float("inf")), "timeout must be a finite"),
    ("0-d", lambda c: c.reduce_scatter(np.array(1.0)), "x has no dimension"),
    ("rows", lambda c: c.all_to_all(np.ones(3)), "x has 3 rows, which 2 ranks do not divide"),
    ("sizes", lambda c: c.reduce_scatter(ones, sizes=[1, 2]), "sizes must be 2 numbers of rows that add up to 4"),
    ("sizes' kind", lambda c: c.reduce_scatter(ones, sizes=[1.5, 2.5]), "sizes must be"),  # type: ignore[list-item]
    ("recv_sizes alone", lambda c: c.all_to_all(ones, recv_sizes=[2, 2]), "without send_sizes"),
    ("scatter of nothing", lambda c: c.scatter(None, root=c.rank), "the root must give x"),
    ("scatter into nothing", lambda c: c.scatter(None, root=1 - c.rank), "must give out, or x"),
    ("dst", lambda c: c.send(ones, 5), "dst must be a rank"),
    ("tag", lambda c: c.recv(ones.copy(), 0, tag="x"), "tag must be a whole number"),  # type: ignore[arg-type]
    ("group", lambda c: c.new_group([0, 0]), "ranks must be different ranks from 0 to 1"),
    ("mesh", lambda c: c.mesh((2, 2), ("a", "b")), "has 4 places for 2 ranks"),
    ("names", lambda c: c.mesh((2, 1), ("a", "a")), "2 different names"),
    ("empty", lambda c: c.empty((-1,)), "negative side"),
    ("empty's dtype", lambda c: c.empty(3, object), "arrays of object"),
    ("explain", lambda c: c.explain("allreduce", 8), "there is no collective 'allreduce'"),
    ("a pickle", lambda c: c.all_gather_object(lambda: 0), "cannot be pickled"),
]


def mistaken(comm: Communicator, name: str) -> None:
    wrong, sentence = next((call, text) for known, call, text in MISTAKES if known == name)
    with pytest.raises(UsageError, match=sentence) as caught:
        wrong(comm)
    assert "\n" not in str(caught.value)
    x = np.ones(3)
    comm.all_reduce(x)  # nothing was sent, so the communicator is as good as before
    assert (x == comm.world_size).all()


@pytest.mark.parametrize("name", [name for name, _, _ in MISTAKES])
def test_mistakes_are_told_before_anything_is_sent(jobs: Callable[[int], Job], name: str) -> None:
    jobs(2).run(mistaken, name)


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


# Failures


def alone(comm: Communicator) -> list[str]:
    """Calls that nobody else makes."""
    if comm.rank:
        time.sleep(1.5)
        return []
    work = comm.all_reduce(np.ones(3), timeout=0.3, async_op=True)
    after = comm.barrier(async_op=True)
    with pytest.raises(PeerFailure):
        work.wait()
    said = []
    for call in (after.wait, comm.barrier, lambda: comm.all_reduce(ones.copy()), lambda: comm.send(ones, 1)):
        began = time.monotonic()
        with pytest.raises(PeerFailure) as caught:
            call()
        said.append(str(caught.value))
        assert caught.value.ranks == {1}
        assert time.monotonic() - began < comm.timeout_s
    comm.close()
    return said


def test_after_a_failure_every_call_raises_it_at_once() -> None:
    with Job(2) as job:
        said = job.run(alone)[0]
    assert len(set(said)) == 1
    assert "rank 1 (host" in said[0]
    assert "all_reduce" in said[0]


def without_the_dead(comm: Communicator) -> None:
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(PeerFailure, match="died"):
        comm.all_reduce(np.ones(3))
    with pytest.raises(PeerFailure, match="rank 1 is gone"):
        comm._messages.receive(memoryview(bytearray(8)), 0, 1, 0, 20.0, finish=lambda: None).wait()


def test_a_dead_peer_is_noticed() -> None:
    with Job(2) as job, pytest.raises(RankError) as caught:
        job.run(without_the_dead)
    assert caught.value.errors == {1: "died"}


def different(comm: Communicator) -> None:
    with pytest.raises(CollectiveMismatch, match=r"called all_reduce\(3 x float64, sum\)"):
        comm.all_reduce(np.ones(3 + comm.rank))
    with pytest.raises(CollectiveMismatch, match=r"called all_reduce\(3 x float64, sum\)"):
        comm.barrier()


def sum_and_average(comm: Communicator) -> None:
    with pytest.raises(CollectiveMismatch, match="average"):
        comm.all_reduce(np.ones(3), (ReduceOp.SUM, ReduceOp.AVG)[comm.rank])


def test_an_average_is_not_a_sum() -> None:
    with Job(2) as job:
        job.run(sum_and_average)


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


def test_views_into_views() -> None:
    with Job(2) as job:
        job.run(views_into_views)


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


def test_large_calls() -> None:
    with Job(2) as job:
        job.run(large_calls)


def test_different_calls() -> None:
    with Job(2) as job:
        job.run(different)


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
            group.all_reduce(ones)
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


# What ran, and why


def explained(comm: Communicator) -> str:
    return comm.explain("all_reduce", 1 << 20)


def test_explain(jobs: Callable[[int], Job]) -> None:
    said = jobs(3).run(explained)
    assert said[0] == said[1] == said[2]
    assert said[0].startswith("all_reduce of 1048576 bytes over 3 ranks: ")
    assert "the cheapest by price" in said[0]
    assert "naive" not in said[0]
    assert "staggered" not in said[0]


def test_rank_0s_choice_is_everybodys() -> None:
    mine = Chooser(
        4, Constants((Band(4, 1 << 62, 1e-3, 1e9, 1e-10),)), forced_algorithms("all_reduce:ring, broadcast:mst")
    )
    theirs = Chooser.from_json(mine.to_json(), 4)
    assert theirs.explain("all_reduce", 100) == mine.explain("all_reduce", 100)
    assert theirs.ranked("gather", 100) == mine.ranked("gather", 100)
    with pytest.raises(UsageError, match="write all_reduce:ring"):
        forced_algorithms("ring")
    with pytest.raises(UsageError, match="CHOREO_ALGORITHM: there is no all_reduce algorithm 'rin'"):
        forced_algorithms("all_reduce:rin")


def reported(comm: Communicator) -> str:
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        comm.all_reduce(np.ones(2, np.float32))
        comm.all_reduce(np.ones(2, np.float32))
    return err.getvalue()


def test_debug_prints_a_line_a_call() -> None:
    with Job(2, {"all_reduce": "ring"}, {"debug": True}) as job:
        for rank, said in enumerate(job.run(reported)):
            lines = said.splitlines()
            assert len(lines) == 2
            for line in lines:
                assert line.startswith(f"choreo: rank {rank}: all_reduce of 8 bytes by ring in ")
                assert line.endswith(" us")


def sums(algorithm: str, ranks: int) -> Array:
    """For every rank and chunk, a number that stands for the order in which contributions were added."""
    schedule = build("all_reduce", algorithm, ranks)
    rng = np.random.default_rng(0)
    mine = rng.integers(1, 1 << 62, (schedule.members, schedule.num_chunks), dtype=np.uint64)
    work, has = mine.copy(), np.ones(mine.shape, bool)
    has[ranks:] = False
    for rows in schedule.steps():
        before = work.copy()
        order = np.lexsort((rows.chunk, rows.src))
        for at in order:
            span = slice(int(rows.chunk[at]), int(rows.chunk[at] + rows.count[at]))
            source, target = int(rows.src[at]), int(rows.dst[at])
            comes = (mine if rows.from_input[at] else before)[source, span]
            if rows.reduce[at]:
                low, high = np.minimum(work[target, span], comes), np.maximum(work[target, span], comes)
                added = (low * np.uint64(0x9E3779B97F4A7C15)) ^ (high * np.uint64(0xC2B2AE3D27D4EB4F) >> np.uint64(7))
                comes = np.where(has[target, span], added, comes)
            work[target, span], has[target, span] = comes, True
    return work[:ranks]


@pytest.mark.parametrize("algorithm", [one.name for one in list_algorithms("all_reduce") if one.in_library])
def test_only_those_marked_give_ranks_different_bits(algorithm: str) -> None:
    same = next(one.same_bits for one in list_algorithms("all_reduce") if one.name == algorithm)
    found = []
    for ranks in (3, 4, 5, 8):
        with contextlib.suppress(ChoreoError):
            order = sums(algorithm, ranks)
            found.append(bool((order == order[0]).all()))
    assert found
    assert all(found) == same


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


def in_a_fork(comm: Communicator) -> None:
    comm.all_reduce(np.ones(2))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = ""
        try:
            comm.all_reduce(np.ones(2))
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        comm.close()
        os.write(write, said.encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(read, 1000).decode()
    assert said.startswith(f"CommunicatorClosed: this communicator belongs to process {os.getpid()}, of which ")
    x = np.ones(2)
    comm.all_reduce(x)
    assert (x == comm.world_size).all()
    comm.send(x, comm.rank)


def test_a_fork_cannot_use_it(jobs: Callable[[int], Job]) -> None:
    jobs(2).run(in_a_fork)


# Tensors


def with_tensors(comm: Communicator) -> None:
    torch = importlib.import_module("torch")  # its types are nobody's business here
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
    pytest.importorskip("torch")
    pytest.importorskip("ml_dtypes")
    with Job(2) as job:  # ranks that are forked now have torch already
        job.run(with_tensors)


def whether_torch_is_there(comm: Communicator) -> bool:
    odd_arrays(comm)
    return "torch" in sys.modules


def test_torch_is_not_imported() -> None:
    if "torch" in sys.modules:
        pytest.skip("a test before this one imported it")
    with Job(1) as job:
        assert job.run(whether_torch_is_there) == [False]


def test_a_timeout_may_be_text(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "CHOREO_RANK", "CHOREO_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with init(timeout="30s") as comm:
        assert comm.timeout_s == 30.0
        comm.barrier(timeout="20s")
        assert comm.all_reduce(np.ones(1), timeout="20000ms").tolist() == [1.0]
        assert comm.all_gather_object(3, timeout="20s") == [3]
        comm.barrier(async_op=True).wait(timeout="20s")
        comm.isend(np.ones(1), dst=0, timeout="20s").wait(timeout="20s")
        assert comm.irecv(np.empty(1), src=0).result(timeout="20s") == 0
    with pytest.raises(UsageError, match="'soon' is not a time"):
        init(timeout="soon")
    with pytest.raises(UsageError, match="timeout must be a time of at least 0 seconds"):
        init(timeout=-1)
