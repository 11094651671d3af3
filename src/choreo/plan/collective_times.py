"""How long a collective takes on a strided group of a cluster's devices, as NCCL would run it.

A group is every `stride`-th device, `ranks` of them: tensor-parallel ranks are neighbours, data-parallel ranks stand
tp x cp apart, and all groups of a kind work at once, so that each has the share of the network of the devices it
stands on. Times are tabulated over the logarithm of the size, once a group, and read by interpolation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from choreo.errors import UsageError
from choreo.hardware import Device
from choreo.nccl import NETWORKS, NcclSystem, find_gpu, predict
from choreo.nccl.placed import system_of
from choreo.topology import Topology, get_topology

__all__ = ["Cluster", "collective_time", "get_cluster"]

Floats: TypeAlias = npt.NDArray[np.float64]

SMALLEST_LOG, LARGEST_LOG, PER_OCTAVE = 8, 38, 1
_SIZES = 2.0 ** np.arange(SMALLEST_LOG, LARGEST_LOG + 1 / PER_OCTAVE, 1 / PER_OCTAVE)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices in nodes, and what joins them: two nodes' worth of a system as NCCL sees it, to be scaled to any size."""

    name: str
    device: str | Device  # or its name
    node_gpus: int  # devices of an NVLink domain (or a torus: all of them)
    system: NcclSystem | None  # of one node and its share of the network; None where it is not NVIDIA's
    link_bytes_per_s: float  # a device's, for machines without NCCL: all its links together
    hop_s: float
    faster: float = 1.0  # what if: links of so many times the bandwidth,
    delay: float = 1.0  # and of so many times the latency

    def group(self, ranks: int, stride: int = 1) -> NcclSystem | None:
        """The system that a group of ranks, `stride` devices apart, runs on."""
        if self.system is None:
            return None
        per_node = min(ranks, max(1, self.node_gpus // stride))
        domains = math.ceil(ranks / per_node)
        share = self.system.network_bytes_per_s / self.node_gpus
        return replace(
            self.system,
            ranks=ranks,
            domains=domains,
            network_bytes_per_s=share * per_node,
            nics=max(1, round(self.system.nics * per_node / self.node_gpus)),
        )

    def crosses(self, ranks: int, stride: int = 1) -> bool:
        """Whether a group leaves the node."""
        return stride * (ranks - 1) >= self.node_gpus

    def with_network(self, network: str) -> Cluster:
        """The same nodes joined by another kind of network."""
        if network not in NETWORKS:
            raise UsageError(f"there is no kind of network {network!r}; known: {', '.join(NETWORKS)}")
        if self.system is None:
            return self
        return replace(self, system=replace(self.system, network=NETWORKS[network]))


def get_cluster(
    cluster: str | Topology | Cluster, *, device: Device | None = None, network: str | None = None
) -> Cluster:
    """A cluster from a machine of the catalogue, text of the topology language, a Topology, or a Cluster.

    `device` puts other accelerators into it, `network` (of simulate.nccl's NETWORKS) joins its nodes otherwise.
    """
    if isinstance(cluster, Cluster):
        found = cluster
    elif isinstance(cluster, Topology):
        found = _of_topology(cluster)
    else:
        found = _of_text(cluster)
    if device is not None:
        found = replace(found, device=device)
    return found if network is None else found.with_network(network)


@lru_cache(maxsize=64)
def _of_text(text: str) -> Cluster:
    # Two nodes are enough to see the network; the step says how many there are.
    topology = None
    if ":" not in text and "(" not in text and "/" not in text and "." not in text:
        try:
            topology = get_topology(f"{text}:2")
        except UsageError:
            topology = None
    return _of_topology(topology if topology is not None else get_topology(text), text)


def _of_topology(topology: Topology, name: str | None = None) -> Cluster:
    title = name or topology.name
    inner = [block for block in topology.blocks if block.medium != "network"]
    ici = any(block.medium == "ici" for block in topology.blocks) or topology.device.upper().startswith("TPU")
    if ici or (topology.device and find_gpu(topology.device) is None):
        links = topology.links
        out = np.bincount(links.src, weights=links.bandwidth_bytes_per_s, minlength=topology.num_nodes)
        latency_s = float(np.median(links.latency_s))
        return Cluster(title, topology.device, 1 << 30, None, float(out[: topology.num_devices].min()), latency_s)
    whole = len(inner) == len(topology.blocks)
    if whole and len(topology.blocks) > 1:
        inner = list(topology.blocks[:-1])
    node_gpus = math.prod(block.size for block in inner)
    system = system_of(topology, range(min(topology.num_devices, 2 * node_gpus)))
    nodes = system.domains
    network = system.network_bytes_per_s
    if nodes == 1:
        # One node says nothing of a network: the usual adapters of such a machine.
        network = system.gpu.nic_bytes_per_s * node_gpus
    # Where a domain spans servers (NVL72) every device has its own adapter.
    nics = node_gpus if system.gpu.domain_gpus else system.nics
    system = replace(system, network_bytes_per_s=network, ranks=node_gpus, domains=1, nics=nics)
    return Cluster(title, topology.device, node_gpus, system, system.intra_bytes_per_s, 1e-6)


def collective_time(
    cluster: Cluster,
    collective: str,
    size_bytes: float | Sequence[float] | Floats,
    ranks: int,
    stride: int = 1,
) -> Floats:
    """Seconds for each size; sizes as nccl-tests counts them (all_gather and reduce_scatter: of all ranks together)."""
    sizes = np.asarray(size_bytes, np.float64)
    if ranks <= 1:
        return np.zeros_like(sizes)
    if cluster.faster != 1 or cluster.delay != 1:
        # What the smallest message takes is latency, the rest bandwidth.
        plain = replace(cluster, faster=1.0, delay=1.0)
        least = collective_time(plain, collective, np.minimum(sizes, _SIZES[0]), ranks, stride)
        rest = collective_time(plain, collective, sizes, ranks, stride) - least
        return least * cluster.delay + rest / cluster.faster
    system = cluster.group(ranks, stride)
    if system is None:
        return _torus(cluster, collective, sizes, ranks)
    table = _table(collective, system)
    log = np.log2(np.maximum(sizes, _SIZES[0]))
    times = 2.0 ** np.interp(log, np.log2(_SIZES), table)
    # Beyond the table the last slope: a transfer that is all bandwidth.
    times = np.where(log > LARGEST_LOG, times * sizes / _SIZES[-1], times)
    return np.where(sizes > 0, times, 0.0)


@lru_cache(maxsize=4096)
def _table(collective: str, system: NcclSystem) -> Floats:
    """Logarithms of the time at each of the sizes; a larger transfer is never quicker."""
    times = np.array([predict(collective, float(size), system).time_s for size in _SIZES])
    return np.log2(np.maximum.accumulate(times))


def _torus(cluster: Cluster, collective: str, sizes: Floats, ranks: int) -> Floats:
    """Rings along every dimension at once: what leaves a device over all its links, and a hop for each step."""
    steps = 2 * (ranks - 1) if collective == "all_reduce" else ranks - 1
    if collective == "sendrecv":
        return np.asarray(cluster.hop_s + sizes / (cluster.link_bytes_per_s / 6))
    moved = sizes * steps / ranks
    if collective == "all_to_all":
        moved = moved * max(1.0, ranks ** (1 / 3) / 4)
    hops = 3 * ranks ** (1 / 3) * (2 if collective == "all_reduce" else 1)
    return np.asarray(hops * cluster.hop_s + moved / cluster.link_bytes_per_s)
