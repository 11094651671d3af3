"""How calls end when ranks die, stop, leave or make other calls; with both executors, alone and together."""

from __future__ import annotations

import mmap
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from choreo.algorithms import build
from choreo.errors import UsageError
from choreo.run.execute import backend
from choreo.run.execute.compile import compile_program
from choreo.run.execute.failures import LEFT, MISMATCHED, PEER_DIED, PEER_GAVE_UP, TIMED_OUT
from tests.helpers.ranks.executors import (
    BOTH,
    COMPILED,
    FLOAT32,
    FLOAT64,
    HOSTS,
    KINDS,
    TWIN,
    Rank,
    run_ranks,
)
from tests.helpers.ranks.faults import eventually

try:
    backend.executor(compiled=True)
except UsageError:
    pytest.skip("there is no compiled executor to hold against its twin", allow_module_level=True)


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
def test_a_deadline_ends_a_wait_and_is_reported(kinds: str) -> None:
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


@pytest.mark.parametrize("kind", BOTH)
def test_a_deadline_ends_a_send_to_a_peer_that_reads_in_trickles(kind: bool) -> None:
    done = mmap.mmap(-1, 1)  # shared with the ranks, which are forks

    def body(rank: Rank) -> Any:
        if rank.rank == 1:
            while not done[0]:
                for stream in rank.peers[0][3]:
                    os.read(stream, 1 << 10)
                time.sleep(0.0005)
            return None
        x = np.ones(16 << 20, np.float32)
        linear = build("broadcast", "linear", 2)
        failed = rank.collective(linear, len(x), x, x, item=4, dtype=FLOAT32, timeout_s=0.5)
        done[0] = 1
        return failed

    failed, _ = run_ranks((kind, kind), body, hosts=(0, 1), sealed=False)
    assert failed[0] == TIMED_OUT


@pytest.mark.parametrize("hosts", ["one host", "three hosts", "two hosts"])
@pytest.mark.parametrize("kinds", KINDS)
def test_a_death_is_noticed(kinds: str, hosts: str) -> None:
    done = mmap.mmap(-1, 3)  # shared with the ranks, which are forks

    def body(rank: Rank) -> Any:
        assert reduce_all(rank) is None
        done[rank.rank] = 1
        if rank.rank == 1:
            while not (done[0] and done[2]):  # a death during the first call would end that one
                time.sleep(0.01)
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
def test_who_leaves_when_it_is_done_fails_nobody_and_early_is_reported(kinds: str, hosts: str) -> None:
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
        assert reduce_all(rank) is None  # so that the next one is prepared before the signal comes
        if rank.rank == 1:
            assert eventually(lambda: rank.endpoint.outcome_of(0) is not None)
            return rank.endpoint.outcome_of(0)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            reduce_all(rank)
        return None

    _, told = run_ranks((kind, kind), body)
    assert told == (6, 0, 2)


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
