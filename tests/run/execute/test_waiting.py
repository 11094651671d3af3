"""Waiting: ranks of one session, and ranks that are each in a session of their own, as torchrun starts them."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import choreo.run
from choreo.run.communicator import Communicator
from choreo.run.connect import _scheduling_group
from choreo.run.execute.backend import is_compiled
from tests.helpers.ranks.faults import eventually
from tests.helpers.ranks.run import Job

AUTOGROUPS = Path("/proc/sys/kernel/sched_autogroup_enabled")


def in_sessions_of_their_own(comm: Communicator) -> Communicator:
    """The same ranks again; they compare their sessions when they connect."""
    os.setsid()
    group = comm.new_group(range(comm.world_size))
    assert isinstance(group, Communicator)
    return group


def every_size(comm: Communicator) -> None:
    with in_sessions_of_their_own(comm) as group:
        for count in (0, 2, 1000, 300_001):
            for _ in range(5):
                x = np.full(count, group.rank + 1.0)
                group.all_reduce(x)
                assert (x == group.world_size * (group.world_size + 1) / 2).all()
        group.barrier()


@pytest.mark.parametrize("ranks", [2, 5])
def test_ranks_in_sessions_of_their_own(ranks: int) -> None:
    with Job(ranks) as job:
        job.run(every_size)


def waits_for_a_late_peer(comm: Communicator) -> float:
    """The processor time that a rank spends in waits, in seconds; all ranks but the first come late."""
    spent = 0.0
    for _ in range(25):
        comm.barrier()
        if comm.rank:
            time.sleep(0.01)
        before = time.thread_time()
        comm.barrier()
        spent += time.thread_time() - before
    return spent


def waits_apart(comm: Communicator) -> float:
    with in_sessions_of_their_own(comm) as group:
        return waits_for_a_late_peer(group)


@pytest.mark.skipif(not is_compiled(), reason="the Python executor only polls")
@pytest.mark.skipif(not AUTOGROUPS.exists() or AUTOGROUPS.read_text().strip() == "0", reason="no autogroups here")
def test_a_rank_learns_to_sleep_where_a_yield_hands_the_core_to_nobody() -> None:
    with Job(2) as job:
        assert job.run(waits_apart)[0] < 0.010  # of processor time; half a millisecond in every wait would be 0.0125


def beside_a_busy_program(comm: Communicator, core: int, pid: int) -> float:
    """The processor time that another program on the core of all ranks gets in a call, in seconds."""
    os.sched_setaffinity(0, {core})
    spent = []
    for _ in range(8):
        before = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
        for _ in range(25):
            comm.barrier()
        spent.append((int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) - before) * 1e-9 / 25)
    return statistics.median(spent)


@pytest.mark.skipif(not is_compiled(), reason="the Python executor only polls")
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count processor time so")
def test_a_rank_stops_yielding_to_other_programs() -> None:
    """A yield hands the core to the other program until the next tick, 1 to 10 ms later; a sleeper gets it back."""
    core = min(os.sched_getaffinity(0))
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.sched_setaffinity(busy.pid, {core})
        with Job(2) as job:
            assert min(job.run(beside_a_busy_program, core, busy.pid)) < 0.0001
    finally:
        busy.kill()
        busy.wait()


def ahead(comm: Communicator, marker: Path) -> float:
    x = np.full(2, 1.0 - comm.rank)
    comm.broadcast(x)
    comm.barrier()
    if comm.rank:
        assert eventually(marker.exists)
    for _ in range(50):
        comm.broadcast(x)
    if comm.rank == 0:
        marker.touch()
    return float(x[0])


@pytest.mark.skipif(not is_compiled(), reason="the Python executor stages everything")
def test_a_root_may_be_many_small_calls_ahead(tmp_path: Path) -> None:
    with Job(3) as job:
        assert job.run(ahead, tmp_path / "done") == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("session", "group"),
    [("/autogroup-85 nice 0\n", "/autogroup-85 0::/\n"), ("", " 0::/\n"), (None, "0::/\n")],
    ids=["in a session", "a session that nobody made", "no autogroups"],
)
def test_the_scheduling_group(tmp_path: Path, session: str | None, group: str) -> None:
    """A container's first process may start ranks without a session; the kernel's file is empty there."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/\n")
    if session is not None:
        (tmp_path / "sys/kernel").mkdir(parents=True)
        (tmp_path / "sys/kernel/sched_autogroup_enabled").write_text("1\n")
        (tmp_path / "self/autogroup").write_text(session)
    assert _scheduling_group(tmp_path) == group


def test_no_wait_goes_by_a_clock_that_can_be_set_back() -> None:
    folder = Path(choreo.run.__file__).parent
    sources = {
        path: re.sub(r"/\*.*?\*/", "", path.read_text()) for kind in ("*.c", "*.h") for path in folder.rglob(kind)
    }
    assert sources
    by_wall_clock = re.compile("CLOCK_REALTIME|timedjoin_np|sem_timedwait|gettimeofday")
    assert not [path.name for path, source in sources.items() if by_wall_clock.search(source)]
