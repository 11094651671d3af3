"""Both executors between real processes, alone and together: the bits of the schedule's order, and every bad end."""

from __future__ import annotations

import mmap
import os
import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from choreo.algorithms import build
from choreo.errors import UsageError
from choreo.run.execute import backend, twin
from choreo.run.execute.compile import compile_program
from choreo.run.execute.failures import BROKEN, LEFT, MISMATCHED, PEER_DIED, PEER_GAVE_UP, TIMED_OUT
from choreo.run.execute.layout import (
    CHANNEL,
    EXPOSED,
    GUARD,
    HEADER,
    LAST,
    OP,
    PAGE,
    RECEIVE,
    REDUCE,
    SEND,
    channel_at,
    offset_of,
)
from choreo.run.execute.twin.segment import call_record_at, mailbox_at
from choreo.schedule import Schedule
from tests.helpers.faults import eventually
from tests.helpers.programs import (
    COMPILED,
    STAGE_BYTES,
    TWIN,
    Array,
    Rank,
    heap_at,
    places,
    replay,
    run_ranks,
    segment_of,
    spans,
)

try:
    backend.executor(compiled=True)
except UsageError:
    pytest.skip("there is no compiled executor to hold against its twin", allow_module_level=True)

KINDS = {"compiled": (COMPILED,) * 3, "twin": (TWIN,) * 3, "mixed": (COMPILED, TWIN, COMPILED)}
BOTH = (COMPILED, TWIN)
HOSTS = {"one host": (0, 0, 0), "three hosts": (0, 1, 2), "two hosts": (0, 1, 1)}
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
FLOAT32, FLOAT64 = 8, 9


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


@pytest.mark.parametrize("kinds", KINDS)
def test_every_type_and_operation(kinds: str) -> None:
    schedule = build("all_reduce", "ring", 3)
    names = [name for name in CODES if name != "bfloat16" or _has_bfloat16()]

    def body(rank: Rank) -> int:
        done = 0
        for name in names:
            for operation in range(len(OPERATIONS)):
                kind = np.dtype(name).kind if name != "bfloat16" else "f"
                if (kind in "fc" and operation > 3) or (kind == "c" and operation > 1):
                    continue
                held_to(rank, schedule, name, operation, 37, ("staged", "registered")[operation % 2])
                done += 1
        return done

    found = run_ranks(KINDS[kinds], body, heap_bytes=4 << 20)
    assert found == [8 * 7 + (4 if _has_bfloat16() else 0) + 3 * 4 + 2 * 2 + 7] * 3


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


# Bad ends.


def reduce_all(rank: Rank, **changes: Any) -> tuple[int, int, int] | None:
    x = np.ones(8, np.float32)
    arguments: dict[str, Any] = {"item": 4, "dtype": FLOAT32, "timeout_s": 10.0} | changes
    return rank.collective(build("all_reduce", "direct", rank.world), 8, x, x, **arguments)


@pytest.mark.parametrize("hosts", ["one host", "three hosts"])
@pytest.mark.parametrize("kinds", KINDS)
def test_other_calls_are_caught(kinds: str, hosts: str) -> None:
    def body(rank: Rank) -> tuple[int, int, int] | None:
        assert reduce_all(rank) is None
        return reduce_all(rank, signature=8 if rank.rank == 2 else 7)

    found = run_ranks(KINDS[kinds], body, hosts=HOSTS[hosts])
    assert MISMATCHED in [one[0] for one in found]
    assert all(one[0] in (MISMATCHED, PEER_GAVE_UP, PEER_DIED) for one in found)
    if hosts == "one host":  # who asks for something else is named, by it whom it differs from
        assert all(2 in (rank, one[1]) for rank, one in enumerate(found) if one[0] == MISMATCHED)


@pytest.mark.parametrize("kinds", KINDS)
def test_two_roots_are_caught_before_their_data_is_taken(kinds: str) -> None:
    """Both send and neither receives, so the call itself may go well; the next must not take what lies there."""
    roots = [build("broadcast", "linear", 3, root=root) for root in (0, 1)]

    def body(rank: Rank) -> tuple[int, float]:
        mine = min(rank.rank, 1)
        x = np.full(4, float(rank.rank), np.float32)
        first = rank.collective(roots[mine], 4, x, x, item=4, dtype=FLOAT32, signature=mine)
        y = np.full(4, 10.0 + rank.rank, np.float32)
        second = first or rank.collective(roots[0], 4, y, y, item=4, dtype=FLOAT32, signature=5, timeout_s=5)
        if second is None:
            y = np.zeros(4, np.float32)
            second = reduce_all(rank)
        assert second is not None
        return second[0], float(y[0])

    found = run_ranks(KINDS[kinds], body)
    assert MISMATCHED in [outcome for outcome, _ in found]
    assert all(outcome in (MISMATCHED, PEER_GAVE_UP) for outcome, _ in found)
    assert all(value in (0.0, 10.0, 10.0 + rank, rank) for rank, (_, value) in enumerate(found)), (
        "nobody took rank 1's data"
    )


