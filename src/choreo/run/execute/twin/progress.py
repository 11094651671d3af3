"""The progress queue, as in `core/python/progress.h`: asynchronous calls, run in the order in which they were made."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from choreo.run.transport.shortage import start_thread

__all__ = ["ProgressQueue", "QueuedCall"]


class QueuedCall:
    """A call in the queue. Once it is over, it has a `value` or an `error`."""

    def __init__(self, queue: ProgressQueue, call: Callable[[], Any]) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self._queue = queue
        self._call: Callable[[], Any] | None = call
        self._over = False
        self._callbacks: list[Callable[[], object]] = []

    def done(self) -> bool:
        """Whether the call is over."""
        if not self._over:
            self._queue.wake(held_too=True)
        return self._over

    def wait(self, timeout_s: float | None, /) -> bool:
        """Wait until the call is over; False if some seconds were not enough."""
        return self._queue.wait(lambda: self._over, timeout_s)

    def add_done_callback(self, callback: Callable[[], object], /) -> None:
        """Call this once the call is over, on the thread that ran it; at once if it is over."""
        self._callbacks.append(callback)
        if self._over:
            self.run_callbacks()

    def run(self) -> None:
        """Run the call."""
        assert self._call is not None
        try:
            self.value = self._call()
        except BaseException as caught:  # whoever waits raises it
            self.error = caught
        self._call = None  # or its arrays would live as long as this

    def end(self) -> None:
        """The call is over."""
        self._over = True

    def run_callbacks(self) -> None:
        """Run the callbacks that nobody has run."""
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback()
            except BaseException as error:  # as what a destructor raises: there is nobody to raise it to
                sys.unraisablehook(_Unraisable(error, callback))  # type: ignore[arg-type]


class _Unraisable:
    """The argument of `sys.unraisablehook`."""

    def __init__(self, error: BaseException, callback: object) -> None:
        self.exc_type, self.exc_value, self.exc_traceback = type(error), error, error.__traceback__
        self.err_msg, self.object = None, callback


class ProgressQueue:
    """Asynchronous calls, run in order by a thread, or by whoever waits for one while none runs."""

    def __init__(self, endpoint: object, failure: Callable[..., Exception], check: Callable[[], None], /) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[QueuedCall] = deque()
        self._thread: threading.Thread | None = None
        self._running = self._stopped = False
        self._due = False  # whether the thread is to run what waits
        self._held = threading.local()
        self._process = os.getpid()

    @property
    def pending(self) -> bool:
        """Whether calls wait or run."""
        return self._running or bool(self._waiting)

    def submit(self, call: Callable[[], Any], /) -> QueuedCall:
        """Run a call after all calls before it."""
        queued = QueuedCall(self, call)
        with self._changed:
            if self._thread is None:
                self._thread = start_thread(self._run, "choreo-progress", "asynchronous calls")
            self._waiting.append(queued)
            self._due |= not getattr(self._held, "holds", False)
            self._changed.notify_all()
        return queued

    def hold(self, holds: bool, /) -> None:
        """Whether calls of this thread wait until somebody waits for them."""
        self._held.holds = holds

    def wake(self, *, held_too: bool) -> None:
        """Let the thread run what waits."""
        if os.getpid() != self._process:  # the thread, and perhaps the lock, stayed with the parent
            return
        with self._changed:
            self._due |= held_too and bool(self._waiting)
            self._changed.notify_all()

    def drain(self, timeout_s: float | None, /) -> bool:
        """Wait until no call is pending; False if some seconds were not enough."""
        return self.wait(lambda: not self.pending, timeout_s)

    def stop(self) -> None:
        """Take no more calls, and end the thread."""
        if os.getpid() != self._process:
            return
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(1.0)

    def wait(self, over: Callable[[], bool], timeout_s: float | None) -> bool:
        """Run calls until this is so; or, if there is a limit to the time, let the thread run them."""
        runs = timeout_s is None or threading.current_thread() is self._thread
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not over():
            if os.getpid() != self._process:
                raise RuntimeError("this call was made before a fork, and belongs to the parent")
            if runs and self._run_next():
                continue
            if not runs:
                self.wake(held_too=True)
            with self._changed:
                left = None if end_s is None else end_s - time.monotonic()
                if not self._changed.wait_for(lambda: over() or (runs and self._can_run()), left):
                    return False
        return True

    def _can_run(self) -> bool:
        return bool(self._waiting) and not self._running

    def _run_next(self) -> bool:
        """Run the next call, if there is one and nobody runs another."""
        with self._changed:
            if not self._can_run():
                return False
            queued = self._waiting.popleft()
            self._due &= bool(self._waiting)
            self._running = True
        queued.run()
        with self._changed:
            self._running = False
            queued.end()
            self._changed.notify_all()
        queued.run_callbacks()
        if isinstance(queued.error, KeyboardInterrupt) and threading.current_thread() is not self._thread:
            raise queued.error
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: (self._can_run() and (self._due or self._stopped)) or (self._stopped and not self.pending)
                )
                if not self.pending:
                    return
            self._run_next()
