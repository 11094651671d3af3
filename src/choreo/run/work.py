"""Calls that run while the program does something else.

A communicator runs calls with `async_op=True` on one thread, in the order in which they were made. The caller holds a
`Work` for each.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ["ProgressThread", "Work"]

Result = TypeVar("Result")


class Work(Generic[Result]):
    """A call under way. `wait` and `result` raise its error, if it fails.

    >>> import choreo, numpy as np
    >>> with choreo.init() as comm:
    ...     work = comm.all_reduce(np.ones(2), async_op=True)
    ...     work.result()
    array([1., 1.])
    >>> work
    <Work all_reduce: done>
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._over = threading.Event()
        self._callbacks: deque[Callable[[Work[Result]], object]] = deque()
        self._value: Result | None = None
        self._error: BaseException | None = None
        self._raised = False

    def done(self) -> bool:
        """Whether the call is over, with a result or an error."""
        return self._over.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the call is over. After `timeout` seconds TimeoutError is raised, and the call goes on."""
        if not self._over.wait(timeout):
            raise TimeoutError(f"{self.what} is not done after {timeout} s; it goes on, so wait again")
        if self._error is not None:
            self._raised = True
            raise self._error.with_traceback(None)

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the call, and return its result."""
        self.wait(timeout)
        return self._value  # type: ignore[return-value]  # there is one once it is over

    def add_done_callback(self, callback: Callable[[Work[Result]], object]) -> None:
        """Call this with the work when it is over: on the thread that ends it, or at once if it is over already."""
        self._callbacks.append(callback)
        if self.done():
            self._call_back()

    def end(self, value: Result | None = None, error: BaseException | None = None) -> None:
        """The call is over, with a result or an error."""
        self._value, self._error = value, error
        self._over.set()
        self._call_back()

    def _call_back(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.popleft()
            except IndexError:  # another thread has taken it
                return
            callback(self)

    def __repr__(self) -> str:
        state = "under way" if not self.done() else "failed" if self._error is not None else "done"
        return f"<Work {self.what}: {state}>"

    def __del__(self) -> None:
        if getattr(self, "_error", None) is not None and not self._raised and sys.stderr is not None:
            print(f"choreo: {self.what} failed, and nothing waited for it: {self._error}", file=sys.stderr)


class ProgressThread:
    """A thread that runs calls in order. `busy` is called when work begins, `idle` when none is left."""

    def __init__(self, busy: Callable[[], None], idle: Callable[[], None]) -> None:
        self._busy, self._idle = busy, idle
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Callable[[], Any], Work[Any]]] = deque()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._running: Work[Any] | None = None

    @property
    def pending(self) -> bool:
        """Whether calls wait or run."""
        return self._running is not None or bool(self._waiting)

    def submit(self, call: Callable[[], Result], what: str) -> Work[Result]:
        """Run a call after all that were submitted before it."""
        work: Work[Result] = Work(what)
        with self._changed:
            self._busy()
            self._waiting.append((call, work))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="choreo-progress", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        if self._thread is threading.current_thread():  # a callback made this call, and may wait for it
            while self._waiting:
                self._run_next()
        return work

    def drain(self, timeout: float | None) -> bool:
        """Wait until no call is pending; False if `timeout` seconds were not enough."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.pending, timeout)

    def stop(self) -> None:
        """Take no more calls, and end the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(1.0)
        self._busy = self._idle = lambda: None  # breaks the reference cycle with the engine

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopped)
                if not self._waiting:
                    return
            self._run_next()

    def _run_next(self) -> None:
        with self._changed:
            call, work = self._waiting.popleft()
            self._running = work
        value, error = None, None
        try:
            value = call()
        except BaseException as caught:  # `Work.wait` raises it
            error = caught
        with self._changed:
            self._running = None
            if not self._waiting:
                self._idle()
            self._changed.notify_all()
        work.end(value, error)