@pytest.mark.parametrize("kinds", KINDS)
def test_a_deadline_ends_a_wait_and_is_told(kinds: str) -> None:
    def body(rank: Rank) -> Any:
        if rank.rank == 2:
            time.sleep(1.5)
            return rank.endpoint.outcome_of(0)
        failed = reduce_all(rank, timeout_s=0.3)
        assert reduce_all(rank) is not None, "nothing runs after a failure"
        return failed

    first, second, told = run_ranks(KINDS[kinds], body)
    assert {first[0], second[0]} <= {TIMED_OUT, PEER_GAVE_UP}
    assert told[0] == first[0]
    assert told[2] == 1


@pytest.mark.parametrize("hosts", ["one host", "three hosts", "two hosts"])
@pytest.mark.parametrize("kinds", KINDS)
def test_a_death_is_noticed(kinds: str, hosts: str) -> None:
    def body(rank: Rank) -> Any:
        assert reduce_all(rank) is None
        if rank.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return reduce_all(rank, timeout_s=60.0)

    # Nobody says TIMED_OUT: it was the death that ended their calls, and not the deadline.
    first, died, third = run_ranks(KINDS[kinds], body, hosts=HOSTS[hosts])
    assert died == "died"
    for failed in (first, third):
        assert failed[0] in (PEER_DIED, PEER_GAVE_UP)
        assert failed[1] == 1 or failed[0] == PEER_GAVE_UP
    assert PEER_DIED in (first[0], third[0])


@pytest.mark.parametrize("hosts", ["one host", "three hosts"])
@pytest.mark.parametrize("kinds", KINDS)
def test_who_leaves_when_it_is_done_fails_nobody_and_early_is_told(kinds: str, hosts: str) -> None:
    schedule = build("broadcast", "ring", 3)

    def body(rank: Rank) -> Any:
        x = np.full(64, 3.0 if rank.rank == 0 else 0.0)
        if rank.rank == 2:
            time.sleep(0.2)  # by now the root has long left
        assert rank.collective(schedule, 64, x, x, item=8, dtype=FLOAT64) is None
        assert (x == 3).all()
        if rank.rank == 0:
            rank.endpoint.close()
            rank.endpoint.close()
            with pytest.raises(ValueError, match="closed"):
                reduce_all(rank)
            return None
        failed = reduce_all(rank)
        return failed, rank.endpoint.outcome_of(0)

    found = run_ranks(KINDS[kinds], body, hosts=HOSTS[hosts])
    for failed, _ in found[1:]:
        assert failed[0] in (PEER_GAVE_UP, PEER_DIED)
    assert (LEFT, 0, 1) in [told for _, told in found[1:]]


@pytest.mark.parametrize("kind", BOTH)
def test_a_signal_ends_a_wait(kind: bool) -> None:
    def body(rank: Rank) -> Any:
        if rank.rank == 1:
            assert eventually(lambda: rank.endpoint.outcome_of(0) is not None)
            return rank.endpoint.outcome_of(0)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            reduce_all(rank)
        return None

    _, told = run_ranks((kind, kind), body)
    assert told == (6, 0, 1)


@pytest.mark.parametrize("kind", BOTH)
def test_threads_and_forks(kind: bool) -> None:
    def body(rank: Rank) -> None:
        if rank.rank == 0:
            seen: list[str] = []

            def meddle() -> None:
                attempts: list[Callable[[], object]] = [lambda: reduce_all(rank), rank.endpoint.close]
                for attempt in attempts:
                    try:
                        attempt()
                    except RuntimeError as error:
                        seen.append(str(error))

            helper = threading.Timer(0.1, meddle)
            program = rank.prepared(
                compile_program(
                    build("all_reduce", "direct", 2),
                    0,
                    np.array([0, 16, 32]),
                    np.zeros(2, np.int64),
                    rank.remote,
                    same=True,
                )
            )
            x = np.ones(8, np.float32)
            helper.start()
            assert rank.endpoint.run(1, 7, program, x, x, FLOAT32, 0, 10.0, True) is None
            helper.join()
            assert len(seen) == 2
            assert all("another thread" in one for one in seen)
        else:
            time.sleep(0.4)
            assert reduce_all(rank) is None
        child = os.fork()
        if not child:
            code = 1
            try:
                rank.calls = 5
                reduce_all(rank)
            except RuntimeError as error:
                code = 0 if "fork" in str(error) else 2
            rank.endpoint.close()
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        rank.calls = 1
        assert reduce_all(rank) is None, "what a child lets go of is the parent's as before"

    run_ranks((kind, kind), body)


