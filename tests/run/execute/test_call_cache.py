"""Cached calls: whatever array comes next, the result is that of an uncached call."""

from __future__ import annotations

import inspect
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from choreo.algorithms import build, list_algorithms
from choreo.errors import UsageError
from choreo.run.communicator import Communicator
from choreo.run.execute import backend
from choreo.run.execute.compile import compile_program
from choreo.run.execute.dtypes import ReduceOp
from tests.helpers.programs import places
from tests.helpers.ranks.executors import COMPILED, TWIN, Rank, run_ranks
from tests.helpers.ranks.run import Job
from tests.helpers.strategies import schedule_of
from tests.oracles.replay import Case, Row

Array = npt.NDArray[Any]
FLOAT32 = 8


def other_arrays(comm: Communicator) -> None:
    """After a call was cached, arrays that differ from it in one thing each."""
    p, rank = comm.world_size, comm.rank
    total = p * (p + 1) // 2

    def summed(x: Array, op: ReduceOp = ReduceOp.SUM) -> Array:
        x[...] = rank + 1
        found: Array = comm.all_reduce(x, op)
        assert found is x
        return found

    for _ in range(3):
        assert (summed(np.empty(12, np.float32)) == total).all()
        assert (summed(np.empty((3, 4), np.float32)) == total).all()  # as many elements, of another shape
        assert (summed(np.empty(12, np.float64)) == total).all()
        assert (summed(np.empty(12, np.int32)) == total).all()
        assert (summed(np.empty(24, np.float32)[::2]) == total).all()
        assert (summed(np.empty(13, np.float32)[1:]) == total).all()
        assert (summed(np.empty(12, np.float32), ReduceOp.MAX) == p).all()
        assert (summed(np.empty(12, np.float32), ReduceOp.AVG) == total / p).all()
        assert (summed(comm.empty(12, np.float32)) == total).all()
        odd = np.frombuffer(bytearray(49), np.uint8)[1:].view(np.float32)  # not aligned
        assert (summed(odd) == total).all()


def brain_floats(comm: Communicator) -> None:
    import ml_dtypes

    for _ in range(3):
        x = np.full(5, comm.rank + 1.5, ml_dtypes.bfloat16)
        comm.all_reduce(x)
        assert x.astype(np.float32).tolist() == [sum(rank + 1.5 for rank in range(comm.world_size))] * 5


def test_bfloat16_is_cached_too(jobs: Callable[[int], Job]) -> None:
    pytest.importorskip("ml_dtypes")
    jobs(3).run(brain_floats)


def test_arrays_that_differ_from_the_cached_call(jobs: Callable[[int], Job]) -> None:
    jobs(3).run(other_arrays)


def other_results(comm: Communicator) -> None:
    p, rank = comm.world_size, comm.rank
    x = np.arange(4 * p, dtype=np.float32).reshape(2 * p, 2) + rank
    every = np.stack([x - rank + other for other in range(p)])
    mine = every.sum(axis=0)[2 * rank : 2 * rank + 2]
    for _ in range(3):
        assert (comm.all_gather(x) == every).all()
        assert (comm.reduce_scatter(x) == mine).all()
        out, part = np.zeros((p, 2 * p, 2), np.float32), np.zeros((2, 2), np.float32)
        assert comm.all_gather(x, out=out) is out and (out == every).all()
        assert comm.reduce_scatter(x, out=part) is part and (part == mine).all()
        wide = np.zeros((p, 2 * p, 4), np.float32)
        comm.all_gather(x, out=wide[..., ::2])
        assert (wide[..., ::2] == every).all() and not wide[..., 1::2].any()
        kept = x.copy()
        comm.reduce_scatter(kept, out=kept[2 * rank : 2 * rank + 2])  # into what is given
        assert (kept[2 * rank : 2 * rank + 2] == mine).all()
        out[rank] = x
        comm.all_gather(out[rank], out=out)
        assert (out == every).all()
        with pytest.raises(UsageError, match="out is float32 of shape"):
            comm.all_gather(x, out=out.reshape(p, 2, 2 * p))
        with pytest.raises(UsageError, match="out is float32 of shape"):
            comm.reduce_scatter(x, out=part.reshape(1, 4))


def test_results_that_differ_from_the_cached_call(jobs: Callable[[int], Job]) -> None:
    jobs(3).run(other_results)


