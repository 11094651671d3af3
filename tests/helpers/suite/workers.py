"""Tests in several processes, forked from the one that has collected them: `pytest --workers N`.

Nothing is imported or collected twice, and a result is one small message. Workers take whole files, so that what a file
shares is made once; when no file is left, they take half of what another has left. A test that hangs says where it is,
fails, and the rest goes on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

__all__ = ["Shares", "Workers"]

HANG_S = 600.0


class Shares:
    """Which worker runs which test; tests are numbers in the order they were collected."""

    def __init__(self, parts: Iterable[Iterable[int]]) -> None:
        self.parts = deque(deque(part) for part in parts)
        self.taken: dict[int, deque[int]] = {}

    def next(self, worker: int) -> int | None:
        """The next test of what this worker has, of a part that nobody has, or of the worker with most left.

        >>> shares = Shares([[0, 1, 2, 3], [4]])
        >>> [shares.next(worker) for worker in (0, 1, 1, 0, 1, 0)]
        [0, 4, 2, 1, 3, None]
        """
        mine = self.taken.setdefault(worker, deque())
        if not mine and self.parts:
            mine = self.taken[worker] = self.parts.popleft()
        elif not mine:
            most = max(self.taken.values(), key=len)
            for _ in range((len(most) + 1) // 2):
                mine.appendleft(most.pop())
        return mine.popleft() if mine else None

    def give_back(self, worker: int, test: int) -> None:
        """A test that was not begun."""
        self.taken.setdefault(worker, deque()).appendleft(test)

    def drop(self) -> None:
        """No more tests for anybody."""
        self.parts.clear()
        self.taken.clear()


@dataclass
class Worker:
    """A process with tests to run, as the first process sees it: the one that it runs, and the one after that."""

    number: int
    pid: int
    pipe: Connection
    ended: int  # a descriptor that can be read once the process has ended
    tests: deque[int] = field(default_factory=deque)
    heard_s: float = field(default_factory=time.monotonic)


class Workers:
    """The plugin of `--workers`; of each of `first`, what begins so stays together, and is begun before the rest."""

    def __init__(self, count: int, first: Sequence[tuple[str, ...]]) -> None:
        self.count = count
        self.first = first
        self.shares = Shares(())
        self.workers: dict[int, Worker] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        parts: dict[int | str, list[int]] = {number: [] for number in range(len(self.first))}
        for test, item in enumerate(session.items):
            together = (number for number, names in enumerate(self.first) if item.nodeid.startswith(names))
            parts.setdefault(next(together, item.nodeid.partition("::")[0]), []).append(test)
        self.shares = Shares(filter(None, parts.values()))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or session.config.option.collectonly:
            return None  # pytest says why
        try:
            for number in range(self.count):
                self._start(session, number)
            while self.workers:
                self._listen(session)
        finally:
            for worker in self.workers.values():
                os.kill(worker.pid, signal.SIGKILL)
                os.waitpid(worker.pid, 0)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    def _start(self, session: pytest.Session, number: int) -> None:
        first = self.shares.next(number)
        if first is None:
            return
        near, far = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                near.close()
                for other in self.workers.values():
                    other.pipe.close()
                _serve(session, number, far)
                code = 0
            except KeyboardInterrupt:
                code = 2
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(code)
        far.close()
        worker = self.workers[number] = Worker(number, pid, near, os.pidfd_open(pid))
        self._send(worker, first)
        self._send(worker, self.shares.next(number))

    def _listen(self, session: pytest.Session) -> None:
        """Hear what tests came to, from whoever has something to say."""
        ready = wait([end for one in self.workers.values() for end in (one.pipe, one.ended)], HANG_S / 10)
        for worker in list(self.workers.values()):
            try:
                if worker.pipe in ready:
                    self._hear(session, worker)
                elif worker.ended in ready:  # and all that it had said is heard
                    self._bury(session, worker)
                elif time.monotonic() - worker.heard_s > HANG_S:
                    os.kill(worker.pid, signal.SIGABRT)  # pytest has faulthandler print where its threads are
            except (EOFError, ConnectionError):
                self._bury(session, worker)

    def _hear(self, session: pytest.Session, worker: Worker) -> None:
        told, config = worker.pipe.recv(), session.config
        worker.heard_s = time.monotonic()
        if session.shouldfail or session.shouldstop:
            self.shares.drop()
        if len(worker.tests) > 1:  # or it was told that there are no more
            self._send(worker, self.shares.next(worker.number))
        reports = [config.hook.pytest_report_from_serializable(config=config, data=one) for one in told]
        self._log(session, worker.tests.popleft(), reports)

    def _send(self, worker: Worker, test: int | None) -> None:
        with contextlib.suppress(OSError):  # it is buried soon
            worker.pipe.send(test)
        if test is not None:
            worker.tests.append(test)

    def _bury(self, session: pytest.Session, worker: Worker) -> None:
        """Blame the test that ended it, if one did, and have another worker go on."""
        del self.workers[worker.number]
        worker.pipe.close()
        os.close(worker.ended)
        code = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        if code == 2:
            raise KeyboardInterrupt
        if not worker.tests:
            assert code == 0, f"a worker ended with {code} after its last test"
            return
        blamed, *others = worker.tests
        for test in others:
            self.shares.give_back(worker.number, test)
        item = session.items[blamed]
        how = f"The process that ran this ended with {code if code >= 0 else signal.Signals(-code).name}."
        self._log(session, blamed, [pytest.TestReport(item.nodeid, item.location, {}, "failed", how, "call")])
        self._start(session, worker.number)

    @staticmethod
    def _log(session: pytest.Session, test: int, reports: list[pytest.TestReport]) -> None:
        item, hook = session.items[test], session.config.hook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in reports:
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


class _Telling:
    """Keeps the reports of a test in its worker, for the first process."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.reports: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(self.config.hook.pytest_report_to_serializable(config=self.config, report=report))


def _serve(session: pytest.Session, number: int, pipe: Connection) -> None:
    """A worker's life: run the tests that come through the pipe, each when the one after it is known."""
    plugins, telling = session.config.pluginmanager, _Telling(session.config)
    plugins.unregister(name="terminalreporter")
    plugins.register(telling)
    capture: Any = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()  # into a file that all would share
    capture.start_global_capturing()
    capture.suspend_global_capture()
    folders: Any = session.config._tmp_path_factory  # type: ignore[attr-defined]
    folders._basetemp = folders.getbasetemp() / f"worker-{number}"
    folders._basetemp.mkdir(mode=0o700, exist_ok=True)
    test = pipe.recv()
    while test is not None:
        after = pipe.recv()
        item, following = session.items[test], None if after is None else session.items[after]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        pipe.send(telling.reports)
        telling.reports = []
        test = after
