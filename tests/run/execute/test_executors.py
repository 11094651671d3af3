"""Both executors between real processes, alone and together: results have the bits of the schedule's order."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from choreo.algorithms import build
from choreo.errors import UsageError
from choreo.run.execute import backend
from choreo.schedule import Schedule
from tests.helpers.programs import Array, places, replay, spans
from tests.helpers.ranks.executors import (
    COMPILED,
    FLOAT64,
    HOSTS,
    KINDS,
    TWIN,
    Rank,
    run_ranks,
)

try:
    backend.executor(compiled=True)
except UsageError:
    pytest.skip("there is no compiled executor to hold against its twin", allow_module_level=True)

CODES = (
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "complex64",
    "complex128",
    "bool",
)
OPERATIONS: tuple[Callable[[Any, Any], Any], ...] = (
    np.add,
    np.multiply,
    np.minimum,
    np.maximum,
    np.bitwise_and,
    np.bitwise_or,
    np.bitwise_xor,
)


def dtype_of(name: str) -> np.dtype[Any]:
    if name != "bfloat16":
        return np.dtype(name)
    found: np.dtype[Any] = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    return found


def values(name: str, count: int, seed: int) -> Array:
    """Any numbers; of complex ones only such as have exact products, since NumPy may fuse what we do not."""
    generator = np.random.default_rng(seed)
    kind = dtype_of(name)
    if kind.kind in "iu":
        bounds = np.iinfo(kind)
        return generator.integers(bounds.min, bounds.max, count, kind, endpoint=True)
    if kind.kind == "c":
        return (generator.integers(-9, 9, count) + 1j * generator.integers(-9, 9, count)).astype(kind)
    if kind.kind == "b":
        return generator.random(count) < 0.5
    found = np.asarray(generator.standard_normal(count) * 10.0 ** generator.integers(-6, 4, count)).astype(kind)
    found[seed % 7 :: 11] = np.nan
    found[seed % 5 :: 13] = np.inf
    return found


def bits(array: Array) -> Array:
    found = array.copy()
    if found.dtype.kind in "fV":
        found[np.isnan(found)] = np.nan  # which of two NaNs survives an addition is the processor's business
    return np.asarray(found.reshape(-1).view(np.uint8))


def held_to(rank: Rank, schedule: Schedule, name: str, operation: int, count: int, how: str, *, parts: int = 1) -> None:
    """Run a schedule; the rank's result has the bits of the replay."""
    kind = dtype_of(name)
    edges, _ = places(schedule, count, kind.itemsize)
    size = int(edges[-1]) // kind.itemsize
    vectors = [values(name, size, 100 * one + count) for one in range(rank.world)]
    span = spans(schedule, edges, kind.itemsize)[rank.rank]
    if how == "registered":
        work = rank.heap(size, kind)
        given = rank.heap(span.stop - span.start, kind, 1 << 21)
    else:
        work, given = np.empty(size, kind), np.empty(span.stop - span.start, kind)
    work.reshape(-1).view(np.uint8)[:] = 255
    given[:] = vectors[rank.rank][span]
    failed = rank.collective(
        schedule,
        count,
        given,
        work,
        item=kind.itemsize,
        dtype=CODES.index(name),
        operation=operation,
        stages=how == "staged",
        parts=parts,
    )
    assert failed is None, (schedule, name, count, how, failed)
    with np.errstate(all="ignore"):
        wanted, full = replay(schedule, edges, vectors, OPERATIONS[operation])
    for chunk in np.flatnonzero(schedule.held_after()[rank.rank] & full[rank.rank]):
        part = slice(int(edges[chunk]) // kind.itemsize, int(edges[chunk + 1]) // kind.itemsize)
        same = bits(work[part]) == bits(wanted[rank.rank][part])
        assert same.all(), (schedule, name, operation, count, how, chunk)


def every_type_and_operation() -> list[tuple[str, int]]:
    """Which operations there are for each type."""
    found = []
    for name in CODES:
        if name == "bfloat16" and not _has_bfloat16():
            continue
        kind = "f" if name == "bfloat16" else np.dtype(name).kind
        found += [(name, operation) for operation in range({"f": 4, "c": 2}.get(kind, len(OPERATIONS)))]
    assert len(found) == 8 * 7 + (4 if _has_bfloat16() else 0) + 3 * 4 + 2 * 2 + 7
    return found


@pytest.mark.parametrize("kinds", KINDS)
def test_every_type_and_operation(kinds: str) -> None:
    schedule = build("all_reduce", "ring", 3)

    def body(rank: Rank) -> None:
        for name, operation in every_type_and_operation():
            held_to(rank, schedule, name, operation, 37, ("staged", "registered")[operation % 2])

    run_ranks(KINDS[kinds], body, heap_bytes=4 << 20)


def test_several_sources_are_reduced_in_one_pass() -> None:
    """The compiled executor takes from them in turns; the bits are those of one after the other."""
    schedule = build("all_reduce", "direct", 3)

    def body(rank: Rank) -> None:
        for number, (name, operation) in enumerate(every_type_and_operation()):
            count = 3 * 4500 // dtype_of(name).itemsize + number % 9
            held_to(rank, schedule, name, operation, count, ("staged", "registered", "private")[number % 3])

    run_ranks((COMPILED,) * 3, body, heap_bytes=4 << 20)


def _has_bfloat16() -> bool:
    try:
        import ml_dtypes
    except ImportError:
        return False
    return bool(ml_dtypes)


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("kinds", KINDS)
def test_every_way_to_hand_data_over(kinds: str, hosts: str) -> None:
    grid = [
        ("all_reduce", "ring"),
        ("all_reduce", "direct"),
        ("all_reduce", "recursive_doubling"),
        ("broadcast", "mst"),
        ("all_gather", "bruck"),
        ("reduce_scatter", "direct"),
        ("all_to_all", "pairwise"),
        ("barrier", "direct"),
    ]
    schedules = [build(*one, 3) for one in grid]

    def body(rank: Rank) -> int:
        for count in (0, 1, 5, 999):
            for schedule in schedules:
                for how in ("staged", "registered", "private"):
                    held_to(rank, schedule, "float32", 0, count, how)
        for schedule in schedules[:3]:  # beyond the staging, and beyond what a socket holds
            for how in ("registered", "private"):
                held_to(rank, schedule, "float64", 0, 60_001, how)
        rank.endpoint.close()
        return rank.calls

    assert run_ranks(KINDS[kinds], body, hosts=HOSTS[hosts], heap_bytes=4 << 20) == [4 * 8 * 3 + 6] * 3


def test_many_sockets_at_once() -> None:
    schedule = build("all_to_all", "direct", 9)

    def body(rank: Rank) -> None:
        for count in (1, 3000):
            held_to(rank, schedule, "int32", 0, count, "private")

    run_ranks((COMPILED, TWIN, *(COMPILED,) * 7), body, hosts=range(9))


@pytest.mark.parametrize("kinds", KINDS)
def test_a_rank_that_is_late_and_ranks_that_run_ahead(kinds: str) -> None:
    """A root may be several calls ahead; what it staged stays until it has been read, whatever comes between."""
    small, large = build("broadcast", "linear", 3), build("broadcast", "linear", 3, root=1)

    def body(rank: Rank) -> None:
        generator = random.Random(rank.rank)
        for number in range(40):
            if generator.random() < 0.2:
                time.sleep(0.003)
            work = np.full(100, float(number) if rank.rank == 0 else -1.0)
            assert rank.collective(small, 100, work, work, item=8, dtype=FLOAT64) is None
            assert (work == number).all()
            work = np.full(9, float(number) if rank.rank == 1 else -1.0)
            assert rank.collective(large, 9, work, work, item=8, dtype=FLOAT64, stages=number % 3 == 0) is None
            assert (work == number).all()

    run_ranks(KINDS[kinds], body)


@pytest.mark.parametrize("kinds", KINDS)
def test_a_call_in_parts_has_the_bits_of_one(kinds: str) -> None:
    """Parts take two slots in turn, the calls between them others; ranks that stage and ranks that expose agree."""

    def body(rank: Rank) -> None:
        for number, (collective, algorithm) in enumerate(
            (("broadcast", "linear"), ("all_reduce", "direct"), ("all_gather", "ring"), ("reduce_scatter", "direct"))
        ):
            schedule = build(collective, algorithm, 3)
            for parts in (2, 5, 40):
                for how in ("staged", "registered", "private", ("staged", "private", "registered")[rank.rank]):
                    held_to(rank, schedule, "float32", 0, 301, how, parts=parts)
                    held_to(rank, build("all_reduce", "recursive_doubling", 3), "int16", 0, 9 + number, "staged")

    run_ranks(KINDS[kinds], body, heap_bytes=4 << 20)