@pytest.mark.parametrize("kinds", [(COMPILED, COMPILED), (TWIN, COMPILED), (COMPILED, TWIN)])
def test_a_peer_that_is_gone_cannot_spoil_a_result_read_late(kinds: Sequence[bool]) -> None:
    """A rank sleeps through the end of a call; what it reads afterwards may be anything, so it must not believe it."""

    def body(rank: Rank) -> Any:
        schedule = build("broadcast", "linear", 2)
        x = rank.heap(1000, np.float64)
        if rank.rank == 0:
            x[:] = 1
            failed = rank.collective(schedule, 1000, x, x, item=8, dtype=FLOAT64, stages=False, timeout_s=0.2)
            assert failed is not None
            assert failed[:2] == (TIMED_OUT, 1)
            x[:] = 666
            return None
        time.sleep(0.6)
        return rank.collective(schedule, 1000, x, x, item=8, dtype=FLOAT64, stages=False)

    assert run_ranks(kinds, body, heap_bytes=1 << 16)[1][0] == PEER_GAVE_UP


# What makes no sense is refused, and never read or written beyond bounds.


def endpoint_with(kind: bool, peer: mmap.mmap | None, *streams: int, own: mmap.mmap | None = None) -> Any:
    own = segment_of(2) if own is None else own
    backend.executor(kind).prepare_segment(own, 0, 2, STAGE_BYTES)
    peers = [(None, 0, -1, ()), (peer, os.getpid(), -1, streams)]
    return backend.executor(kind).Endpoint(0, 2, own, STAGE_BYTES, peers, 5)


def program_of(
    kind: bool,
    *rows: tuple[int, ...],
    guards: Sequence[tuple[int, int]] = (),
    sent: int = 0,
    received: int = 0,
    scratch: int = 0,
) -> Any:
    columns = (
        np.array(list(rows), OP),
        np.array(list(guards), GUARD),
        np.array([0, sent], "<u4"),
        np.array([0, received], "<u4"),
    )
    ops, waits, out, come = (column.tobytes() for column in columns)
    return backend.executor(kind).Program(ops, waits, out, come, scratch, 0)


# kind, flags, peer, number, step, guards, first_guard, at, base, there, staged, length
HUGE = 2**64 - 8
BAD = {
    "kind": (9, LAST, 1, 1, 0, 0, 0, 0, 0, 0, 0, 8),
    "flags": (SEND, 128, 1, 1, 0, 0, 0, 0, 0, 0, 0, 8),
    "peer": (SEND, LAST, 2, 1, 0, 0, 0, 0, 0, 0, 0, 8),
    "number": (SEND, LAST, 1, 2, 0, 0, 0, 0, 0, 0, 0, 8),
    "guards beyond": (SEND, LAST, 1, 1, 0, 1, 0, 0, 0, 0, 0, 8),
    "guards that wrap": (SEND, LAST, 1, 1, 0, 9, HUGE, 0, 0, 0, 0, 8),
    "at": (SEND, LAST, 1, 1, 0, 0, 0, HUGE, 0, 0, 0, 16),
    "length": (SEND, LAST, 1, 1, 0, 0, 0, 8, 0, 0, 0, HUGE),
    "staged": (SEND, LAST, 1, 1, 0, 0, 0, 0, 0, 0, HUGE, 16),
    "scratch": (2, LAST, 1, 1, 0, 0, 0, 60, 0, 0, 0, 8),
    "unfinished": (SEND, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 8),
}


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("which", BAD)
def test_programs_that_make_no_sense(which: str, kind: bool) -> None:
    with pytest.raises(ValueError, match=r"operation|messages|guard|says|columns"):
        program_of(kind, BAD[which], sent=BAD[which][0] == SEND, received=BAD[which][0] == 2, scratch=64)


