"""NCCL's options side by side: which of its algorithms and protocols takes least at which size.

NCCL chooses by estimates of its own. Here each option's call is timed by the model in `choreo.nccl`, and NCCL's choice
stands unless another option is faster by more than `MARGIN`, which is about what the model is off.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from choreo.nccl.constants import DEFAULT
from choreo.nccl.execution.execute import execute
from choreo.nccl.model import choose
from choreo.nccl.system.placed import system_of
from choreo.nccl.system.system import NcclSystem
from choreo.nccl.tuning import estimates
from choreo.results import Result, result
from choreo.topology import Topology, devices_of, get_topology
from choreo.units import counted, format_bytes

__all__ = ["TunedRange", "Tuning", "tune"]

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")  # that NCCL has a choice for
MARGIN = 0.05
LEAST_BYTES, MOST_BYTES = 8, 1 << 34
STEPS_AN_OCTAVE = 2
NO_LIMIT = (1 << 64) - 1
Option = tuple[str, str]


@result
class TunedRange(Result):
    """The sizes from `min_bytes` to `max_bytes`, both included, and what NCCL should use for them.

    `gain` is how much faster that is than NCCL's own choice at the size where it gains most, 1 where it is that choice.
    Sizes are counted as nccl-tests does.
    """

    columns: ClassVar[tuple[str, ...]] = ("collective", "min_bytes", "max_bytes", "algorithm", "protocol", "gain")

    collective: str
    min_bytes: int
    max_bytes: int
    algorithm: str
    protocol: str
    gain: float

    def summary(self) -> str:
        """The range and its choice."""
        most = "and more" if self.max_bytes == NO_LIMIT else f"to {format_bytes(self.max_bytes)}"
        return f"{self.collective} of {format_bytes(self.min_bytes)} {most}: {self.algorithm} {self.protocol}"


@result
class Tuning(Result):
    """What NCCL should use on a topology: for each collective, ranges of sizes that cover all."""

    columns: ClassVar[tuple[str, ...]] = ("topology", "nodes", "ranks", "ranges")

    topology: str
    nodes: int
    ranks: int
    ranges: tuple[TunedRange, ...]

    def summary(self) -> str:
        """How many ranges there are."""
        return f"{counted(len(self.ranges), 'range')} for {counted(self.ranks, 'rank')} on {self.topology}"


def tune(topology: Topology | str | Path, *, devices: Sequence[int | str] | None = None) -> Tuning:
    """Which algorithm and protocol NCCL should use for which size on a topology's devices.

    >>> found = tune("hgx-h100:2")
    >>> found.nodes, found.ranks, found.ranges[0].collective
    (2, 16, 'all_reduce')
    """
    network = get_topology(topology)
    by_rank = list(range(network.num_devices)) if devices is None else devices_of(network, devices).tolist()
    system = system_of(network, by_rank)
    found = [row for collective in COLLECTIVES for row in _ranges(collective, system)]
    return Tuning(network.name, system.domains, system.ranks, tuple(found))


def _times(collective: str, size_bytes: int, system: NcclSystem) -> dict[Option, float]:
    """The time of each option that NCCL has at a size."""
    return {
        option: execute(collective, *option, size_bytes, system, constants=DEFAULT).time_s
        for option in estimates(collective, size_bytes, system)
    }


def _best(collective: str, size_bytes: int, system: NcclSystem) -> tuple[Option, float]:
    """The option to use at a size, and the gain over NCCL's own choice."""
    times = _times(collective, size_bytes, system)
    choice = choose(collective, size_bytes, system)
    own = (choice.algorithm, choice.protocol)
    fastest = min(times, key=lambda option: (times[option], option))
    if own not in times or times[fastest] >= times[own] * (1 - MARGIN):
        return own, 1.0
    return fastest, times[own] / times[fastest]


def _ranges(collective: str, system: NcclSystem) -> list[TunedRange]:
    sizes = [LEAST_BYTES]
    while sizes[-1] < MOST_BYTES:
        sizes.append(round(LEAST_BYTES * 2 ** (len(sizes) / STEPS_AN_OCTAVE)))
    found = [_best(collective, size, system) for size in sizes]
    made: list[TunedRange] = []
    start, gain = 0, 1.0
    for number, (option, more) in enumerate(found):
        gain = max(gain, more)
        ends = number + 1 == len(found)
        if not ends and found[number + 1][0] == option:
            continue
        last = NO_LIMIT if ends else _boundary(collective, system, sizes[number], sizes[number + 1])
        made.append(TunedRange(collective, start, last, *option, gain))
        start, gain = last + 1, 1.0
    return made


def _boundary(collective: str, system: NcclSystem, low: int, high: int) -> int:
    """The last size that still has the choice of `low`, where that of `high` is another."""
    option = _best(collective, low, system)[0]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _best(collective, middle, system)[0] == option else (low, middle)
    return low
