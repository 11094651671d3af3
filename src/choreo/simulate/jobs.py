"""A job of a simulation: a schedule with a size, on given devices, from a start time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choreo.errors import UsageError
from choreo.schedule import Schedule, check_schedule
from choreo.simulate.flows.switches import switch_nodes
from choreo.topology import Topology, devices_of
from choreo.units import BEYOND_MEASURE, counted, size_of, time_of

__all__ = ["Job", "Placed", "are_few", "placed"]

# The critical path needs every message to be kept; with more transfers than this it is left out.
MOST_FOLLOWED = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One collective of a simulation: its schedule, its size, the device of each rank (0, 1, 2, ... by default) and its
    start.

    Relays are placed on the devices without a rank, in device order, unless the placement lists their devices after the
    ranks'.
    """

    schedule: Schedule
    size_bytes: float | str
    placement: Sequence[int | str] | None = None
    start_s: float | str = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """A job that has been checked against a topology: the node of each member, and the bytes of one unit of weight."""

    schedule: Schedule
    size_bytes: float
    node: npt.NDArray[np.int64]
    start_s: float
    unit_bytes: float
    gamma_s_per_byte: npt.NDArray[np.float64]


def are_few(jobs: Sequence[Placed]) -> bool:
    """Whether the transfers of some jobs are few enough to keep what happens to each message."""
    left = MOST_FOLLOWED
    for job in jobs:
        left -= job.schedule.count_transfers(left)
        if left < 0:
            return False
    return True


def placed(job: Job, topology: Topology, gamma_s_per_byte: float) -> Placed:
    """The job on its devices, or an error that says why it does not fit there."""
    if not isinstance(job, Job):
        raise UsageError(f"what runs together is a list of Jobs, not of {type(job).__name__}")
    schedule = job.schedule
    check_schedule(schedule, "can be simulated")
    size_bytes = float(size_of(job.size_bytes))
    start_s = float(time_of(job.start_s, "start_s"))
    node = _nodes(schedule, job.placement, topology)
    total = schedule.contract.total_bytes(size_bytes, schedule.ranks)
    with np.errstate(over="ignore"):
        gamma = gamma_s_per_byte * topology.slowdown[node]
    if not (gamma <= BEYOND_MEASURE).all():
        raise UsageError(f"to reduce a byte takes longer than can be counted on {topology.name}; use a smaller gamma")
    if schedule.switches:
        node = np.concatenate((node, switch_nodes(schedule, node, topology)))
        gamma = np.concatenate((gamma, np.zeros(schedule.switches)))  # a switch adds as fast as bytes arrive
    return Placed(schedule, size_bytes, node, start_s, total / schedule.total_weight, gamma)


def _nodes(schedule: Schedule, placement: Sequence[int | str] | None, topology: Topology) -> npt.NDArray[np.int64]:
    """The devices of the ranks, and of the relays after them."""
    given = _given(schedule, placement, topology)
    missing = schedule.ranks + schedule.relays - len(given)
    if not missing:
        return given
    free = np.setdiff1d(np.arange(topology.num_devices), given)
    if len(free) < missing:
        raise UsageError(
            f"{schedule.who} do not fit on {topology.name}, which has {counted(topology.num_devices, 'device')}; place "
            "it on the network that it was made for"
        )
    return np.concatenate((given, free[:missing]))


def _given(schedule: Schedule, placement: Sequence[int | str] | None, topology: Topology) -> npt.NDArray[np.int64]:
    ranks, devices = schedule.ranks, topology.num_devices
    if placement is None:
        if ranks > devices:
            raise UsageError(
                f"{counted(ranks, 'rank')} do not fit on {topology.name}, which has {counted(devices, 'device')}"
            )
        return np.arange(ranks)
    given = devices_of(topology, placement)
    if len(given) not in (ranks, ranks + schedule.relays):
        relays = f" and {counted(schedule.relays, 'relay')}" if schedule.relays else ""
        raise UsageError(
            f"the placement has {counted(len(given), 'device')} for {counted(ranks, 'rank')}{relays}; give one per rank"
        )
    seen, count = np.unique(given, return_counts=True)
    if (count > 1).any():
        twice = int(seen[count > 1][0])
        first, second = map(schedule.member_name, np.flatnonzero(given == twice)[:2].tolist())
        raise UsageError(
            f"the placement puts {first} and {second} on device {topology.node_name(twice)}; one rank per device"
        )
    return given
