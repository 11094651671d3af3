"""A point in time at which a wait gives up."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from choreo.errors import UsageError, excerpt
from choreo.run.transport.limits import MAX_TIMEOUT_S

__all__ = ["Deadline"]


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock, and the timeout it was made from, for error messages."""

    timeout_s: float
    at_s: float

    @classmethod
    def after(cls, timeout_s: float) -> Deadline:
        """The moment `timeout_s` seconds from now."""
        if not (isinstance(timeout_s, int | float) and math.isfinite(timeout_s) and timeout_s > 0):
            raise UsageError(f"timeout must be a number of seconds, more than 0, not {excerpt(timeout_s)}")
        timeout_s = min(timeout_s, MAX_TIMEOUT_S)
        return cls(timeout_s, time.monotonic() + timeout_s)

    @property
    def left_s(self) -> float:
        """Seconds until then, never less than 0."""
        return max(0.0, self.at_s - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether the moment is over."""
        return time.monotonic() >= self.at_s

    def capped(self, timeout_s: float) -> Deadline:
        """This deadline, or one `timeout_s` seconds from now if that is earlier."""
        return min(self, Deadline.after(timeout_s), key=lambda deadline: deadline.at_s)
