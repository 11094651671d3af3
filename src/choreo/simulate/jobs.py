"""What is simulated: a schedule with a size, on certain devices, from a certain moment on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np
import numpy.typing as npt

from choreo.errors import UsageError
from choreo.schedule import Schedule
from choreo.simulate.flows.switches import switch_nodes
from choreo.topology import Topology
from choreo.units import counted

__all__ = ["Job", "Placed", "at_least_zero", "placed"]

MOST = 1e300  # bytes, or seconds


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One collective: its schedule, its size, the device of each rank (0, 1, 2, ... unless told) and when it begins."""

    schedule: Schedule
    size_bytes: float
    placement: Sequence[int] | None = None
    start_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """A job that has been checked against a topology: the node of each member, and the bytes of one unit of weight."""

    schedule: Schedule
    size_bytes: float
    node: npt.NDArray[np.int64]
    start_s: float
    unit_bytes: float
    gamma_s_per_byte: npt.NDArray[np.float64]


def placed(job: Job, topology: Topology, gamma_s_per_byte: float) -> Placed:
    """The job on its devices, or an error that says why it does not fit there."""
    if not isinstance(job, Job):
        raise UsageError(f"what runs together is a list of Jobs, not of {type(job).__name__}")
    schedule = job.schedule
    if not isinstance(schedule, Schedule):
        raise UsageError(f"only a Schedule can be simulated, not {type(schedule).__name__}")
    size_bytes = at_least_zero("size_bytes", job.size_bytes)
    start_s = at_least_zero("start_s", job.start_s)
    node = _nodes(schedule.ranks, job.placement, topology)
    total = schedule.contract.total_bytes(size_bytes, schedule.ranks)
    with np.errstate(over="ignore"):
        gamma = gamma_s_per_byte * topology.slowdown[node]
    if not np.isfinite(gamma).all():
        raise UsageError(f"to reduce a byte takes longer than can be counted on {topology.name}; use a smaller gamma")
    if schedule.switches:
        node = np.concatenate((node, switch_nodes(schedule, node, topology)))
        gamma = np.concatenate((gamma, np.zeros(schedule.switches)))  # a switch adds as fast as bytes arrive
    return Placed(schedule, size_bytes, node, start_s, total / schedule.total_weight, gamma)


def at_least_zero(name: str, value: object) -> float:
    """A number of this world that is not negative, as a float."""
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        number = math.inf
    if not 0 <= number < MOST:
        what = "a time of at least 0 seconds" if name.endswith("_s") else "a number of at least 0"
        raise UsageError(f"{name} must be {what}, not {value!r:.60}")
    return number


def _nodes(ranks: int, placement: Sequence[int] | None, topology: Topology) -> npt.NDArray[np.int64]:
    devices = topology.num_devices
    if placement is None:
        if ranks > devices:
            raise UsageError(
                f"{counted(ranks, 'rank')} do not fit on {topology.name}, which has {counted(devices, 'device')}"
            )
        return np.arange(ranks)
    try:
        given = np.asarray(placement)
    except ValueError:  # lists of different lengths
        given = np.zeros(())
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise UsageError("a placement is a list of device numbers, one a rank")
    if len(given) != ranks:
        raise UsageError(
            f"the placement has {counted(len(given), 'device')} for {counted(ranks, 'rank')}; give one a rank"
        )
    outside = np.flatnonzero((given < 0) | (given >= devices))
    if len(outside):
        raise UsageError(
            f"the placement puts rank {outside[0]} on device {given[outside[0]]}; {topology.name} has devices 0 to "
            f"{devices - 1}"
        )
    seen, count = np.unique(given, return_counts=True)
    if (count > 1).any():
        twice = int(seen[count > 1][0])
        ranks_there = np.flatnonzero(given == twice)[:2].tolist()
        raise UsageError(
            f"the placement puts ranks {ranks_there[0]} and {ranks_there[1]} on device {twice}; one rank a device"
        )
    return given.astype(np.int64)
