"""Calls that go on while the program does something else.

Collectives with `async_op=True` run one after another on a thread of the communicator, in the order in which they were
asked for; whoever asked holds a `Work`.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ["Progress", "Work"]

Result = TypeVar("Result")


class Work(Generic[Result]):
    """A call under way. What goes wrong with it is raised by `wait` and `result`."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._over = threading.Event()
        self._value: Result | None = None
        self._error: BaseException | None = None
        self._told = False

    def done(self) -> bool:
        """Whether it is over, well or not."""
        return self._over.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it is over; TimeoutError if it is not after so many seconds, and then it still goes on."""
        if not self._over.wait(timeout):
            raise TimeoutError(f"{self.what} is not over after {timeout} s; it goes on, so wait again")
        if self._error is not None:
            self._told = True
            raise self._error.with_traceback(None)

    def result(self, timeout: float | None = None) -> Result:
        """What the call would have returned; waits for it."""
        self.wait(timeout)
        return self._value  # type: ignore[return-value]  # there is one once it is over

    @property
    def untold(self) -> BaseException | None:
        """What went wrong, if nobody has heard of it yet."""
        return None if self._told else self._error

    def end(self, value: Result | None = None, error: BaseException | None = None) -> None:
        """It is over: with a result, or with an error."""
        self._value, self._error = value, error
        self._over.set()

    def __repr__(self) -> str:
        state = "under way" if not self.done() else "failed" if self._error is not None else "done"
        return f"<Work {self.what}: {state}>"

    def __del__(self) -> None:
        if getattr(self, "_error", None) is not None and not self._told and sys.stderr is not None:
            print(f"choreo: nobody waited for {self.what}, which failed: {self._error}", file=sys.stderr)


class Progress:
    """One thread that runs calls in order. `busy` and `idle` are called when there begins and ceases to be work."""

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
        """Run a call after all that were asked for before it."""
        work: Work[Result] = Work(what)
        with self._changed:
            self._busy()
            self._waiting.append((call, work))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="choreo-progress", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return work

    def drain(self, timeout: float | None) -> bool:
        """Wait until nothing is pending; whether it came to that."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.pending, timeout)

    def stop(self) -> None:
        """Take no more, and end the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(1.0)
        self._busy = self._idle = lambda: None  # or it and who made it would keep each other alive

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopped)
                if not self._waiting:
                    return
                call, work = self._waiting.popleft()
                self._running = work
            value, error = None, None
            try:
                value = call()
            except BaseException as caught:  # whatever it is belongs to whoever waits
                error = caught
            with self._changed:
                self._running = None
                if not self._waiting:
                    self._idle()
                work.end(value, error)
                self._changed.notify_all()
            del call, work, value, error  # or the last call's arrays would live until the next
