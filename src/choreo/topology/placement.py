"""Placement: the device of each rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from choreo.errors import UsageError
from choreo.topology.graph import Ints
from choreo.topology.topology import Topology

__all__ = ["devices_of"]


def devices_of(topology: Topology, placement: Sequence[int | str] | Ints) -> Ints:
    """The device of each rank: numbers as they are, names looked up in the topology.

    >>> from choreo.topology import get_topology
    >>> devices_of(get_topology("ring(4, 50GB/s, 1us)"), [3, 1, 2, 0])
    array([3, 1, 2, 0])
    """
    try:
        given = np.asarray(placement)
    except ValueError:  # lists of different lengths
        given = np.zeros(())
    if given.ndim != 1 or not len(given) or given.dtype.kind not in "iuU":
        raise UsageError(f"a placement is a list of devices, numbers or names, one per rank, not {placement!r:.60}")
    if given.dtype.kind == "U":
        return np.array([topology.device_of(str(name)) for name in given], np.int64)
    outside = np.flatnonzero((given < 0) | (given >= topology.num_devices))
    if len(outside):
        raise UsageError(
            f"rank {outside[0]} cannot be on device {given[outside[0]]}: {topology.name} has devices 0 to "
            f"{topology.num_devices - 1}"
        )
    return given.astype(np.int64)