def other_words(comm: Communicator) -> None:
    x = np.ones(4, np.float32)
    for _ in range(3):
        comm.broadcast(x, 0)
        comm.all_reduce(x)
        for root in (False, 0.0, [0], "0", None):
            with pytest.raises(UsageError, match="root must be a rank"):
                comm.broadcast(x, root)  # type: ignore[arg-type]
        words: list[Any] = ["sum", ["sum"], {}, None, 0]
        for op in words:
            with pytest.raises(UsageError, match="op must be a ReduceOp"):
                comm.all_reduce(x, op)
    comm.timeout_s = -1
    with pytest.raises(UsageError, match="timeout must be a finite number of seconds"):
        comm.barrier()
    comm.timeout_s = 300
    comm.barrier()


def test_mistakes_are_raised_after_a_call_was_cached(jobs: Callable[[int], Job]) -> None:
    jobs(2).run(other_words)


def more_than_the_cache_holds(comm: Communicator) -> None:
    for _ in range(2):
        for count in range(700):
            x = np.full(count, comm.rank + 1, np.int64)
            assert (comm.all_reduce(x) == comm.world_size * (comm.world_size + 1) // 2).all()


class Counting(Communicator):
    """A communicator that does something of its own in a call."""

    counted = 0

    def all_reduce(self, x: Any, *given: Any, **named: Any) -> Any:
        self.counted += 1
        return super().all_reduce(x, *given, **named)


def methods_are_functions(comm: Communicator) -> None:
    """What is called without Python looks, and fails, as the function does."""
    x, p = np.ones(3), comm.world_size
    for _ in range(3):
        assert comm.all_reduce(x, ReduceOp.MAX) is x and comm.broadcast(x, root=0) is x
        assert comm.all_reduce(x=x, op=ReduceOp.MIN) is x and comm.all_reduce(x, timeout=None, op=ReduceOp.MAX) is x
        assert comm.barrier() is None and comm.barrier(timeout=30) is None and comm.broadcast(x, timeout=30.0) is x
        assert comm.all_reduce(x, ReduceOp.MAX, out=np.empty(3)) is not x and (x == 1).all()
    calls: list[Any] = [comm.all_reduce, comm.broadcast]
    for call in calls:
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
            call()
        with pytest.raises(TypeError, match="takes from 2 to 3 positional arguments but 4 were given"):
            call(x, 0, 1)
        with pytest.raises(UsageError, match="timeout must be a finite number"):
            call(x, timeout=-1)
    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
        comm.barrier(3)  # type: ignore[call-arg]
    later = comm.all_reduce  # bound once
    assert later(x, timeout=20.0) is x and (x == p).all()
    derived = object.__new__(Counting)
    derived.__dict__.update(comm.__dict__)
    assert derived.all_reduce(x) is x and derived.counted == 1
    derived.__dict__.clear()


def test_methods_that_skip_python_look_like_functions(jobs: Callable[[int], Job]) -> None:
    jobs(2).run(methods_are_functions)
    wanted = {"all_reduce": "x op out", "broadcast": "x root timeout", "barrier": "timeout async_op"}
    for name, arguments in wanted.items():
        method = getattr(Communicator, name)
        assert " ".join(inspect.signature(method).parameters).startswith(f"self {arguments}")
        assert (method.__name__, method.__module__) == (name, "choreo.run.collective_calls")
        assert ">>>" in method.__doc__


def test_more_kinds_of_calls_than_the_cache_holds(jobs: Callable[[int], Job]) -> None:
    jobs(2).run(more_than_the_cache_holds)


def between_works(comm: Communicator) -> None:
    """While work is in progress even a cached call waits for its turn."""
    x = np.ones(3, np.float32)
    for _ in range(3):
        comm.all_reduce(x)
    for _ in range(20):
        large, small = np.full(300_000, 1.0), np.full(3, comm.rank + 1, np.float32)
        work = comm.all_reduce(large, async_op=True)
        comm.all_reduce(small)
        work.wait()
        assert (small == comm.world_size * (comm.world_size + 1) // 2).all()
        assert (large == comm.world_size).all()


def test_work_under_way_goes_before_a_cached_call(jobs: Callable[[int], Job]) -> None:
    jobs(2).run(between_works)


def on_one_core(comm: Communicator) -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    comm.barrier()
    os.sched_setaffinity(0, allowed)
    x = np.zeros(2, np.float32)
    for _ in range(5000):
        comm.all_reduce(x)
    assert os.sched_getaffinity(0) == allowed
    os.sched_setaffinity(0, {min(allowed)})
    for _ in range(200):
        comm.all_reduce(x)
    assert os.sched_getaffinity(0) == {min(allowed)}
    os.sched_setaffinity(0, allowed)


def test_going_to_another_core_leaves_the_right_to_run_anywhere(jobs: Callable[[int], Job]) -> None:
    jobs(2).run(on_one_core)


def beside_a_call(comm: Communicator) -> None:
    """While a call runs beside the main thread others are planned, and need more room than that one has."""
    for first in (100_000, 300_000, 900_000):
        arrays = [np.ones(first + 50_000 * number, np.float32) for number in range(6)]
        works = [comm.all_reduce(one, async_op=True) for one in arrays]
        for work in works:
            work.wait()
        assert all((one == comm.world_size).all() for one in arrays)


def test_planning_beside_a_call_leaves_it_alone() -> None:
    with Job(2, forced={"all_reduce": "recursive_doubling"}) as job:
        job.run(beside_a_call)


def closed_in_a_call(comm: Communicator) -> None:
    """Closing while another thread waits in a call is refused, and changes nothing."""
    if comm.rank == 0:
        threading.Thread(target=comm.barrier).start()
        time.sleep(0.2)
        with pytest.raises(RuntimeError, match="another thread is in a call"):
            comm.close()
    else:
        time.sleep(0.6)
        comm.barrier()
    time.sleep(0.6)
    comm.barrier()


def test_closing_beside_a_call_is_refused_whole() -> None:
    with Job(2) as job:
        job.run(closed_in_a_call)


def empty_parts(comm: Communicator) -> None:
    sizes = [0, 40_000, 10]
    out, x = comm.empty(sizes[comm.rank], np.float32), comm.empty(sum(sizes), np.float32)
    x[:] = comm.rank + 1
    for _ in range(2):
        assert (comm.reduce_scatter(x, sizes=sizes, out=out) == 6).all()


@pytest.mark.parametrize("algorithm", ["ring", "direct", "swing", "ring_bidirectional"])
def test_empty_parts_of_registered_arrays(algorithm: str) -> None:
    with Job(3, forced={"reduce_scatter": algorithm}) as job:
        job.run(empty_parts)


# What the executor makes of small messages, and of a work array that is only a part.

# Rank 2 got chunk 0 as its first message, so the second, which goes to rank 1 in a letter, must be staged for it.
HALF_IN_LETTERS = Case(
    "broadcast",
    3,
    0,
    2,
    (
        Row(0, 0, 2, 0, 1, False, False),
        Row(1, 0, 1, 1, 1, False, False),
        Row(1, 0, 2, 1, 1, False, False),
        Row(2, 2, 1, 0, 1, False, False),
    ),
    0,
)


@pytest.mark.parametrize("kinds", [(COMPILED,) * 3, (TWIN,) * 3, (COMPILED, TWIN, COMPILED)])
def test_a_range_inlined_for_some_and_staged_for_others(kinds: tuple[bool, ...]) -> None:
    schedule = schedule_of(HALF_IN_LETTERS)

    def body(rank: Rank) -> list[list[float]]:
        found = []
        for call in range(20):
            x = np.arange(8, dtype=np.float32) + call if rank.rank == 0 else np.zeros(8, np.float32)
            assert rank.collective(schedule, 8, x, x, item=4, dtype=FLOAT32) is None
            found.append(x.tolist())
        return found

    assert run_ranks(kinds, body) == [[[float(n + call) for n in range(8)] for call in range(20)]] * 3


@pytest.mark.parametrize("collective", ["reduce_scatter", "scatter"])
@pytest.mark.parametrize("stages", [True, False])
@pytest.mark.parametrize("kinds", [(COMPILED,) * 3, (TWIN, COMPILED, TWIN)])
def test_a_work_array_that_is_only_a_part(kinds: tuple[bool, ...], stages: bool, collective: str) -> None:
    root = 1 if collective == "scatter" else None
    names = [one.name for one in list_algorithms(collective) if one.same_bits and one.name != "in_network"]

    def body(rank: Rank) -> list[str]:
        cut = []
        for name in names:
            schedule = build(collective, name, 3, root=root)
            edges, input_at = places(schedule, 5, 4)
            whole = compile_program(schedule, rank.rank, edges, input_at, np.full(3, not stages), same=False)
            program = whole.within(20 * rank.rank, 20)
            given, work = np.arange(15, dtype=np.float32), np.zeros(15 if program is None else 5, np.float32)
            x = given if root is None or rank.rank == root else None
            rank.calls += 1
            ready = backend.executor(rank.compiled).Program(*(program or whole).as_bytes())
            assert rank.endpoint.run(rank.calls, 7, ready, x, work, FLOAT32, 0, 20.0, stages) is None
            mine = slice(5 * rank.rank, 5 * rank.rank + 5)
            found = work[mine] if program is None else work
            assert found.tolist() == (given[mine] * (1 if collective == "scatter" else 3)).tolist()
            cut += [] if program is None else [name]
        return cut

    found = run_ranks(kinds, body)
    assert all({"direct", "linear"} & set(one) for one in found), found
