"""NCCL's time: nodes of GPUs with NVLink or PCIe, and a network between the nodes.

Times are tabulated over the logarithm of the size, once per group, and interpolated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from choreo.errors import UsageError
from choreo.nccl import NETWORKS, NcclSystem, read_system
from choreo.nccl.model import predict_alone
from choreo.nccl.system.placed import system_of
from choreo.plan.network.model import Floats
from choreo.topology import Block, Topology

__all__ = ["NcclModel", "nccl_model"]

MEDIA = {"nvlink": "NVLink", "pcie": "PCIe", "xgmi": "Infinity Fabric"}
SMALLEST_LOG, LARGEST_LOG = 8, 38
_LOGS = np.arange(SMALLEST_LOG, LARGEST_LOG + 1, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class NcclModel:
    """What NCCL would choose, and how long that takes."""

    node_gpus: int  # GPUs of an NVLink domain
    system: NcclSystem  # one node and its share of the network
    inner_link: str = "NVLink"  # the links inside a node, in words
    # Logarithms of times by collective, ranks and stride: a system takes long to compare.
    _tables: dict[tuple[str, int, int], tuple[Floats, list[float]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def name(self) -> str:
        """The name that plans show."""
        return "nccl"

    def group(self, ranks: int, stride: int = 1) -> NcclSystem:
        """The system that a group of ranks, `stride` devices apart, runs on."""
        per_node = min(ranks, max(1, self.node_gpus // stride))
        return replace(
            self.system,
            ranks=ranks,
            domains=math.ceil(ranks / per_node),
            network_bytes_per_s=self.system.network_bytes_per_s / self.node_gpus * per_node,
            nics=max(1, round(self.system.nics * per_node / self.node_gpus)),
        )

    def crosses(self, ranks: int, stride: int = 1) -> bool:
        """Whether a group spans several nodes."""
        return stride * (ranks - 1) >= self.node_gpus

    def time_s(self, collective: str, sizes: Floats, ranks: int, stride: int) -> Floats:
        """Seconds for each size."""
        key = (collective, ranks, stride)
        if key not in self._tables:
            found = _table(collective, self.group(ranks, stride))
            self._tables[key] = found, found.tolist()
        table, numbers = self._tables[key]
        if sizes.size == 1:
            return np.full_like(sizes, _time_s(float(sizes.flat[0]), numbers))
        log = np.log2(np.maximum(sizes, 2.0**SMALLEST_LOG))
        times = 2.0 ** np.interp(log, _LOGS, table)
        # Beyond the table everything is bandwidth.
        times = np.where(log > LARGEST_LOG, times * sizes / 2.0**LARGEST_LOG, times)
        return np.where(sizes > 0, times, 0.0)

    def link(self, ranks: int, stride: int) -> str:
        """The links inside the node, unless the group spans several."""
        return "the network" if self.crosses(ranks, stride) else self.inner_link

    def bandwidth_bytes_per_s(self, ranks: int, stride: int) -> float:
        """A GPU's NVLink, or its share of the node's adapters."""
        if self.crosses(ranks, stride):
            return self.system.network_bytes_per_s / self.node_gpus
        return self.system.intra_bytes_per_s

    def with_node_gpus(self, count: int) -> NcclModel:
        """The same GPUs in nodes of `count`, with as many adapters for each; a rack stays whole."""
        if count == self.node_gpus or self.system.gpu.domain_gpus:
            return self
        share = count / self.node_gpus
        system = replace(
            self.system,
            ranks=count,
            network_bytes_per_s=self.system.network_bytes_per_s * share,
            nics=max(1, round(self.system.nics * share)),
        )
        return replace(self, node_gpus=count, system=system)

    def with_network(self, network: str) -> NcclModel:
        """The same nodes with another kind of network."""
        if network not in NETWORKS:
            raise UsageError(f"there is no kind of network {network!r}; known: {', '.join(NETWORKS)}")
        return replace(self, system=replace(self.system, network=NETWORKS[network]))

    def with_network_text(self, words: str) -> NcclModel:
        """The same nodes with a network given as text; what the text does not say stays."""
        known = read_system(self.system.gpu.name, words, 2 * self.node_gpus, 2)
        if self.system.gpu.domain_gpus:  # each GPU of a rack has its own adapter, whatever a server has
            return replace(self, system=replace(self.system, network=known.network))
        return replace(
            self,
            system=replace(
                self.system,
                network=known.network,
                network_bytes_per_s=known.network_bytes_per_s,
                nics=known.nics,
            ),
        )


def _time_s(size_bytes: float, table: list[float]) -> float:
    """The time of a single size, without the cost of arrays."""
    if size_bytes <= 0:
        return 0.0
    log = math.log2(max(size_bytes, 2.0**SMALLEST_LOG))
    if log > LARGEST_LOG:
        return float(2.0 ** table[-1] * size_bytes / 2.0**LARGEST_LOG)
    place = min(int(log) - SMALLEST_LOG, len(table) - 2)
    least = table[place]
    return float(2.0 ** (least + (table[place + 1] - least) * (log - SMALLEST_LOG - place)))


def nccl_model(topology: Topology) -> NcclModel:
    """Two nodes' worth of a topology as NCCL sees it, to be scaled to any size."""
    inner = [block for block in topology.blocks if block.medium != "network"]
    if len(inner) == len(topology.blocks) > 1:
        inner = list(topology.blocks[:-1])
    node_gpus = math.prod(block.size for block in inner)
    system = system_of(topology, range(min(topology.num_devices, 2 * node_gpus)))
    network = system.network_bytes_per_s
    if system.domains == 1:
        # One node says nothing about the network: take the usual adapters of such a machine.
        network = system.gpu.nic_bytes_per_s * node_gpus
    # If a domain spans servers (NVL72) every GPU has its own adapter.
    nics = node_gpus if system.gpu.domain_gpus else system.nics
    one_node = replace(system, network_bytes_per_s=network, ranks=node_gpus, domains=1, nics=nics)
    return NcclModel(node_gpus, one_node, _inner_link(inner, alone=len(topology.blocks) == 1))


def _inner_link(inner: Sequence[Block], *, alone: bool) -> str:
    """The links inside a node in words: the medium, if the topology names it."""
    media = {block.medium for block in inner if block.size > 1}
    medium = media.pop() if len(media) == 1 else ""
    return MEDIA.get(medium, medium) or ("the network" if alone else "the inner links")


@lru_cache(maxsize=4096)
def _table(collective: str, system: NcclSystem) -> Floats:
    """Logarithms of the time at each size; a larger transfer is never faster."""
    times = np.array([predict_alone(collective, float(size), system).time_s for size in 2.0**_LOGS])
    return np.log2(np.maximum.accumulate(times))
