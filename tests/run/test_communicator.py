"""Collectives between real processes, as a grid: collective x kind of buffer x blocking x ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from choreo.run.communicator import Communicator
from choreo.run.execute.dtypes import ReduceOp
from tests.helpers.ranks.run import Job

Array = npt.NDArray[Any]

# Elements: none, few, a number that no number of ranks divides; and more than staging holds.
COUNTS, LARGE = (0, 1, 5, 20_011), 1_100_003
KINDS = ("plain", "out", "strided", "fortran", "reversed", "registered", "readonly")
RANKS = (1, 2, 3, 4)


@lru_cache(maxsize=16)
def contribution(rank: int, shape: tuple[int, ...]) -> Array:
    found = np.random.default_rng(rank).integers(-50, 50, shape, np.int8).astype(np.float32)
    found.flags.writeable = False  # it is kept for the next call
    return found


def laid_out(comm: Communicator, values: Array, kind: str) -> Array:
    """The values in a buffer of some kind."""
    if kind == "strided":
        wide = np.zeros((*values.shape[:-1], 2 * values.shape[-1]), values.dtype)
        wide[..., ::2] = values
        return wide[..., ::2]
    if kind == "fortran":
        return np.array(values, order="F")
    if kind == "reversed":
        return values[..., ::-1].copy()[..., ::-1]
    if kind == "registered":
        array = comm.empty(values.shape, values.dtype)
        array[...] = values
        return array
    array = values.copy()
    array.flags.writeable = kind != "readonly"
    return array


def changed_in_place(collective: str, kind: str) -> bool:
    return collective in ("all_reduce", "broadcast", "reduce") and kind not in ("out", "readonly")


def one_cell(comm: Communicator, collective: str, kind: str, blocking: bool) -> None:
    for count in COUNTS:
        one_call(comm, collective, kind, blocking, count)
    if blocking and kind == "plain":
        one_call(comm, collective, kind, blocking, LARGE)
    if blocking and kind == "registered":
        one_call(comm, collective, kind, blocking, LARGE // 4 * comm.world_size)


def one_call(comm: Communicator, collective: str, kind: str, blocking: bool, count: int) -> None:
    """Run a collective, and compare with what NumPy makes of everybody's contributions."""
    p, rank, root = comm.world_size, comm.rank, comm.world_size - 1
    by_rows = collective in ("reduce_scatter", "scatter", "all_to_all")
    shape = (2 * p, max(1, count // (2 * p))) if by_rows and count else (p * count,) if by_rows else (count,)
    if kind == "fortran" and not by_rows:
        shape = (count, 3)
    every = [contribution(r, shape) for r in range(p)]
    total, rows = sum(every[1:], every[0].copy()), shape[0] // p
    mine = slice(rank * rows, rank * rows + rows)
    expected: dict[str, Any] = {
        "all_reduce": total,
        "broadcast": every[root],
        "reduce": total if rank == root else None,
        "all_gather": np.stack(every),
        "gather": np.stack(every) if rank == root else None,
        "reduce_scatter": total[mine] if by_rows else None,
        "scatter": every[root][mine] if by_rows else None,
        "all_to_all": np.concatenate([one[mine] for one in every]) if by_rows else None,
    }
    want = expected[collective]
    x = laid_out(comm, every[rank], kind)
    arguments: dict[str, Any] = {"root": root} if collective in ("broadcast", "reduce", "scatter", "gather") else {}
    if collective != "broadcast" and (kind == "out" or (kind == "readonly" and collective in ("all_reduce", "reduce"))):
        arguments["out"] = np.full_like(every[rank] if want is None else want, -1)
    if collective == "broadcast" and kind == "readonly":
        x.flags.writeable = True
    call = getattr(comm, collective)
    got = call(x, **arguments) if blocking else call(x, async_op=True, **arguments).result()
    if want is None:
        assert got is None
    else:
        assert_same(got, want)
        if "out" in arguments:
            assert got is arguments["out"]
    if changed_in_place(collective, kind) and want is not None:
        assert got is x
    elif not changed_in_place(collective, kind):
        assert_same(x, every[rank] if collective != "broadcast" else want)


def assert_same(found: Array, wanted: Array) -> None:
    """As NumPy's own, which looks at large arrays many times."""
    if not np.array_equal(found, wanted):
        np.testing.assert_array_equal(found, wanted, strict=True)
        raise AssertionError("unequal")


# Whether a call waits and what lies where has little to do with how many take part.
CELLS = [
    pytest.param(kind, blocking, ranks, id=f"{kind}-{'blocking' if blocking else 'async'}-{ranks}")
    for kind in KINDS
    for blocking in (True, False)
    for ranks in (RANKS if blocking and kind in ("plain", "registered") else (1, 3) if blocking else (2,))
]


@pytest.mark.parametrize(("kind", "blocking", "ranks"), CELLS)
@pytest.mark.parametrize(
    "collective",
    ["all_reduce", "broadcast", "reduce", "all_gather", "gather", "reduce_scatter", "scatter", "all_to_all"],
)
def test_collective(jobs: Callable[[int], Job], collective: str, kind: str, blocking: bool, ranks: int) -> None:
    jobs(ranks).run(one_cell, collective, kind, blocking)


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_to_all", "broadcast"])
def test_collective_of_seven(jobs: Callable[[int], Job], collective: str) -> None:
    jobs(7).run(one_cell, collective, "plain", True)


def again_and_again(comm: Communicator, kind: str) -> None:
    """The quick way, which the second call of a size takes."""
    for _ in range(20):
        for collective in ("all_reduce", "broadcast", "all_gather", "reduce_scatter"):
            one_call(comm, collective, kind, True, 5)
        comm.barrier()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", RANKS)
def test_many_small_calls(jobs: Callable[[int], Job], ranks: int, kind: str) -> None:
    jobs(ranks).run(again_and_again, kind)


DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]
IN_NUMPY: dict[ReduceOp, Callable[[Array, Array], Array]] = {
    ReduceOp.SUM: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.AVG: np.add,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}


def every_operation(comm: Communicator, dtype: str) -> list[str]:
    """Reduce with every operation that the type has; those it does not have."""
    refused = []
    for op, combine in IN_NUMPY.items():
        every = [(np.arange(37) * (r + 3) % 4 + 1).astype(dtype) for r in range(comm.world_size)]
        x = every[comm.rank].copy()
        try:
            comm.all_reduce(x, op)
        except ValueError as error:
            assert "has no meaning for" in str(error)
            refused.append(op.name)
            continue
        want = every[0]
        for one in every[1:]:
            want = combine(want, one).astype(dtype)
        np.testing.assert_array_equal(x, want / comm.world_size if op is ReduceOp.AVG else want)
        rows = np.repeat(every[comm.rank], comm.world_size).reshape(37, -1).T.copy()
        part = comm.reduce_scatter(rows, op)
        np.testing.assert_array_equal(part[0], x)
    return refused


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [1, 3])
def test_operation(jobs: Callable[[int], Job], ranks: int, dtype: str) -> None:
    refused = {
        "b": ["AVG"],
        "i": ["AVG"],
        "u": ["AVG"],
        "f": ["BAND", "BOR", "BXOR"],
        "c": ["MIN", "MAX", "BAND", "BOR", "BXOR"],
    }
    assert jobs(ranks).run(every_operation, dtype) == [refused[np.dtype(dtype).kind]] * ranks


