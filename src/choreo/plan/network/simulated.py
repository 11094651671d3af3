"""The simulated time: the schedule that suits a network, simulated with all groups of a kind at once.

The time of ring and hierarchical schedules is affine in the size, that of all_to_all nearly so. Three sizes are
simulated for each group, and the others interpolated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from choreo.plan.network.model import ALL, Floats
from choreo.topology import Topology

__all__ = ["SimulatedModel"]

SIZES = np.array([2.0**10, 2.0**20, 2.0**30])


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """A network of any shape; devices are numbered as the topology numbers them."""

    topology: Topology

    @property
    def name(self) -> str:
        """The name that plans show."""
        return "simulated"

    @property
    def node_gpus(self) -> int:
        """There are no nodes."""
        return ALL

    def time_s(self, collective: str, sizes: Floats, ranks: int, stride: int) -> Floats:
        """Seconds for each size."""
        at = _simulated(self.topology, collective, ranks, stride)
        slopes = np.diff(at) / np.diff(SIZES)
        below = np.clip(np.searchsorted(SIZES, sizes) - 1, 0, len(slopes) - 1)
        times = np.maximum(0.0, at[below] + (sizes - SIZES[below]) * slopes[below])
        return np.where(sizes > 0, times, 0.0)

    def link(self, ranks: int, stride: int) -> str:
        """The links of the only network there is."""
        return "the network"

    def bandwidth_bytes_per_s(self, ranks: int, stride: int) -> float:
        """All links of the slowest device."""
        links = self.topology.links
        out = np.bincount(links.src, weights=links.bandwidth_bytes_per_s, minlength=self.topology.num_nodes)
        return float(out[: self.topology.num_devices].min())


@lru_cache(maxsize=4096)
def _simulated(topology: Topology, collective: str, ranks: int, stride: int) -> Floats:
    """Seconds at each of `SIZES`, with the groups that start at devices 0 to stride - 1."""
    from choreo.simulate import Job, simulate_together, suggested_schedule

    # A message is a broadcast between two ranks.
    kind = "broadcast" if collective == "sendrecv" else collective
    schedule = suggested_schedule(kind, topology, ranks, along_dimensions=ranks == topology.num_devices)
    groups = [range(first, first + ranks * stride, stride) for first in range(stride)]
    return np.array(
        [
            simulate_together([Job(schedule, size, list(group)) for group in groups], topology).time_s
            for size in SIZES.tolist()
        ]
    )
