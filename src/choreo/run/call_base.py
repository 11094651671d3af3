"""What every kind of call of a communicator needs: the engine, and checks of ranks and timeouts."""

from __future__ import annotations

import sys

import numpy as np

from choreo.errors import UsageError
from choreo.run.engine import Engine
from choreo.run.work import LONGEST_S
from choreo.units import parse_time

__all__ = ["CallBase"]


class CallBase:
    """A rank and its engine. `timeout_s` is for calls that are given no timeout; `progress` runs asynchronous ones."""

    def __init__(self, engine: Engine, timeout_s: float) -> None:
        self.rank, self.world_size = engine.rank, engine.world_size
        self.timeout_s = timeout_s
        self.progress = engine.progress
        self._engine = engine
        self._cached_calls = engine.call_cache

    @property
    def is_on_one_host(self) -> bool:
        """Whether all ranks share memory."""
        return not self._engine.connection.remote.any()

    def check(self) -> None:
        """Raise the error that every call raises, if this communicator has failed, is closed, or belongs to a fork."""
        self._engine.check()

    def _rank(self, rank: int, name: str) -> int:
        if isinstance(rank, bool) or not isinstance(rank, int | np.integer) or not 0 <= rank < self.world_size:
            raise UsageError(f"{name} must be a rank from 0 to {self.world_size - 1}, not {rank!r:.60}")
        return int(rank)

    def _seconds(self, timeout: float | str | None) -> float:
        given = self.timeout_s if timeout is None else timeout
        seconds = parse_time(given) if isinstance(given, str) else given
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= sys.float_info.max:
            raise UsageError(f"timeout must be a finite number of seconds, more than 0, not {given!r:.60}")
        return float(min(seconds, LONGEST_S))
