"""The `Work` that an asynchronous call of a process group returns."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import choreo
from choreo.torch_backend.errors import torch_error
from choreo.torch_backend.tensors import Finish

__all__ = ["DONE", "Work"]

_callbacks = threading.local()  # whether this thread runs one


class Work(dist.Work):
    """Calls of a communicator in progress, in order; `finish` is done once when the last is over."""

    def __init__(self, calls: Sequence[choreo.Work[Any]], results: list[Any], finish: Finish) -> None:
        super().__init__()
        self._calls, self._results, self._finish = calls, results, finish
        self._lock = threading.Lock()
        self._future: Any = None

    @classmethod
    def of_all(cls, works: list[Work]) -> Work:
        """One for several."""
        calls = [call for work in works for call in work._calls]
        return cls(calls, [result for work in works for result in work._results], [work._complete for work in works])

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the result; raise what went wrong."""
        seconds = None if timeout is None else timeout.total_seconds()
        try:
            for call in self._calls:
                call.wait(seconds if seconds is not None and seconds > 0 else None)
        except Exception as error:
            raise torch_error(error) from error
        self._complete()
        return True

    def is_completed(self) -> bool:
        """Whether the call is over, with a result or an error."""
        done = all(call.done() for call in self._calls)
        if done and self._finish:
            self.wait()
        return done

    def is_success(self) -> bool:
        """Whether the call is over, with a result."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Any:
        """The error of the call, if it is over and failed."""
        if not all(call.done() for call in self._calls):
            return None
        try:
            self.wait()
        except Exception as error:
            return error
        return None

    def synchronize(self) -> None:
        """Wait."""
        self.wait()

    def result(self) -> list[Any]:
        """The tensors with the result."""
        self.wait()
        return self._results

    def source_rank(self) -> int:
        """The rank that a receive from any source has received from."""
        return int(self._calls[0].result())

    _source_rank = source_rank

    def get_future(self) -> Any:
        """A future of the result.

        C++ does not see an exception that Python sets on a future. It sees one that a callback raises, so this is the
        future of a callback.
        """
        with self._lock:
            if self._future is not None:
                return self._future
            begun: Any = torch.futures.Future()
            self._future = begun.then(lambda _: self.wait() and self._results)
        if getattr(_callbacks, "running", False):
            # A callback asks, and may wait for the future, which only its own thread could complete.
            with contextlib.suppress(dist.DistBackendError):  # the future raises it
                self.wait()
        self.when_over(lambda: begun.set_result(None))
        return self._future

    def when_over(self, callback: Callable[[], object]) -> None:
        """Call this when the last call is over."""
        left = [None] * len(self._calls)

        def one_is_over(_: object) -> None:
            left.pop()
            if not left:
                outer, _callbacks.running = getattr(_callbacks, "running", False), True
                try:
                    callback()
                finally:
                    _callbacks.running = outer

        for call in self._calls:
            call.add_done_callback(one_is_over)
        if not self._calls:
            callback()

    def _complete(self) -> None:
        with self._lock:
            finish, self._finish = self._finish, []
            for callback in finish:
                callback()


class _Done(Work):
    """The work of a call that is over."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Nothing is left to wait for."""
        del timeout
        return True


DONE = _Done((), [], [])
