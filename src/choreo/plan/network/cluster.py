"""A cluster: its device, how many there are, and the model of its network, which depends on the topology.

nccl        NVIDIA's machines, and blocks that are built like one: GPUs in nodes, and a network between the nodes
torus       TPUs, and other accelerators with links of their own
simulated   everything else: rings, meshes, tori, and graphs of links
this-machine    the processor and shared memory of the host that plans
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from choreo.errors import PlanError, UsageError
from choreo.hardware import Device, get_device
from choreo.nccl import find_gpu
from choreo.plan.network.model import Floats, NetworkModel
from choreo.plan.network.nccl import NcclModel, nccl_model
from choreo.plan.network.simulated import SimulatedModel
from choreo.plan.network.this_machine import THIS_MACHINE, ThisMachineModel, this_machine
from choreo.plan.network.torus import torus_model
from choreo.topology import Topology, get_topology

__all__ = ["Cluster", "collective_time", "get_cluster"]

# The building blocks of a node of GPUs, and of the network between nodes.
NODE_KINDS = ("switch", "fat_tree", "fully_connected")
NODE_MEDIA = ("nvlink", "pcie", "network")
SMALLEST = 256.0  # bytes: a message of this size takes latency alone


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices and the network between them."""

    name: str
    device: str | Device  # or its name
    network: NetworkModel
    gpus: int | None = None  # number of devices; None for a machine's bare name, which stands for any number
    faster: float = 1.0  # what if: links with this many times the bandwidth,
    delay: float = 1.0  # and this many times the latency

    @property
    def node_gpus(self) -> int:
        """Devices per node."""
        return self.network.node_gpus

    def crosses(self, ranks: int, stride: int = 1) -> bool:
        """Whether a group spans several nodes."""
        return stride * (ranks - 1) >= self.node_gpus

    def with_network(self, network: str) -> Cluster:
        """The same nodes with another kind of network; nothing changes where NCCL does not run."""
        if not isinstance(self.network, NcclModel):
            return self
        return replace(self, network=self.network.with_network(network))

    def with_network_text(self, words: str) -> Cluster:
        """The same nodes with a network given as text, like "4x200G IB" or "EFA p5"; an empty text changes nothing.

        >>> round(get_cluster("dgx-a100").with_network_text("4x200G IB").network.bandwidth_bytes_per_s(2, 8) / 1e9, 1)
        12.5
        """
        if not words or not isinstance(self.network, NcclModel):
            return self
        return replace(self, network=self.network.with_network_text(words))

    def with_node_gpus(self, count: int) -> Cluster:
        """The same devices in nodes of `count`; nothing changes where NCCL does not run.

        >>> get_cluster("dgx-a100").with_node_gpus(4).node_gpus, get_cluster("gb200-nvl72").with_node_gpus(4).node_gpus
        (4, 72)
        """
        if not isinstance(self.network, NcclModel):
            return self
        return replace(self, network=self.network.with_node_gpus(count))

    def for_ranks(self, ranks: int) -> Cluster:
        """The cluster as a job with that many ranks finds it: ranks of one host share its cores."""
        if not isinstance(self.network, ThisMachineModel):
            return self
        return replace(self, network=replace(self.network, ranks=ranks))

    def check_gpus(self, gpus: int) -> None:
        """Refuse more devices than there are."""
        if self.gpus is None or gpus <= self.gpus:
            return
        message = f"{self.name} has {self.gpus} devices, not {gpus}; take {self.gpus} of them or fewer"
        if machine := re.fullmatch(r"([\w.-]+):(\d+)", self.name):
            nodes = math.ceil(gpus * int(machine[2]) / self.gpus)
            message += f", or {machine[1]}:{nodes}, or {machine[1]} for as many as are asked for"
        else:
            message += ", or write larger blocks"
        raise PlanError(message)

    def chip(self, device: str | Device | None = None) -> Device:
        """What a device can do: the given one, or the cluster's own."""
        if device is not None:
            return get_device(device)
        if not self.device:
            raise UsageError(
                f"{self.name} does not say what its devices are; name one: device (--device) H100-80G-SXM, "
                "A100-80G-SXM, TPU-v5p, ..., or a calibrated file"
            )
        return get_device(self.device)


def get_cluster(
    cluster: str | Topology | Cluster, *, device: Device | None = None, network: str | None = None
) -> Cluster:
    """A cluster from a machine's name, text of the topology language, a file, a Topology or a Cluster.

    `device` puts other accelerators into it; `network` (one of choreo.nccl.NETWORKS) joins its nodes otherwise.

    >>> found = get_cluster("hgx-h100:4")
    >>> found.gpus, found.node_gpus, found.network.name
    (32, 8, 'nccl')
    """
    if isinstance(cluster, Cluster):
        found = cluster
    elif isinstance(cluster, Topology):
        found = _of_topology(cluster, cluster.name, cluster.num_devices)
    elif str(cluster) == THIS_MACHINE:
        found = Cluster(THIS_MACHINE, *this_machine())
    else:
        found = _of_text(str(cluster))
    if device is not None:
        found = replace(found, device=device)
    return found if network is None else found.with_network(network)


@lru_cache(maxsize=64)
def _of_text(text: str) -> Cluster:
    if not any(mark in text for mark in ":(/."):
        # A bare name: two nodes show the network, and the job gives their number.
        try:
            return _of_topology(get_topology(f"{text}:2"), text, None)
        except UsageError:
            pass
    topology = get_topology(text)
    return _of_topology(topology, text, topology.num_devices)


def _of_topology(topology: Topology, name: str, gpus: int | None) -> Cluster:
    return Cluster(name, topology.device, _network_model(topology), gpus)


def _network_model(topology: Topology) -> NetworkModel:
    ici = any(block.medium == "ici" for block in topology.blocks) or topology.device.upper().startswith("TPU")
    gpu = topology.device and find_gpu(topology.device) is not None
    if ici or (topology.device and not gpu):
        return torus_model(topology)
    if gpu or all(block.kind in NODE_KINDS or block.medium in NODE_MEDIA for block in topology.blocks):
        return nccl_model(topology)
    return SimulatedModel(topology)


def collective_time(
    cluster: Cluster,
    collective: str,
    size_bytes: float | Sequence[float] | Floats,
    ranks: int,
    stride: int = 1,
) -> Floats:
    """Seconds for each size. Sizes are as in nccl-tests: for all_gather and reduce_scatter, of all ranks together.

    >>> float(collective_time(get_cluster("hgx-h100"), "all_reduce", 1e9, ranks=1))
    0.0
    """
    sizes = np.asarray(size_bytes, np.float64)
    if ranks <= 1:
        return np.zeros_like(sizes)
    times = cluster.network.time_s(collective, sizes, ranks, stride)
    if cluster.faster != 1 or cluster.delay != 1:
        # The time of the smallest message is latency, the rest bandwidth.
        least = cluster.network.time_s(collective, np.minimum(sizes, SMALLEST), ranks, stride)
        times = least * cluster.delay + (times - least) / cluster.faster
    return times
