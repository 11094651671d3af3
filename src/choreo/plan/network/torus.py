"""The closed form for accelerators without NCCL: rings along every dimension at once, and between nodes.

Inside a node, or if there are none, a device sends over all its links at once. A group that spans nodes first does its
part inside, and then each device sends its share over its part of the network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from choreo.plan.network.model import ALL, Floats
from choreo.topology import Topology

__all__ = ["TorusModel", "torus_model"]

WORDS = {"pcie": "PCIe", "xgmi": "Infinity Fabric", "ethernet": "Ethernet", "neuronlink": "NeuronLink"}


@dataclass(frozen=True, slots=True)
class TorusModel:
    """A device sends over all its links at once, and every step is one hop. A stride may take a group out of a node."""

    link_bytes_per_s: float  # of a device, all its links inside a node together
    hop_s: float
    links: str = "ICI"  # in words
    node_gpus: int = ALL  # devices of a node; ALL: there are no nodes
    network_bytes_per_s: float = 0.0  # a device's share of what joins nodes

    @property
    def name(self) -> str:
        """The name that plans show."""
        return "torus"

    def crosses(self, ranks: int, stride: int = 1) -> bool:
        """Whether a group leaves its node."""
        return stride * (ranks - 1) >= self.node_gpus

    def time_s(self, collective: str, sizes: Floats, ranks: int, stride: int) -> Floats:
        """Seconds for each size."""
        if not self.crosses(ranks, stride):
            return self._inside(collective, sizes, ranks)
        if collective == "sendrecv":
            return np.asarray(self.hop_s + sizes / self.network_bytes_per_s)
        inside = max(1, min(ranks, self.node_gpus // stride))
        nodes = -(-ranks // inside)
        share = sizes if collective == "all_to_all" else sizes / inside
        steps = (2 if collective == "all_reduce" else 1) * (nodes - 1)
        between = 2 * math.log2(nodes) * self.hop_s + share * steps / nodes / self.network_bytes_per_s
        return np.asarray(between + (self._inside(collective, sizes, inside) if inside > 1 else 0.0))

    def _inside(self, collective: str, sizes: Floats, ranks: int) -> Floats:
        steps = 2 * (ranks - 1) if collective == "all_reduce" else ranks - 1
        if collective == "sendrecv":
            return np.asarray(self.hop_s + sizes / (self.link_bytes_per_s / 6))
        moved = sizes * steps / ranks
        if collective == "all_to_all":
            moved = moved * max(1.0, ranks ** (1 / 3) / 4)
        hops = 3 * ranks ** (1 / 3) * (2 if collective == "all_reduce" else 1)
        return np.asarray(hops * self.hop_s + moved / self.link_bytes_per_s)

    def link(self, ranks: int, stride: int) -> str:
        """The links between chips, unless the group spans nodes."""
        return "the network" if self.crosses(ranks, stride) else self.links

    def bandwidth_bytes_per_s(self, ranks: int, stride: int) -> float:
        """All links of a device, or its share of the network."""
        return self.network_bytes_per_s if self.crosses(ranks, stride) else self.link_bytes_per_s


def torus_model(topology: Topology) -> TorusModel:
    """The slowest device's links, and the usual latency of one."""
    links = topology.links
    blocks = topology.blocks
    if len(blocks) > 1 and blocks[-1].medium == "network":
        node = math.prod(block.size for block in blocks[:-1])
        outside = topology.dimension_of_links() == len(blocks) - 1
        inner, outer = (
            float(
                np.bincount(
                    links.src[chosen], weights=links.bandwidth_bytes_per_s[chosen], minlength=topology.num_nodes
                )[: topology.num_devices].min()
            )
            for chosen in (~outside, outside)
        )
        name = WORDS.get(blocks[0].medium, "the links of the node")
        return TorusModel(inner, float(np.median(links.latency_s)), name, node, outer)
    out = np.bincount(links.src, weights=links.bandwidth_bytes_per_s, minlength=topology.num_nodes)
    ici = topology.device.upper().startswith("TPU") or any(block.medium == "ici" for block in topology.blocks)
    name = "ICI" if ici else "the network"
    return TorusModel(float(out[: topology.num_devices].min()), float(np.median(links.latency_s)), name)