@pytest.mark.parametrize("kind", BOTH)
def test_programs_that_do_not_fit_their_call(kind: bool) -> None:
    peer = segment_of(2)
    backend.executor(kind).prepare_segment(peer, 1, 2, STAGE_BYTES)
    endpoint, x = endpoint_with(kind, peer), np.zeros(4, np.float32)
    send = (SEND, LAST, 1, 1, 0, 0, 0, 0, 0, 0, 0, 16)
    exposed = (SEND, LAST | EXPOSED, 1, 1, 0, 0, 0, 0, 0, 0, 0, 16)
    longer = (SEND, LAST, 1, 1, 0, 0, 0, 0, 0, 0, 0, 20)
    beyond = (SEND, LAST, 1, 1, 0, 0, 0, 0, 0, 0, STAGE_BYTES, 16)
    itself = (SEND, LAST, 0, 1, 0, 0, 0, 0, 0, 0, 0, 16)
    odd = (RECEIVE, LAST | REDUCE, 1, 1, 0, 0, 0, 0, 0, 0, 0, 7)

    def refused(
        program: Any,
        given: Any,
        work: Any,
        dtype: int = FLOAT32,
        operation: int = 0,
        stages: bool = True,
        call: int = 1,
    ) -> None:
        with pytest.raises((ValueError, BufferError)):
            endpoint.run(call, 0, program, given, work, dtype, operation, 1.0, stages)

    fine = program_of(kind, send, sent=1)
    refused(fine, x[::2], x)
    refused(fine, x, x, 15)
    refused(fine, x, x, FLOAT32, 4)
    refused(fine, x, x, -1)
    refused(fine, x, x, call=0)
    refused(fine, x, x, stages=False)
    refused(fine, None, None)
    refused(fine, x, b"1234567812345678")
    refused(program_of(kind, exposed, sent=1), x, x)
    refused(program_of(kind, longer, sent=1), x, x)
    refused(program_of(kind, beyond, sent=1), x, x)
    refused(program_of(kind, odd, received=1), x, x)
    none = b"\0" * 8
    refused(backend.executor(kind).Program(np.array([itself], OP).tobytes(), b"", b"\1" + none[1:], none, 0, 0), x, x)
    with pytest.raises(ValueError, match="timeout"):
        endpoint.run(1, 0, fine, x, x, FLOAT32, 0, float("nan"), True)
    with pytest.raises(TypeError):
        endpoint.run(1, 0, b"", x, x, FLOAT32, 0, 1.0, True)
    assert endpoint.run(1, 0, fine, x, x, FLOAT32, 0, 1.0, True) is None, "nothing of this is held against it"


@pytest.mark.parametrize("kind", BOTH)
def test_segments_of_others_are_refused(kind: bool) -> None:
    fine = segment_of(2)
    backend.executor(kind).prepare_segment(fine, 1, 2, STAGE_BYTES)
    endpoint_with(kind, fine)
    for offset in (0, 8, 12, 16, 32):
        wrong = segment_of(2)
        wrong[:] = fine[:]
        wrong[offset] ^= 1
        with pytest.raises(ValueError, match="rank 1 is not one of this communicator"):
            endpoint_with(kind, wrong)
    with pytest.raises(ValueError, match="rank 1"):
        endpoint_with(kind, mmap.mmap(-1, PAGE))
    for world, stage, rank in ((2, 2**62, 0), (2, 2**63 - 1, 0), (0, 0, 0), (2, 0, 2), (70000, 0, 0)):
        with pytest.raises(ValueError, match="too small"):
            backend.executor(kind).prepare_segment(segment_of(2), rank, world, stage)


