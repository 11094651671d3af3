"""Shared by all calls of a communicator: the engine, checks of ranks and timeouts, and running a call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from choreo.checks import is_whole
from choreo.errors import UsageError, excerpt
from choreo.run.engine import CallRequest, Engine
from choreo.run.execute.arrays import Array
from choreo.run.execute.dtypes import ReduceOp
from choreo.run.work import LONGEST_S, Work
from choreo.units import parse_time

__all__ = ["CallBase"]

Result = TypeVar("Result")


class CallBase:
    """A rank and its engine. `timeout_s` is the default timeout of a call; `progress` runs asynchronous calls."""

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
        if not is_whole(rank) or not 0 <= rank < self.world_size:
            raise UsageError(f"{name} must be a rank from 0 to {self.world_size - 1}, not {excerpt(rank)}")
        return int(rank)

    def _seconds(self, timeout: float | str | None) -> float:
        given = self.timeout_s if timeout is None else timeout
        seconds = parse_time(given) if isinstance(given, str) else given
        is_number = isinstance(seconds, float) or is_whole(seconds)
        if not is_number or not 0 < seconds <= sys.float_info.max:
            raise UsageError(f"timeout must be a finite number of seconds, more than 0, not {excerpt(given)}")
        return float(min(seconds, LONGEST_S))

    def _request(
        self,
        collective: str,
        given: Array | None,
        work: Array | None,
        blocks: int | tuple[int, ...],
        timeout: float | str | None,
        *,
        op: ReduceOp | None = None,
        root: int | None = None,
        dtype: np.dtype[Any] | None = None,
        mine: Array | None = None,
        step_of: str = "",
    ) -> CallRequest:
        if dtype is None:
            dtype = given.dtype if given is not None else np.dtype(np.uint8)
        return CallRequest(collective, given, work, dtype, blocks, op, root, self._seconds(timeout), mine, step_of)

    def _do(
        self,
        request: CallRequest,
        finish: Callable[[Array], Result],
        async_op: bool,
        *,
        cache: bool = False,
        key: object = None,
    ) -> Result | Work[Result]:
        """Run a call in order. With `cache`, the next identical call, with the same `key`, skips all checks."""
        engine = self._engine
        prepared = engine.prepare(request)
        if cache:
            engine.cache(key, prepared, request)
        return engine.in_order(lambda: finish(engine.run(prepared, request)), request.collective, async_op)
