"""The result of a benchmark: one row per size and algorithm."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar

from choreo.bench.inputs import Case, dtype_of
from choreo.bench.options import BenchOptions
from choreo.collectives import Bandwidths
from choreo.results import Result, result
from choreo.units import counted, format_bytes, format_time

__all__ = ["Benchmark", "Measurement", "geometric_mean"]


@result
class Measurement(Bandwidths, Result):
    """One row of a benchmark: a size, the algorithm that ran, its time, and the times of the peers.

    `predicted_s` is the price of the algorithm. `wrong` counts wrong elements over all ranks; None means not checked.
    """

    columns: ClassVar[tuple[str, ...]] = (
        "collective",
        "ranks",
        "size_bytes",
        "algorithm",
        "time_s",
        "time_us",
        "algbw_bytes_per_s",
        "busbw_bytes_per_s",
        "algbw_GBps",
        "busbw_GBps",
        "wrong",
        "predicted_s",
        "predicted_us",
        "peers",
    )

    case: Case
    algorithm: str
    time_s: float
    wrong: int | None
    predicted_s: float
    peer_times_s: Mapping[str, float]
    iterations: int = 1
    peer_received_bytes: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # of a call, by rank
    samples_s: tuple[float, ...] = ()  # the time of each round
    peer_samples_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def collective(self) -> str:
        """The collective that ran."""
        return self.case.collective

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.case.ranks

    @property
    def size_bytes(self) -> int:
        """The collective's size as nccl-tests has it."""
        return self.case.size_bytes

    @property
    def collective_time_s(self) -> float:
        """The same as `time_s`."""
        return self.time_s

    @property
    def time_us(self) -> float:
        """The time in microseconds."""
        return self.time_s * 1e6

    @property
    def predicted_us(self) -> float:
        """The price in microseconds."""
        return self.predicted_s * 1e6

    @property
    def peers(self) -> dict[str, dict[str, Any]]:
        """The times of the peers in microseconds, by name, and what ranks received where it was counted."""
        return {
            name: {"time_us": time_s * 1e6}
            | ({"received_bytes": [*received]} if (received := self.peer_received_bytes.get(name)) else {})
            for name, time_s in self.peer_times_s.items()
        }

    def ratio(self, peer: str) -> float:
        """A peer's time divided by Choreo's."""
        return self.peer_times_s[peer] / self.time_s

    def summary(self) -> str:
        """The row in one line."""
        return (
            f"{self.collective} of {format_bytes(self.size_bytes)} over {counted(self.ranks, 'rank')}: "
            f"{format_time(self.time_s)} by {self.algorithm}, {format_time(self.predicted_s)} predicted"
        )


@result
class Benchmark(Result):
    """All rows of a benchmark.

    `missing` says what could not be measured, and why. `busy_cores` is the number of cores that other programs kept
    busy when it began.
    """

    columns: ClassVar[tuple[str, ...]] = ("collective", "ranks", "dtype", "results")

    options: BenchOptions
    results: tuple[Measurement, ...]
    missing: tuple[str, ...] = ()
    busy_cores: float = 0.0

    @property
    def collective(self) -> str:
        """The collective that ran."""
        return self.options.collective

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.options.ranks

    @property
    def dtype(self) -> str:
        """NumPy's name of the element type."""
        return dtype_of(self.options.dtype).name

    @property
    def disturbed(self) -> str:
        """A sentence if other programs kept half a core or more busy; empty if not."""
        if self.busy_cores < 0.5:
            return ""
        return f"other programs kept {self.busy_cores:.1f} cores busy, which the prediction does not include"

    def summary(self) -> str:
        """What was measured, in one line."""
        return f"{self.collective} over {counted(self.ranks, 'rank')}: {counted(len(self.results), 'measurement')}"


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of ratios.

    >>> geometric_mean([1, 4])
    2.0
    """
    return math.exp(statistics.fmean(math.log(value) for value in values))
