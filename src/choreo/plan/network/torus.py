"""The closed form for a torus of accelerators that have no NCCL: rings along every dimension at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from choreo.plan.network.model import ALL, Floats
from choreo.topology import Topology

__all__ = ["TorusModel", "torus_model"]


@dataclass(frozen=True, slots=True)
class TorusModel:
    """A device sends over all its links at once, and every step is one hop. The stride of a group does not matter."""

    link_bytes_per_s: float  # of a device, all its links together
    hop_s: float
    links: str = "ICI"  # in words

    @property
    def name(self) -> str:
        """The name that plans show."""
        return "torus"

    @property
    def node_gpus(self) -> int:
        """There are no nodes."""
        return ALL

    def time_s(self, collective: str, sizes: Floats, ranks: int, stride: int) -> Floats:
        """Seconds for each size."""
        steps = 2 * (ranks - 1) if collective == "all_reduce" else ranks - 1
        if collective == "sendrecv":
            return np.asarray(self.hop_s + sizes / (self.link_bytes_per_s / 6))
        moved = sizes * steps / ranks
        if collective == "all_to_all":
            moved = moved * max(1.0, ranks ** (1 / 3) / 4)
        hops = 3 * ranks ** (1 / 3) * (2 if collective == "all_reduce" else 1)
        return np.asarray(hops * self.hop_s + moved / self.link_bytes_per_s)

    def link(self, ranks: int, stride: int) -> str:
        """The links between chips."""
        return self.links

    def bandwidth_bytes_per_s(self, ranks: int, stride: int) -> float:
        """All links of a device."""
        return self.link_bytes_per_s


def torus_model(topology: Topology) -> TorusModel:
    """The slowest device's links, and the usual latency of one."""
    links = topology.links
    out = np.bincount(links.src, weights=links.bandwidth_bytes_per_s, minlength=topology.num_nodes)
    ici = topology.device.upper().startswith("TPU") or any(block.medium == "ici" for block in topology.blocks)
    name = "ICI" if ici else "the network"
    return TorusModel(float(out[: topology.num_devices].min()), float(np.median(links.latency_s)), name)
