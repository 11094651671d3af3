"""A job in progress: the ranks that the launcher has started, until the last has ended."""

from __future__ import annotations

import errno
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from choreo.run.launch.rank_process import RankProcess, adopt_orphans
from choreo.run.launch.relay import Output
from choreo.units import counted

__all__ = ["RunningJob", "Start"]

UNKILLABLE_S = 5.0
_SLOW_S, _QUICK_S = 0.5, 0.02
_MISTAKE = 2  # the exit code of a usage error, which would fail again
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Start: TypeAlias = Callable[[bool], RankProcess]  # starts a rank, or starts it again in a job that runs


class RunningJob:
    """Starts ranks, relays their output, and stops all of them when one fails or when a signal comes."""

    def __init__(
        self, out: Output, err: Output, grace_s: float, keep_going: bool, restarts: int = 0, *, elsewhere: bool = False
    ) -> None:
        self._outputs = list(dict.fromkeys((out, err)))
        self._err = err
        self._grace_s = grace_s
        self._keep_going = keep_going
        self._restarts = restarts  # that are left
        self._elsewhere = elsewhere  # whether the job has ranks on other hosts, which may admit a restarted one
        self._restarted: list[RankProcess] = []
        self._over_at_s: float | None = None  # when restarted ranks are too late
        self._ranks: list[RankProcess] = []
        self._selector = selectors.DefaultSelector()
        self._paused: list[tuple[RankProcess, int]] = []
        self._signals: list[int] = []
        self._code: int | None = None  # once it is known
        self._summary = ""
        self._kill_at_s: float | None = None
        self._kill_why = f"after {grace_s:g} s"
        self._killed: list[RankProcess] = []
        self._failed: list[RankProcess] = []  # the first comes first
        self._starts: dict[RankProcess, Start] = {}

    def run(self, starts: Sequence[Start]) -> int:
        """Start the ranks and wait for them; the exit code of the first that failed, or 0."""
        with self._collecting_signals(), _guarded(self._grace_s) as self._watch_group:
            adopt_orphans(True)
            try:
                for start in starts:
                    self._begin(start(False), start)
                while any(rank.left for rank in self._ranks):
                    self._poll()
                    if self._kill_at_s is not None and time.monotonic() > self._kill_at_s + UNKILLABLE_S:
                        break
            finally:
                self._kill_all()
                adopt_orphans(False)
            self._finish()
        return self._code or 0

    def _begin(self, rank: RankProcess, start: Start) -> None:
        self._ranks.append(rank)
        self._starts[rank] = start
        self._watch_group(rank.pid)
        self._watch(rank)

    # Events

    def _poll(self) -> None:
        ended = []
        for key, _ in self._selector.select(self._wait_s()):
            rank: RankProcess | None = key.data
            if rank is None:
                os.read(key.fd, 4096)
            elif key.fd == rank.watch:
                ended.append(rank)
            elif rank.streams[key.fd].output.full:
                self._selector.unregister(key.fd)
                self._paused.append((rank, key.fd))
            elif not rank.read(key.fd):
                self._selector.unregister(key.fd)
        self._resume()
        self._look([*ended, *(rank for rank in self._ranks if rank.left and rank.watch is None)])
        self._stop_latecomers()
        self._handle_signals()
        self._check_outputs()
        if self._kill_at_s is not None and time.monotonic() >= self._kill_at_s and not self._killed:
            self._killed = [rank for rank in self._ranks if rank.send_signal(signal.SIGKILL)]

    def _wait_s(self) -> float:
        if self._paused or any(rank.left and rank.watch is None for rank in self._ranks):
            return _QUICK_S
        if self._kill_at_s is not None:
            return min(_SLOW_S, max(_QUICK_S, self._kill_at_s - time.monotonic()))
        return _SLOW_S

    def _watch(self, rank: RankProcess) -> None:
        for descriptor in (*rank.streams, *([] if rank.watch is None else [rank.watch])):
            self._selector.register(descriptor, selectors.EVENT_READ, rank)

    def _resume(self) -> None:
        """Read again from ranks that had to wait, if there is room now."""
        waiting, self._paused = self._paused, []
        for rank, stream in waiting:
            if rank.streams[stream].output.full:
                self._paused.append((rank, stream))
            else:
                self._selector.register(stream, selectors.EVENT_READ, rank)

    def _look(self, ranks: list[RankProcess]) -> None:
        """Find out which of these have ended."""
        failed = []
        for rank in ranks:
            if rank.watch is not None:
                self._selector.unregister(rank.watch)
            if rank.look() and rank.code != 0:
                failed.append(rank)
        # If several end at once, one that was killed is more likely the cause than the consequence.
        failed.sort(key=lambda rank: (rank.code or 0) >= 0)
        self._failed += failed
        if self._keep_going:
            self._go_on(failed)
        elif failed and self._kill_at_s is None:
            first = failed[0]
            others = sum(rank.code is None for rank in self._ranks)
            self._decide(_exit_code(first), f"{first} {first.how_it_ended()}")
            self._stop(signal.SIGTERM)
            if others:
                self._summary += (
                    f"; {'the other rank was' if others == 1 else f'the other {others} ranks were'} stopped"
                )
        if self._kill_at_s is None and all(rank.code is not None for rank in self._ranks):
            self._stop(signal.SIGTERM)  # processes that they have left behind

    def _go_on(self, failed: list[RankProcess]) -> None:
        for rank in failed if self._kill_at_s is None else ():
            others = self._elsewhere or any(rank.code is None for rank in self._ranks)
            again = self._restarts > 0 and others and rank.code != _MISTAKE
            self._say(f"{rank} {rank.how_it_ended()}; {'it is started again' if again else 'the others go on'}")
            if again:
                self._restarts -= 1
                started = self._starts[rank](True)
                self._restarted.append(started)
                self._begin(started, self._starts[rank])
        if len(self._failed) == len(self._ranks):
            self._decide(_exit_code(self._failed[0]), "")

    def _stop_latecomers(self) -> None:
        """Stop restarted ranks that were not admitted soon after the job has succeeded."""
        running = [rank for rank in self._ranks if rank.code is None]
        if not running or not set(running) <= set(self._restarted) or not any(rank.code == 0 for rank in self._ranks):
            self._over_at_s = None
        elif self._over_at_s is None:
            self._over_at_s = time.monotonic() + self._grace_s
        elif time.monotonic() >= self._over_at_s and self._kill_at_s is None:
            self._decide(0, "")
            self._stop(signal.SIGTERM)

    def _handle_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            name = signal.Signals(number).name
            running = sum(rank.code is None for rank in self._ranks)
            if self._kill_at_s is None:
                self._decide(128 + number, f"{name} was passed on to {counted(running, 'rank')}, and all have ended")
                self._stop(number)
            else:
                self._kill_at_s, self._kill_why = time.monotonic(), f"at a second {name}"  # no more grace

    def _check_outputs(self) -> None:
        for output in self._outputs:
            if output.failure is not None and self._kill_at_s is None:
                gone = output.failure.errno == errno.EPIPE
                reason = "nobody reads it" if gone else output.failure.strerror
                code = 128 + signal.SIGPIPE if gone else 1
                self._decide(code, f"the output cannot be written: {reason}; the ranks were stopped")
                self._stop(signal.SIGTERM)

    # Actions

    def _decide(self, code: int, summary: str) -> None:
        if self._code is None:
            self._code, self._summary = code, summary

    def _stop(self, number: int) -> None:
        for rank in self._ranks:
            rank.send_signal(number)
            rank.send_signal(signal.SIGCONT)
        self._kill_at_s = time.monotonic() + self._grace_s

    def _kill_all(self) -> None:
        """Kill what is left, whatever has happened."""
        deadline_s = time.monotonic() + 1.0
        while sum(rank.send_signal(signal.SIGKILL) for rank in self._ranks) and time.monotonic() < deadline_s:
            time.sleep(_QUICK_S)
            for rank in self._ranks:
                rank.look()

    def _say(self, summary: str) -> None:
        self._err.put(f"choreo: {summary}\n".encode())

    def _finish(self) -> None:
        """Relay the last output of all ranks, and print the summary."""
        for rank in self._ranks:
            rank.close()
        stuck = [rank for rank in self._ranks if rank.left]
        if stuck:
            self._summary += f"; {', '.join(map(str, stuck))} cannot be killed"
        elif self._killed and self._summary:
            named = ", ".join(f"rank {rank.rank}" for rank in self._killed)
            self._summary += f", {named} by SIGKILL {self._kill_why}"
        if self._summary:
            self._say(self._summary)
        # A stopped terminal may be continued; a signal ends the wait.
        while not self._signals and sum(not output.finish(_QUICK_S) for output in self._outputs):
            pass
        self._selector.close()

    @contextmanager
    def _collecting_signals(self) -> Iterator[None]:
        """Collect signals in a list, and let them wake the loop."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        self._selector.register(reader, selectors.EVENT_READ)
        before = {
            # An ignored signal stays ignored: that is what nohup is for.
            number: signal.signal(number, lambda number, _: self._signals.append(number))
            for number in _PASSED_ON
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        # If SIGCHLD is ignored, the system keeps no exit codes.
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        wake = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wake)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(reader)
            os.close(writer)


@contextmanager
def _guarded(grace_s: float) -> Iterator[Callable[[int], None]]:
    """Run a guard, which stops the process groups that it is given if this process is killed."""
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")), repr(grace_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        cwd="/",
        start_new_session=True,
    )
    assert guard.stdin is not None
    pipe = guard.stdin.fileno()

    def watch_group(pid: int) -> None:
        with suppress(OSError):
            os.write(pipe, f"{pid}\n".encode())

    try:
        yield watch_group
        with suppress(OSError):
            os.write(pipe, b"done\n")
    finally:
        guard.stdin.close()
        guard.wait()


def _exit_code(rank: RankProcess) -> int:
    assert rank.code is not None
    return rank.code if rank.code >= 0 else 128 - rank.code
