"""The two bandwidths of nccl-tests, for whatever has a collective, its ranks, its size and its time."""

from __future__ import annotations

from typing import Protocol

from choreo.collectives.contract import get_collective

__all__ = ["Bandwidths"]


class _Timed(Protocol):
    @property
    def collective(self) -> str: ...
    @property
    def ranks(self) -> int: ...
    @property
    def size_bytes(self) -> float: ...
    @property
    def collective_time_s(self) -> float: ...
    @property
    def algbw_bytes_per_s(self) -> float: ...
    @property
    def busbw_bytes_per_s(self) -> float: ...


class Bandwidths:
    """algbw is size over time; busbw is what the hardware must carry for that, whatever the number of ranks.

    A class that has these gives its time as `collective_time_s`. nccl-tests' PERFORMANCE.md derives the factors.
    """

    __slots__ = ()

    @property
    def algbw_bytes_per_s(self: _Timed) -> float:
        """Size over time."""
        return self.size_bytes / self.collective_time_s if self.collective_time_s > 0 else 0.0

    @property
    def busbw_bytes_per_s(self: _Timed) -> float:
        """algbw times the factor of the collective: 2 (p - 1) / p for an all_reduce."""
        return self.algbw_bytes_per_s * get_collective(self.collective).bus_factor(self.ranks)

    @property
    def algbw_GBps(self: _Timed) -> float:  # noqa: N802 - GB/s is spelled so
        """algbw in GB/s."""
        return self.algbw_bytes_per_s / 1e9

    @property
    def busbw_GBps(self: _Timed) -> float:  # noqa: N802
        """busbw in GB/s."""
        return self.busbw_bytes_per_s / 1e9
