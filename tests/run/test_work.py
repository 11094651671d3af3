"""Asynchronous calls: their order, callbacks, overlap with Python, and how they fail."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from choreo.errors import ChoreoError, CommunicatorClosed, PeerFailure
from choreo.run.communicator import Communicator
from choreo.run.execute.backend import is_compiled
from choreo.run.work import Work
from tests.helpers.ranks.faults import eventually
from tests.helpers.ranks.run import Job


@pytest.fixture(params=["compiled", "python"])
def job(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Job]]:
    """Jobs on either executor."""
    if request.param == "python":
        monkeypatch.setenv("CHOREO_PURE_PYTHON", "1")
    elif not is_compiled():
        pytest.skip("there is no compiled executor")
    made: list[Job] = []

    def make(ranks: int) -> Job:
        made.append(Job(ranks))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def held(comm: Communicator) -> None:
    """Calls that are held run, in order, when somebody waits for one, asks for one, or makes another call."""
    x = np.ones(4, np.float32)
    ran_by: list[int] = []

    def started() -> Work[Any]:
        comm.progress.hold(True)
        work: Work[Any] = comm.all_reduce(x, async_op=True)
        comm.progress.hold(False)
        work.add_done_callback(lambda _: ran_by.append(threading.get_ident()))
        return work

    first, second = started(), started()
    time.sleep(0.05)
    assert comm.progress.pending and not ran_by
    second.wait()
    assert first.done() and ran_by == [threading.get_ident()] * 2
    third = started()
    assert eventually(third.done)
    fourth = started()
    comm.barrier()
    assert fourth.done() and x[0] == comm.world_size**4
    started().wait(timeout=60)
    started()
    assert comm.progress.drain(None) and eventually(lambda: len(ran_by) == 6)


@pytest.mark.parametrize("ranks", [1, 3])
def test_held_calls_wait_for_whoever_waits_for_them(job: Callable[[int], Job], ranks: int) -> None:
    job(ranks).run(held)


def aborted(comm: Communicator, what: str, told: Path) -> str:
    """Rank 0 aborts from another thread while it waits for rank 1, which comes too late."""
    count = 4 if what == "queued calls" else 1 << 18
    if comm.rank == 1:
        assert eventually(told.exists)
        with pytest.raises(PeerFailure, match=r"rank 0 .* (was interrupted|ended or closed)") as caught:
            comm.all_reduce(np.ones(count), timeout=100)
        return str(sorted(caught.value.ranks))
    timer = threading.Timer(0.1, comm.abort)
    timer.start()
    with pytest.raises(CommunicatorClosed, match=r"abort|closed"):
        if what == "a receive":
            comm.recv(np.ones(4), src=1, timeout=100)
        elif what == "a call":
            comm.all_reduce(np.ones(count), timeout=100)
        else:
            works = [comm.all_reduce(np.ones(count), timeout=100, async_op=True) for _ in range(3)]
            works[2].wait()
    timer.join()
    comm.abort()
    comm.close()
    with pytest.raises(CommunicatorClosed, match="aborted"):
        comm.barrier()
    told.touch()
    return ""


@pytest.mark.parametrize("what", ["a call", "queued calls", "a receive"])
def test_abort_ends_what_is_in_progress(job: Callable[[int], Job], what: str, tmp_path: Path) -> None:
    assert job(2).run(aborted, what, tmp_path / "told") == ["", "[0]"]


def every_kind(comm: Communicator) -> None:
    """Cached calls and calls that need Python, all in progress at once: each sees what those before it did."""
    p, rank = comm.world_size, comm.rank
    x, rows = np.empty(4, np.float32), np.arange(2.0 * p, dtype=np.float32)
    for value in range(6):
        x[:] = value + 1
        works: list[Work[Any]] = [
            comm.all_reduce(x, async_op=True),
            comm.broadcast(x, async_op=True),
            comm.all_to_all(np.full((p, 1), float(rank)), send_sizes=[1] * p, async_op=True),
            comm.all_gather(x, async_op=True),
            comm.reduce_scatter(rows, async_op=True),
            comm.barrier(async_op=True),
            comm.reduce(x.copy(), root=0, async_op=True),
        ]
        comm.all_reduce(x)
        assert all(work.done() for work in works)
        assert (x == (value + 1) * p * p).all()
        assert works[0].result() is x
        assert (works[2].result() == np.arange(p)[:, None]).all()
        assert (works[3].result() == (value + 1) * p).all()
        assert (works[4].result() == p * rows[2 * rank : 2 * rank + 2]).all()
        assert works[5].result() is None


@pytest.mark.parametrize("ranks", [1, 3])
def test_all_kinds_of_calls_are_in_one_order(job: Callable[[int], Job], ranks: int) -> None:
    job(ranks).run(every_kind)


def many(comm: Communicator) -> None:
    arrays = [np.full(1 + number % 7, 1.0) for number in range(300)]
    works = [comm.all_reduce(one, async_op=True) for one in arrays]
    for work in reversed(works):
        work.wait()
    assert all((one == comm.world_size).all() for one in arrays)


def test_many_calls_waited_for_backwards(job: Callable[[int], Job]) -> None:
    job(2).run(many)


def callbacks(comm: Communicator) -> None:
    """A callback makes calls itself, as PowerSGD's does, and the others wait behind it or are run by it."""
    x, y, z = np.ones(3), np.ones(3), np.ones(3)
    for _ in range(2):
        comm.all_reduce(x)
    x[:] = 1
    seen: list[Any] = []

    def compute(work: Work[Any]) -> None:
        seen.append(work.result()[0])
        comm.all_reduce(y, async_op=True).wait()
        seen.append(comm.all_reduce(z)[0])
        seen.append("end")

    work = comm.all_reduce(x, async_op=True)
    work.add_done_callback(compute)
    work.wait()
    end = time.monotonic() + 20
    while "end" not in seen and time.monotonic() < end:
        time.sleep(0.001)
    assert seen == [comm.world_size, comm.world_size, "end"]
    work.add_done_callback(lambda done: seen.append(done is work))
    assert seen[-1] is True


