"""Shared memory: what a crash leaves is removed by the next start, and where there is none left that is an error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import pytest

from choreo.errors import UsageError
from choreo.run.execute.segment import SHARED, UNSEEN_S, Segment, owned_name, remove_stale
from choreo.run.rendezvous.hosts import pid_namespace
from choreo.run.rendezvous.processes import start_time
from tests.helpers.ranks.faults import segments


def test_segments_of_a_crash_are_removed_by_the_next_start_and_those_of_the_living_are_not() -> None:
    here, started = pid_namespace(), start_time(os.getpid())
    gone = SHARED / f"choreo-crashed-0-{here}-{2**22 + 1}-12345"
    reused = SHARED / f"choreo-crashed-1-{here}-{os.getpid()}-1"  # the number of a process that began at another time
    mine = SHARED / owned_name("choreo-living-2")
    assert mine.name == f"choreo-living-2-{here}-{os.getpid()}-{started}"
    # Of a container that shares the memory but not the numbers of processes.
    elsewhere = SHARED / f"choreo-elsewhere-3-{here + 1}-{2**22 + 1}-12345"
    long_gone = SHARED / f"choreo-elsewhere-4-{here + 1}-{2**22 + 1}-12345"
    for path in (gone, reused, mine, elsewhere, long_gone):
        path.touch()
    then_s = time.time() - UNSEEN_S - 10
    os.utime(long_gone, (then_s, then_s))
    try:
        remove_stale()  # or another start, of another test
        assert {mine.name, elsewhere.name} <= segments()
        assert not {gone.name, reused.name, long_gone.name} & segments()
    finally:
        mine.unlink()
        elsewhere.unlink()


def test_a_process_that_is_killed_leaves_its_segment_to_the_next_start() -> None:
    code = (
        "import os, signal; from choreo.run.execute.segment import Segment; s = Segment('choreo-killed-0', 1, 4096);"
        "print(s.path.name, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    name = ran.stdout.strip()
    assert name.startswith("choreo-killed-0-")
    remove_stale()
    assert name not in segments()


def test_what_is_given_back_is_used_again() -> None:
    segment = Segment("choreo-again-0", 1, 4096)
    try:
        first = segment.take(1 << 20)
        used = os.stat(segment.path).st_blocks  # noqa: PTH116
        segment.give_back(first, 1 << 20)
        assert os.stat(segment.path).st_blocks < used  # noqa: PTH116
        assert segment.take(1 << 20) == first
        with pytest.raises(UsageError, match="no room for"):
            segment.take(1 << 50)
    finally:
        segment.close()
        segment.close()
    assert segment.path.name not in segments()


def test_closing_gives_everything_back_at_once() -> None:
    code = (
        "import choreo, gc, os; gc.disable(); before = len(os.listdir('/proc/self/fd'))\n"
        "for _ in range(3):\n    comm = choreo.init(); comm.barrier(); comm.barrier(); comm.close()\n"
        "del comm; print(len(os.listdir('/proc/self/fd')) - before)\n"
        "with open('/proc/self/maps') as maps: print(maps.read().count('/dev/shm/choreo'))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["0", "0"], ran


def in_little_memory(size: str, code: str, *, limits: str = "") -> subprocess.CompletedProcess[str]:
    """A Python program for which /dev/shm is no larger than this."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root can make a small /dev/shm")
    mount = f"mount -t tmpfs -o size={size} tmpfs {SHARED}"
    if subprocess.run(["unshare", "--mount", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("this system does not let one mount a small /dev/shm")
    command = f'{mount} && {limits} exec {sys.executable} -c "$CODE"'
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"CODE": code},
    )


LITTLE = """
import choreo, numpy as np, os
from pathlib import Path
try:
    comm = choreo.init()
except choreo.UsageError as error:
    print("init:", error)
else:
    kept = []
    try:
        while True:
            kept.append(comm.empty(1 << 18, np.float32))
            kept[-1][:] = 1
    except choreo.UsageError as error:
        print("empty:", error)
    # Full, and goes on.
    Path("/dev/shm/rest").write_bytes(b"")
    try:
        with open("/dev/shm/rest", "ab", 0) as rest:
            while True:
                rest.write(bytes(1 << 12))
    except OSError:
        pass
    assert (comm.all_reduce(np.ones(500_000)) == 1).all() and (comm.all_reduce(np.ones(3)) == 1).all()
    kept.clear()
    os.unlink("/dev/shm/rest")
    comm.empty(1 << 18, np.float32)[:] = 1
    print("goes on")
"""


@pytest.mark.parametrize(("size", "told"), [("4m", "init: "), ("16m", "empty: ")])
def test_where_there_is_no_memory_left_that_is_a_sentence_and_no_signal(size: str, told: str) -> None:
    ran = in_little_memory(size, LITTLE)
    assert ran.returncode == 0, ran
    first, *rest = ran.stdout.splitlines()
    assert first.startswith(f"{told}there is no room for ") and f"MiB are left in {SHARED}; remove" in first
    assert rest == (["goes on"] if told == "empty: " else []), ran


def test_a_limit_on_addresses_is_reported() -> None:
    command = f"ulimit -v 8000000; exec {sys.executable} -c 'import choreo; choreo.init()'"
    ran = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].endswith("a limit (ulimit -v, ulimit -f) forbids it"), ran.stderr
