"""One rank of a launcher: a process, everything that it starts, and their output."""

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
from choreo.run.transport.shortage import SHORT, why

__all__ = ["PIPE_BYTES", "RankProcess", "adopt_orphans", "end_with_parent", "how_it_ended"]

PIPE_BYTES = 256 * 1024
_NOT_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class RankProcess:
    """A process in its own group, which ends when the launcher does.

    At a terminal it is in its own session too: a background group that uses the terminal would be stopped. Otherwise
    all ranks stay in the launcher's session: Linux may share cores between sessions, and ranks of one session hand a
    core to each other more cheaply.
    """

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
        at_terminal = os.isatty(0)
        try:
            self._process = subprocess.Popen(
                command,
                env=variables,
                stdin=None if inherits_stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=at_terminal,
                process_group=None if at_terminal else 0,
                preexec_fn=end_with_parent(os.getpid()),  # noqa: PLW1509 - a launcher has no threads before its ranks run
            )
        except (OSError, subprocess.SubprocessError) as error:
            reason = why(error) if isinstance(error, OSError) and error.errno in SHORT else error
            raise UsageError(f"rank {rank} cannot be started: {reason}") from None
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
        """The pid, which is also the process group."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code, or minus the signal that killed it; None while it runs."""
        return self._process.returncode

    @property
    def left(self) -> bool:
        """Whether the process, or any in its group, still runs."""
        return self._process.returncode is None or self._group_left

    def look(self) -> bool:
        """Whether the process has ended since the last call. Reaps it, and orphans of its group."""
        running = self._process.returncode is None
        ended = running and self._process.poll() is not None
        if ended and self.watch is not None:
            os.close(self.watch)
            self.watch = None
        if self._process.returncode is not None and self._group_left:
            with suppress(ChildProcessError):
                while os.waitpid(-self.pid, os.WNOHANG)[0]:
                    pass
            # The number of a group is not reused while a process is in it.
            self._group_left = self.send_signal(0)
        return ended

    def send_signal(self, number: int) -> bool:
        """Send a signal to the process group; False if no process is left in it."""
        if not self.left:
            return False
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:  # it has changed its user
            return True
        return True

    def read(self, stream: int) -> bool:
        """Relay what the process has printed; False at the end of the stream."""
        try:
            data = os.read(stream, PIPE_BYTES)
        except BlockingIOError:
            return True
        if data:
            self.streams[stream].feed(data)
        return bool(data)

    def close(self) -> None:
        """Relay what is left in the pipes, and close them."""
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
        """The end of the process in words, as the end of a sentence."""
        assert self.code is not None
        return how_it_ended(self.code)


def how_it_ended(code: int) -> str:
    """An exit code, or minus the signal that killed a process, as the end of a sentence.

    >>> how_it_ended(3), how_it_ended(-9), how_it_ended(-40)
    ('ended with exit code 3', 'was killed by SIGKILL (9)', 'was killed by signal 40')
    """
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name} ({-code})"
    except ValueError:  # a real-time signal
        return f"was killed by signal {-code}"


def adopt_orphans(yes: bool) -> None:
    """Whether orphans of the ranks become children of this process, so that it can reap them."""
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, int(yes))


def end_with_parent(parent: int) -> Callable[[], None]:
    """A function that a rank calls before its program: it resets ignored signals, and ties the rank to its parent.

    `nohup`, and shells that run a job in the background, ignore signals, and child processes inherit that.
    """
    linux, default, terminate = sys.platform == "linux", signal.SIG_DFL, signal.SIGTERM
    prctl, getppid, kill, getpid, handle = _prctl, os.getppid, os.kill, os.getpid, signal.signal
    ignored = [number for number in _NOT_IGNORED if signal.getsignal(number) is signal.SIG_IGN]

    def prepare() -> None:
        for number in ignored:
            handle(number, default)
        if linux:
            prctl(_PR_SET_PDEATHSIG, terminate)
            if getppid() != parent:  # the parent has ended already
                kill(getpid(), terminate)

    return prepare


def _prctl(option: int, value: int) -> None:
    _LIBC.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


_LIBC = ctypes.CDLL(None)