def test_a_callback_may_make_calls(job: Callable[[int], Job]) -> None:
    job(2).run(callbacks)


def bad_callback(comm: Communicator) -> list[str]:
    said: list[str] = []
    sys.unraisablehook = lambda raised: said.append(str(raised.exc_value))
    work = comm.barrier(async_op=True)

    def fail(_: Work[Any]) -> None:
        raise ValueError("in a callback")

    work.add_done_callback(fail)
    comm.barrier()
    end = time.monotonic() + 20
    while not said and time.monotonic() < end:
        time.sleep(0.001)
    return said


def test_an_error_in_a_callback_is_reported(job: Callable[[int], Job]) -> None:
    assert job(1).run(bad_callback) == [["in a callback"]]


def beside_python(comm: Communicator) -> bool:
    """Whether a cached call ends while this thread never gives up the interpreter."""
    x = np.ones(2, np.float32)
    for _ in range(3):
        comm.all_reduce(x)
        comm.all_reduce(x, async_op=True).wait()
    comm.barrier()
    sys.setswitchinterval(1000.0)
    try:
        work = comm.all_reduce(x, async_op=True)
        end = time.monotonic() + 20
        while not work.done() and time.monotonic() < end:
            pass
        return bool(work.done())
    finally:
        sys.setswitchinterval(0.005)
        work.wait()


@pytest.mark.skipif(not is_compiled(), reason="the Python executor needs the interpreter")
def test_cached_calls_run_without_the_interpreter() -> None:
    with Job(2) as ranks:
        assert ranks.run(beside_python) == [True, True]


def kept_alive(comm: Communicator) -> None:
    """Arrays live as long as their call, and no longer than it and its work."""
    for _ in range(3):
        x = np.ones(1000)
        here = weakref.ref(x)
        work = comm.all_reduce(x, async_op=True)
        del x
        assert (work.result() == comm.world_size).all()
        comm.barrier()
        del work
        end = time.monotonic() + 20
        while here() is not None and time.monotonic() < end:
            gc.collect()
            time.sleep(0.001)
        assert here() is None


def test_arrays_live_as_long_as_their_call(job: Callable[[int], Job]) -> None:
    job(2).run(kept_alive)


