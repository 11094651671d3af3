"""Calls that run while the program does something else.

A communicator queues calls with `async_op=True`, and a thread runs them in the order in which they were made. The
caller holds a `Work` for each.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from choreo.units import time_of

if TYPE_CHECKING:
    from choreo.run.execute.twin import QueuedCall

__all__ = ["LONGEST_S", "QueuedWork", "Work", "seconds_to_wait"]

Result = TypeVar("Result")

LONGEST_S = 1e9  # thirty years: the system's calls take no more


def seconds_to_wait(timeout: float | str | None) -> float | None:
    """The timeout of a wait in seconds; None is no limit."""
    return None if timeout is None else min(time_of(timeout, "timeout"), LONGEST_S)


class Work(Generic[Result]):
    """A call in progress. `wait` and `result` raise its error, if it fails.

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

    def wait(self, timeout: float | str | None = None) -> None:
        """Wait until the call is over. After `timeout` seconds TimeoutError is raised, and the call goes on."""
        seconds = seconds_to_wait(timeout)
        if not self._over.wait(seconds):
            raise TimeoutError(f"{self.what} is not done after {seconds} s; it goes on, so wait again")
        if self._error is not None:
            self._raised = True
            raise self._error.with_traceback(None)

    def result(self, timeout: float | str | None = None) -> Result:
        """Wait for the call, and return its result."""
        self.wait(timeout)
        return self._value  # type: ignore[return-value]  # there is one once it is over

    def add_done_callback(self, callback: Callable[[Work[Result]], object]) -> None:
        """Call this with the work when it is done: on the thread that ends it, or at once if it is done already."""
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
        state = "in progress" if not self.done() else "failed" if self._error is not None else "done"
        return f"<Work {self.what}: {state}>"

    def __del__(self) -> None:
        if getattr(self, "_error", None) is not None and not self._raised and sys.stderr is not None:
            why = str(self._error).removeprefix(f"{self.what}: ")
            sys.stderr.write(f"choreo: {self.what} failed, and nothing waited for it: {why}\n")  # at once


class QueuedWork(Work[Result]):
    """A call in the progress queue. A thread that waits for it without a timeout runs it, if no other has begun to."""

    def __init__(self, what: str, call: QueuedCall) -> None:
        self.what = what  # nothing else of `Work`: the queue holds the result and the callbacks
        self._call = call
        self._raised = False

    def done(self) -> bool:
        """Whether the call is over, with a result or an error."""
        return self._call.done()

    def wait(self, timeout: float | str | None = None) -> None:
        """Wait until the call is over. After `timeout` seconds TimeoutError is raised, and the call goes on."""
        seconds = seconds_to_wait(timeout)
        try:
            over = self._call.wait(seconds)
        except BaseException:  # such as Ctrl-C, which may have ended this call
            self._raised = True
            raise
        if not over:
            raise TimeoutError(f"{self.what} is not done after {seconds} s; it goes on, so wait again")
        error = self._call.error
        if error is not None:
            self._raised = True
            raise error.with_traceback(None)

    def result(self, timeout: float | str | None = None) -> Result:
        """Wait for the call, and return its result."""
        self.wait(timeout)
        return self._call.value  # type: ignore[no-any-return]

    def add_done_callback(self, callback: Callable[[Work[Result]], object]) -> None:
        """Call this with the work when it is done: on the thread that runs it, or at once if it is done already.

        The callback may make calls itself: they run after those that were made before.
        """
        self._call.add_done_callback(lambda: callback(self))

    def __repr__(self) -> str:
        self._error = self._call.error
        return super().__repr__()

    def __del__(self) -> None:
        call = getattr(self, "_call", None)  # None: it was never made
        if call is not None:
            self._error = call.error
            super().__del__()
