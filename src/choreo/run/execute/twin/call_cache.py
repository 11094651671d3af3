"""The Python executor caches no calls: every call takes the long way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from choreo.run.execute.twin.progress import ProgressQueue, QueuedCall

__all__ = ["CallCache"]


class CallCache:
    """The interface of `core/python/call_cache.h`, with nothing in it. Each method says that it ran nothing."""

    def __init__(
        self, endpoint: object, array: type, failure: Callable[..., Exception], queue: ProgressQueue | None = None, /
    ) -> None:
        self.open = 0

    def all_reduce(self, x: object, op: object, timeout_s: float | str, /) -> bool:
        """Reduce an array in place, if such a call was cached."""
        return False

    def broadcast(self, x: object, root: object, timeout_s: float | str, /) -> bool:
        """Send the root's array, or receive it, if such a call was cached."""
        return False

    def all_gather(self, x: object, out: object, key: None, timeout_s: float | str, /) -> bool:
        """Gather every rank's array, if such a call was cached."""
        return False

    def reduce_scatter(self, x: object, out: object, op: object, timeout_s: float | str, /) -> bool:
        """Reduce to every rank's part, if such a call was cached."""
        return False

    def barrier(self, timeout_s: float | str, /) -> bool:
        """Run a barrier, if it was cached."""
        return False

    def start_all_reduce(self, x: object, op: object, timeout_s: float | str, /) -> QueuedCall | None:
        """Queue an all_reduce in place, if such a call was cached."""
        return None

    def start_broadcast(self, x: object, root: object, timeout_s: float | str, /) -> QueuedCall | None:
        """Queue a broadcast, if such a call was cached."""
        return None

    def start_all_gather(self, x: object, out: object, key: None, timeout_s: float | str, /) -> QueuedCall | None:
        """Queue an all_gather, if such a call was cached."""
        return None

    def start_reduce_scatter(self, x: object, out: object, op: object, timeout_s: float | str, /) -> QueuedCall | None:
        """Queue a reduce_scatter, if such a call was cached."""
        return None

    def start_barrier(self, timeout_s: float | str, /) -> QueuedCall | None:
        """Queue a barrier, if it was cached."""
        return None

    def add(self, *_: object) -> bool:
        """Cache a call: its collective, operation or root, arrays, prepared call, and what the executor needs."""
        return False

    def clear(self) -> None:
        """Drop all calls."""

    def close(self) -> None:
        """Drop all calls, and cache no more."""