@given(st.binary(max_size=64 * 5), st.binary(max_size=32), st.integers(0, 2**64 - 1), st.booleans())
@settings(max_examples=120)
def test_random_bytes_are_no_program(ops: bytes, guards: bytes, scratch: int, kind: bool) -> None:
    with pytest.raises(ValueError, match=r"."):
        backend.executor(kind).Program(ops, guards, b"\0" * 7, b"\0" * 8, scratch, 0)
    try:
        backend.executor(kind).Program(
            ops[: len(ops) // 64 * 64], guards[: len(guards) // 8 * 8], b"\0" * 8, b"\0" * 8, scratch, 0
        )
    except ValueError:
        return
    assert not any(ops[at] in (SEND, RECEIVE, 2) for at in range(0, len(ops) // 64 * 64, 64))


FIELDS = st.tuples(
    st.integers(0, 5),
    st.integers(0, 32),
    st.integers(0, 2),
    st.integers(0, 2),
    st.just(0),
    st.integers(0, 2),
    st.integers(0, 3),
    *(st.sampled_from((0, 4, 8, 64, STAGE_BYTES, 2**62, HUGE)),) * 4,
    st.sampled_from((0, 4, 8, 12, 2**20, HUGE)),
)


@given(
    st.lists(FIELDS, max_size=4),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=3),
    st.integers(0, 2),
    st.integers(0, 2),
    st.booleans(),
)
# Two mistakes in one program: the first operation's is the one to report.
@example([(SEND, LAST, 1, 2, 0, 0, 0, 0, 0, 0, 0, 8), (SEND, LAST, 1, 1, 0, 0, 0, HUGE, 0, 0, 0, 8)], [], 1, 0, True)
@settings(max_examples=120)
def test_both_executors_take_and_refuse_the_same(
    rows: list[tuple[int, ...]], guards: list[tuple[int, int]], sent: int, received: int, stages: bool
) -> None:
    """Random operations: both refuse them, or they run (till the deadline, for nobody answers) within bounds."""
    outcomes = []
    for kind in BOTH:
        peer = segment_of(2)
        backend.executor(kind).prepare_segment(peer, 1, 2, STAGE_BYTES)
        endpoint = endpoint_with(kind, peer)
        x, y = np.zeros(3, np.float32), np.zeros(16, np.float32)
        try:
            program = program_of(kind, *rows, guards=guards, sent=sent, received=received, scratch=64)
            outcomes.append(endpoint.run(1, 0, program, x, y, FLOAT32, 0, 0.0, stages))
        except ValueError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


@given(
    st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 3) | st.just(heap_at(2)), min_size=6, max_size=6),
    st.sampled_from((0, 1, 2, 3, 258, 1 << 16, 3 << 16, 1 << 16 | 1)),
    st.sampled_from((16, 40, 64)),
    st.integers(0, 3),
    st.booleans(),
)
@settings(max_examples=150)
def test_mailboxes_that_make_no_sense(words: list[int], modes: int, length: int, outcome: int, kind: bool) -> None:
    """Whatever a peer's segment says, the call ends, and reads nothing outside that segment."""
    peer = segment_of(2)
    backend.executor(kind).prepare_segment(peer, 1, 2, STAGE_BYTES)
    endpoint, x = endpoint_with(kind, peer), np.zeros(16, np.float32)
    number, signature, *mailbox = words
    if mailbox[1] % 2:
        mailbox[0], mailbox[1] = 0, modes  # the signature of this very call
    at = call_record_at(1)
    peer[at : at + 16] = struct.pack("<2Q", number, signature)
    at = mailbox_at(0, 1)
    peer[at : at + 40] = struct.pack("<5Q", 2**63, *mailbox)  # everything is ready
    peer[offset_of(HEADER, "outcome")] = peer[channel_at(0) + offset_of(CHANNEL, "outcome")] = outcome
    program = program_of(kind, (RECEIVE, LAST | REDUCE, 1, 1, 0, 0, 0, 0, 0, 16, 16, length), received=1)
    failed = endpoint.run(1, 0, program, x, x, FLOAT32, 0, 0.05, True)
    assert failed is None or failed[0] in (BROKEN, MISMATCHED, PEER_GAVE_UP, PEER_DIED)


@given(st.binary(max_size=200), st.sampled_from((b"", b"FRAM", b"BYE!", b"whole")), st.booleans())
@settings(max_examples=80)
def test_random_frames(noise: bytes, start: bytes, kind: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        endpoint, x = endpoint_with(kind, None, ours.fileno()), np.zeros(16, np.float32)
        head = struct.pack("<4sIQQQ", b"FRAM", 1, 1, 0, 64) if start == b"whole" else start
        theirs.sendall(head + noise)
        theirs.shutdown(socket.SHUT_WR)
        program = program_of(kind, (RECEIVE, LAST, 1, 1, 0, 0, 0, 0, 0, 0, 0, 64), received=1)
        failed = endpoint.run(1, 0, program, None, x, FLOAT32, 0, 1.0, False)
        if start == b"whole" and len(noise) >= 64:
            assert failed is None
            assert x.tobytes() == noise[:64]
        else:
            assert failed is not None
            assert failed[0] in (PEER_DIED, BROKEN, MISMATCHED, PEER_GAVE_UP)
        endpoint.close()


def test_the_executor_is_chosen_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHOREO_PURE_PYTHON", raising=False)
    assert backend.is_compiled()
    monkeypatch.setenv("CHOREO_PURE_PYTHON", "1")
    assert not backend.is_compiled()
    assert backend.executor() is twin
    monkeypatch.setattr(backend, "_find", lambda: None)
    monkeypatch.delenv("CHOREO_PURE_PYTHON")
    assert not backend.is_compiled()
    with pytest.raises(UsageError, match="C compiler"):
        backend.executor(compiled=True)