def with_brain_floats(comm: Communicator) -> None:
    import ml_dtypes

    for count in (3, 2 * LARGE):
        for op in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX):
            x = np.full(count, comm.rank + 1, ml_dtypes.bfloat16)
            comm.all_reduce(x, op)
            p = comm.world_size
            want = {ReduceOp.SUM: p * (p + 1) / 2, ReduceOp.AVG: (p + 1) / 2, ReduceOp.MAX: p}[op]
            assert (x == want).all()
        gathered = comm.all_gather(x)
        assert gathered.dtype == x.dtype
        assert (gathered == comm.world_size).all()


@pytest.mark.parametrize("ranks", [1, 2])
def test_bfloat16(jobs: Callable[[int], Job], ranks: int) -> None:
    pytest.importorskip("ml_dtypes")
    jobs(ranks).run(with_brain_floats)


def floats_of(comm: Communicator) -> list[bytes]:
    """The bits of sums whose value depends on the order."""
    return [bits for count in (3, 1000, 300_000) for bits in floats_of_so_many(comm, count)]


def floats_of_so_many(comm: Communicator, count: int) -> list[bytes]:
    x = (np.random.default_rng(comm.rank).standard_normal(count) * 10.0**comm.rank).astype(np.float32)
    total = comm.all_reduce(x.copy())
    half = comm.all_reduce(x.astype(np.float16), ReduceOp.SUM)
    return [total.tobytes(), half.tobytes()]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_bits_are_the_same_on_every_rank_and_in_every_run(jobs: Callable[[int], Job], ranks: int) -> None:
    found = jobs(ranks).run(floats_of)
    with Job(ranks) as other:
        found += other.run(floats_of)
    assert all(one == found[0] for one in found)


def by_algorithm(comm: Communicator, collective: str, name: str) -> str:
    one_call(comm, collective, "plain", True, 5)
    one_call(comm, collective, "plain", True, LARGE)
    return comm.explain(collective, 20)


FORCED = [("all_reduce", "ring"), ("all_reduce", "naive"), ("reduce_scatter", "ring"), ("broadcast", "mst")]


@pytest.mark.parametrize(("collective", "name"), FORCED, ids=[":".join(pair) for pair in FORCED])
def test_forced_algorithm(collective: str, name: str) -> None:
    with Job(3, {collective: name}) as job:
        for said in job.run(by_algorithm, collective, name):
            assert f"{collective} of 20 bytes over 3 ranks: {name}, because CHOREO_ALGORITHM says so" in said
            assert ("different bits" in said) == (name == "naive")


def without_reading(comm: Communicator) -> None:
    """As where the system does not let a process read another's memory: arrays go by way of the shared heap."""
    assert comm._engine.readable
    comm._engine.readable = False
    for collective, kind in itertools.product(
        ("all_reduce", "broadcast", "reduce", "all_gather", "gather", "reduce_scatter", "scatter", "all_to_all"),
        ("plain", "out"),
    ):
        one_call(comm, collective, kind, True, LARGE)
    comm._engine.readable = True


@pytest.mark.parametrize("ranks", [2, 3])
def test_where_memory_cannot_be_read(jobs: Callable[[int], Job], ranks: int) -> None:
    jobs(ranks).run(without_reading)
