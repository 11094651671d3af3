"""A moment after which nothing waits any longer."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from choreo.errors import UsageError
from choreo.run.transport.limits import MAX_PATIENCE_S

__all__ = ["Deadline"]


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the clock that only goes forward, and the patience it was made from, for messages."""

    patience_s: float
    at_s: float

    @classmethod
    def after(cls, patience_s: float) -> Deadline:
        """The moment so many seconds from now."""
        if not (isinstance(patience_s, int | float) and math.isfinite(patience_s) and patience_s > 0):
            raise UsageError(f"a timeout of {patience_s!r:.60} s is none; say how many seconds to wait, more than 0")
        patience_s = min(patience_s, MAX_PATIENCE_S)
        return cls(patience_s, time.monotonic() + patience_s)

    @property
    def left_s(self) -> float:
        """Seconds until then, never less than 0."""
        return max(0.0, self.at_s - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether it is later than that."""
        return time.monotonic() >= self.at_s

    def capped(self, patience_s: float) -> Deadline:
        """This moment, or so many seconds from now, whichever comes first."""
        return min(self, Deadline.after(patience_s), key=lambda one: one.at_s)
