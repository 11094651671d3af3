"""One rank as the launcher sees it: a process, everything it starts, and what they print."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from choreo.errors import UsageError
from choreo.run.launch.relay import Lines

__all__ = ["RankProcess", "adopt_orphans"]

PIPE_BYTES = 256 * 1024
_HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class RankProcess:
    """A process in a group and session of its own, which ends with the process that started it."""

    def __init__(
        self,
        rank: int,
        command: Sequence[str],
        variables: Mapping[str, str],
        *,
        out: Lines,
        err: Lines,
        inherits_stdin: bool,
    ) -> None:
        self.rank = rank
        try:
            self._process = subprocess.Popen(
                command,
                env=variables,
                stdin=None if inherits_stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                preexec_fn=_prepare(os.getpid()),  # noqa: PLW1509 - a launcher has no threads before its ranks run
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise UsageError(f"rank {rank} cannot be started: {error}") from None
        assert self._process.stdout is not None and self._process.stderr is not None
        self.streams = {self._process.stdout.fileno(): out, self._process.stderr.fileno(): err}
        for stream in self.streams:
            os.set_blocking(stream, False)
            with suppress(OSError, AttributeError):
                fcntl.fcntl(stream, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._group_left = True
        self.watch: int | None = None  # a descriptor that can be read when the process has ended
        with suppress(OSError, AttributeError):
            self.watch = os.pidfd_open(self.pid)

    @property
    def pid(self) -> int:
        """The number of the process and of its group."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code, or minus the signal that killed it; nothing while it runs."""
        return self._process.returncode

    @property
    def left(self) -> bool:
        """Whether the process or anything that it started in its group still runs."""
        return self._process.returncode is None or self._group_left

    def look(self) -> bool:
        """Whether the process has ended since the last look; reaps it, and what it leaves behind."""
        running = self._process.returncode is None
        ended = running and self._process.poll() is not None
        if ended and self.watch is not None:
            os.close(self.watch)
            self.watch = None
        if self._process.returncode is not None and self._group_left:
            with suppress(ChildProcessError):
                while os.waitpid(-self.pid, os.WNOHANG)[0]:
                    pass
            # The number stays reserved for as long as anything is in the group.
            self._group_left = self.tell(0)
        return ended

    def tell(self, number: int) -> bool:
        """Send a signal to the process and everything in its group; whether there was anything."""
        if not self.left:
            return False
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:  # it runs as somebody else now
            return True
        return True

    def read(self, stream: int) -> bool:
        """Pass on what the process has printed; whether there may be more."""
        try:
            data = os.read(stream, PIPE_BYTES)
        except BlockingIOError:
            return True
        if data:
            self.streams[stream].feed(data)
        return bool(data)

    def close(self) -> None:
        """Pass on what is left in the pipes, and close them."""
        for stream, lines in self.streams.items():
            with suppress(BlockingIOError):
                while data := os.read(stream, PIPE_BYTES):
                    lines.feed(data)
            lines.flush()
        assert self._process.stdout is not None and self._process.stderr is not None
        self._process.stdout.close()
        self._process.stderr.close()
        if self.watch is not None:
            os.close(self.watch)

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid})"

    def how_it_ended(self) -> str:
        """As the end of a sentence."""
        assert self.code is not None
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        try:
            return f"was killed by {signal.Signals(-self.code).name} ({-self.code})"
        except ValueError:
            return f"was killed by signal {-self.code}"


def adopt_orphans(yes: bool) -> None:
    """Whether processes that ranks started and left become children of this one, which can then reap them."""
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, int(yes))


def _prepare(launcher: int) -> Callable[[], None]:
    """What a rank does before its program: hear signals again that the launcher ignores, and end with the launcher.

    `nohup` and shells that run a job in the background ignore signals, and every process below inherits that.
    """
    linux, default, terminate = sys.platform == "linux", signal.SIG_DFL, signal.SIGTERM
    prctl, getppid, kill, getpid, handle = _prctl, os.getppid, os.kill, os.getpid, signal.signal
    ignored = [number for number in _HEARD if signal.getsignal(number) is signal.SIG_IGN]

    def prepare() -> None:
        for number in ignored:
            handle(number, default)
        if linux:
            prctl(_PR_SET_PDEATHSIG, terminate)
            if getppid() != launcher:  # it has ended already
                kill(getpid(), terminate)

    return prepare


def _prctl(option: int, value: int) -> None:
    _LIBC.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


_LIBC = ctypes.CDLL(None)
