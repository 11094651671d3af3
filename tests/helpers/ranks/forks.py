"""Ranks of the launcher, forked from this process in place of new interpreters.

A new interpreter imports Choreo in 0.3 s and torch in 3 s; a fork has them already. Only tests that are not about how a
rank's interpreter is started use this.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import runpy
import select
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from choreo.bench import processes
from choreo.cli import _run
from choreo.run.launch import rank_process
from choreo.trace.recording import command as record
from choreo.trace.recording.profile import record_step
from tests.helpers.command import Ran
from tests.helpers.ranks.prices import price_algorithms

__all__ = ["Fork", "fork_choreo", "forked_choreo", "forked_function", "forked_python", "forked_ranks", "import_torch"]


IMPORTED = (
    "torch._dynamo",
    "torch.distributed.algorithms.ddp_comm_hooks.default_hooks",
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor",
    "choreo.torch_backend.process_group",
    "choreo.train.checkpoint.checkpoint",
    "choreo.train.elastic.loop",
    "choreo.train.elastic.state",
    "choreo.train.rank.loop",
)


def import_torch() -> None:
    """Import torch, and what a training rank imports of it, once for all forks of this process."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch = pytest.importorskip("torch")
        for name in IMPORTED:
            importlib.import_module(name)
    torch.set_num_threads(1)  # a process whose threads have run cannot be forked


@contextlib.contextmanager
def forked_ranks() -> Iterator[None]:
    """Fork the ranks that launchers and benchmarks start in here."""
    price_algorithms()
    forking = SimpleNamespace(**vars(subprocess) | {"Popen": _popen})
    recording = SimpleNamespace(**vars(subprocess) | {"run": _run_recorded})
    with (
        mock.patch.object(rank_process, "subprocess", forking),
        mock.patch.object(processes, "subprocess", forking),
        mock.patch.object(record, "subprocess", recording),
    ):
        yield


def _popen(command: Sequence[str], **options: Any) -> Any:
    """A fork where it is a Python program that is started."""
    python = command[0] == sys.executable and command[1] != "-c"
    return Fork(command, **options) if python else subprocess.Popen(command, **options)


def _run_recorded(command: Sequence[str], *, env: Mapping[str, str], **options: Any) -> Any:
    """What `choreo trace record` runs: a fork, whose steps are counted from now on, if it is a Python program."""
    if command[0] != "python" or "torch" not in sys.modules:
        return subprocess.run(command, env=env, check=False, **options)

    def program() -> int:
        record_step(Path(env[record.FOLDER]), int(env[record.STEP]))
        return _run_command(command, env)

    process = Fork(program)
    told = _read_all(process.stdout.fileno(), process.stderr.fileno())
    code = process.wait()
    process.close()
    return subprocess.CompletedProcess(command, code, *told)


def forked_choreo(*arguments: str) -> Ran:
    """How `choreo` with these arguments ends, in a fork of this process with forked ranks."""
    return _ended(fork_choreo(*arguments))


def forked_python(*words: str, **variables: str) -> Ran:
    """How a script, or `-m` and a module, ends in a fork of this process; `variables` of the environment are added."""
    return _ended(Fork([sys.executable, *words], env=os.environ | variables))


def forked_function(function: Callable[[], int]) -> Ran:
    """How a function ends in a fork of this process; what it returns is the exit code."""
    return _ended(Fork(function))


def _ended(process: Fork) -> Ran:
    told = _read_all(process.stdout.fileno(), process.stderr.fileno())
    code = process.wait()
    process.close()
    return Ran(code, *told)


def fork_choreo(*arguments: str) -> Fork:
    """`choreo` with these arguments in a fork of this process, which runs on by itself and forks its ranks."""

    def command() -> int:
        with forked_ranks():
            return _run(list(arguments))

    return Fork(command)


class Fork:
    """A fork of this process that runs a Python command or a function, as a `subprocess.Popen` would."""

    def __init__(
        self,
        command: Sequence[str] | Callable[[], int],
        *,
        env: Mapping[str, str] | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: Any = subprocess.PIPE,
        stderr: Any = subprocess.PIPE,
        process_group: int | None = None,
        preexec_fn: Callable[[], None] = lambda: None,
        **_: Any,
    ) -> None:
        pipes = [os.pipe() if one == subprocess.PIPE else None for one in (stdout, stderr)]
        ends = [pipe[1] if pipe else one.fileno() for pipe, one in zip(pipes, (stdout, stderr), strict=True)]
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                if process_group is None:
                    os.setsid()
                else:
                    os.setpgid(0, process_group)
                if stdin == subprocess.DEVNULL:
                    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                for at, end in enumerate(ends, 1):
                    os.dup2(end, at)
                preexec_fn()
                code = _run_command(command, env)
            finally:
                os._exit(code)
        self.streams = [os.fdopen(pipe[0], "rb", buffering=0) for pipe in pipes if pipe]
        for pipe in filter(None, pipes):
            os.close(pipe[1])

    @property
    def stdout(self) -> Any:
        """What it prints."""
        return self.streams[0]

    @property
    def stderr(self) -> Any:
        """What it prints beside."""
        return self.streams[1]

    def poll(self) -> int | None:
        """The exit code, or minus the signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = math.inf) -> int:
        """The exit code, or minus the signal, once it has ended."""
        end_s = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end_s:
                raise subprocess.TimeoutExpired("a fork", timeout)
            time.sleep(0.001)
        return code

    def close(self) -> None:
        """Close its output."""
        for one in self.streams:
            one.close()


def _run_command(command: Sequence[str] | Callable[[], int], env: Mapping[str, str] | None) -> int:
    """Run it in this fork, as an interpreter of its own would; the exit code."""
    # Those of this process are left alone: a test may have put its own there.
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(at, mode, encoding="utf-8", buffering=1, closefd=False) for at, mode in enumerate("rww")
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    warnings.resetwarnings()
    warnings.simplefilter("ignore", DeprecationWarning)
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
    try:
        if callable(command):
            return command()
        _, *words = command
        module = words[0] == "-m"
        sys.argv = words[1:] if module else words
        if module:
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))  # noqa: PTH100, PTH120 - as Python does
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _read_all(*streams: int) -> list[str]:
    """What comes through pipes until all are closed."""
    found = dict.fromkeys(streams, b"")
    left = list(streams)
    while left:
        for one in select.select(left, [], [])[0]:
            data = os.read(one, 1 << 16)
            found[one] += data
            if not data:
                left.remove(one)
    return [text.decode() for text in found.values()]
