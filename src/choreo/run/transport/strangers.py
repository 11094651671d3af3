"""Unauthenticated connections ("strangers"): how many a listener keeps, and for how long.

A client is a stranger until it has proved that it holds the secret. It has a few seconds for that, or one second when
there are many. If there are too many, or few descriptors are left, the oldest is dropped: a rank that is dropped this
way connects again. All listeners of a process share one limit, and leave descriptors for the program.
"""

from __future__ import annotations

import resource
import time
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from choreo.run.transport.handshake import HANDSHAKE_S
from choreo.run.transport.limits import MAX_UNAUTHENTICATED

__all__ = ["ACCEPTS_AT_ONCE", "Strangers"]

Stranger = TypeVar("Stranger")

ACCEPTS_AT_ONCE = 64  # before a listener looks at those that it has
LEAST = 8  # strangers of a listener, however many listeners there are
CROWDED_S = 1.0  # for a handshake when there are many
RESERVED = 64  # descriptors that are left for the program; a quarter of all, if that is less

_listeners: weakref.WeakSet[Strangers[Any]] = weakref.WeakSet()


class Strangers(Generic[Stranger]):
    """Those of one listener, oldest first. `drop` closes the connection of one.

    >>> dropped = []
    >>> strangers = Strangers(dropped.append)
    >>> for number in range(MAX_UNAUTHENTICATED + 1):
    ...     strangers.add(number, descriptor=3)
    >>> dropped
    [0]
    """

    def __init__(self, drop: Callable[[Stranger], object]) -> None:
        self._drop = drop
        self._came_s: dict[Stranger, float] = {}
        _listeners.add(self)

    def add(self, stranger: Stranger, descriptor: int) -> None:
        """One has connected, on this descriptor; the oldest makes room."""
        self._came_s[stranger] = time.monotonic()
        while len(self._came_s) > self._most:
            self.drop_oldest()
        if len(self._came_s) > 1 and descriptor >= _first_reserved():
            self.drop_oldest()

    def remove(self, stranger: Stranger) -> None:
        """This one has proved itself, or has gone."""
        self._came_s.pop(stranger, None)

    def drop_oldest(self) -> bool:
        """Drop the oldest; False if there is none."""
        oldest = next(iter(self._came_s), None)
        if oldest is None:
            return False
        self.remove(oldest)
        self._drop(oldest)
        return True

    def expire(self) -> None:
        """Drop those whose time is up."""
        while (at_s := self.next_expiry_s) is not None and at_s <= time.monotonic():
            self.drop_oldest()

    @property
    def next_expiry_s(self) -> float | None:
        """The time at which the oldest stranger expires; None if there are no strangers."""
        oldest_s = next(iter(self._came_s.values()), None)
        return None if oldest_s is None else oldest_s + self._patience_s

    def close(self) -> None:
        """The listener is closed, and the others share what it had."""
        self._came_s.clear()
        _listeners.discard(self)

    @property
    def _most(self) -> int:
        return max(LEAST, MAX_UNAUTHENTICATED // max(1, len(_listeners)))

    @property
    def _patience_s(self) -> float:
        return HANDSHAKE_S if len(self._came_s) <= self._most // 2 else min(CROWDED_S, HANDSHAKE_S)


def _first_reserved() -> int:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most - min(RESERVED, most // 4)