def lost_peer(comm: Communicator) -> list[str]:
    """Cached calls that nobody else makes: all of them fail, and the first says so even if nobody waits for it."""
    x = np.ones(3)
    group = comm.new_group(range(comm.world_size))
    assert isinstance(group, Communicator)
    for _ in range(2):
        group.all_reduce(x)
    if comm.rank:
        time.sleep(1.0)
        return []
    group.timeout_s = 0.2
    said: list[str] = []
    works = [group.all_reduce(x, async_op=True) for _ in range(3)]
    works[1].add_done_callback(lambda work: said.append(repr(work)))
    for work in works[1:]:
        with pytest.raises(PeerFailure):
            work.wait()
    with pytest.raises(PeerFailure):
        group.all_reduce(x)
    assert "failed" in repr(works[0])
    read, write = os.pipe()
    kept, sys.stderr = sys.stderr, os.fdopen(write, "w")
    works.clear()
    del work
    gc.collect()
    sys.stderr.close()
    sys.stderr = kept
    said.append(os.fdopen(read).read())
    return said


def test_cached_calls_under_way_fail_together(job: Callable[[int], Job]) -> None:
    said = job(2).run(lost_peer)[0]
    assert said[0] == "<Work all_reduce: failed>"
    assert "all_reduce failed, and nothing waited for it: " in said[1]
    assert said[1].count("\n") == 1


def test_a_message_that_nothing_waited_for_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    work: Work[None] = Work("send of 8 bytes")
    work.end(error=PeerFailure("send of 8 bytes: rank 1 is gone", ranks=(1,)))
    del work
    assert capsys.readouterr().err == "choreo: send of 8 bytes failed, and nothing waited for it: rank 1 is gone\n"


def fork_with_work(comm: Communicator, pause_s: float) -> None:
    """A fork does not wait for its parent's calls for ever, and leaves them alone."""
    x = np.ones(3)
    for _ in range(2):
        comm.all_reduce(x)
    if comm.rank:
        time.sleep(pause_s)
    work = comm.all_reduce(x, async_op=True)
    if comm.rank == 0:
        child = os.fork()
        if child == 0:
            try:
                if not work.done():
                    with pytest.raises(RuntimeError, match="belongs to the parent"):
                        work.wait()
                with pytest.raises(ChoreoError):
                    comm.barrier()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    work.wait()
    comm.barrier()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("pause_s", [0.5, 0.0])
@pytest.mark.parametrize("pure_python", [False, True])
def test_a_fork_does_not_wait_for_its_parents_calls(
    pause_s: float, pure_python: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pure_python:
        monkeypatch.setenv("CHOREO_PURE_PYTHON", "1")
    with Job(2) as ranks:
        ranks.run(fork_with_work, pause_s)


def no_thread(comm: Communicator) -> None:
    """Where no thread can be started, the call is refused at once, and others go on."""
    libc, before, huge = ctypes.CDLL(None), ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
    assert libc.pthread_getattr_default_np(before) == libc.pthread_attr_init(huge) == 0
    assert libc.pthread_attr_setstacksize(huge, ctypes.c_size_t(1 << 46)) == 0
    assert libc.pthread_setattr_default_np(huge) == 0
    try:
        with pytest.raises(ChoreoError, match="the thread for asynchronous calls cannot be started"):
            comm.barrier(async_op=True)
    finally:
        assert libc.pthread_setattr_default_np(before) == 0
    comm.barrier()
    comm.barrier(async_op=True).wait()


def test_a_thread_that_cannot_start_is_an_error(job: Callable[[int], Job]) -> None:
    job(1).run(no_thread)


def two_threads(comm: Communicator) -> None:
    """A call that is started while another thread is in a call runs after it."""
    x, y = np.ones(3), np.ones(3)
    for _ in range(2):
        comm.all_reduce(x)
    comm.barrier()
    if comm.rank:
        time.sleep(0.3)
        comm.barrier()
        comm.all_reduce(y)
    else:
        before = comm._engine.connection.calls
        thread = threading.Thread(target=comm.barrier)
        thread.start()
        assert eventually(lambda: comm._engine.connection.calls > before)  # the thread is in the barrier
        comm.all_reduce(y, async_op=True).wait()
        thread.join()
    assert (y == comm.world_size).all()


@pytest.mark.skipif(not is_compiled(), reason="the Python executor refuses this")
def test_a_call_started_beside_a_call_runs_after_it() -> None:
    with Job(2) as ranks:
        ranks.run(two_threads)
