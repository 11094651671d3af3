"""The launcher as a process of its own, and scripts for it to run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from choreo.run.rendezvous.processes import start_time


@dataclass(frozen=True)
class Launched:
    """How a launcher ended."""

    code: int
    out: str
    err: str
    seconds: float

    def of(self, rank: int) -> list[str]:
        """The lines that a rank has printed."""
        prefix = f"[rank {rank}] "
        return [line.removeprefix(prefix) for line in self.out.split("\n") if line.startswith(prefix)]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "choreo", "run", *map(str, arguments)]


def launched(*arguments: object, stdin: str | None = None, timeout_s: float = 100.0, **variables: str) -> Launched:
    """`choreo run` with these arguments, to its end."""
    began_s = time.monotonic()
    ran = subprocess.run(
        command(*arguments),
        input=stdin if stdin is not None else None,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env=os.environ | variables,
    )
    return Launched(ran.returncode, ran.stdout, ran.stderr, time.monotonic() - began_s)


@contextmanager
def launcher(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """`choreo run` with these arguments, in progress; it is killed in the end, and everything it started."""
    process = subprocess.Popen(
        command(*arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        with process:
            try:
                yield process
            finally:
                process.kill()
    finally:
        process.wait()


def pids_printed(process: subprocess.Popen[str], number: int) -> list[tuple[int, int]]:
    """So many lines `pid N`, each from a process that should be gone later: the numbers and start times."""
    assert process.stdout is not None
    found: list[tuple[int, int]] = []
    while len(found) < number:
        line = process.stdout.readline()
        assert line, "the launcher ended early"
        if " pid " in line:
            pid = int(line.rpartition(" pid ")[2])
            found.append((pid, start_time(pid)))
    return found


def all_gone(processes: list[tuple[int, int]], within_s: float = 60.0) -> bool:
    """Whether these processes have ended, at the latest after so many seconds."""
    deadline_s = time.monotonic() + within_s
    while any(started and start_time(pid) == started for pid, started in processes):
        if time.monotonic() > deadline_s:
            for pid, started in processes:
                with suppress(ProcessLookupError):
                    if start_time(pid) == started:
                        os.kill(pid, signal.SIGKILL)
            return False
        time.sleep(0.01)
    return True
