"""A cluster as NCCL sees it: GPUs in NVLink domains, joined by a network.

A *domain* is what NCCL calls a node: the GPUs that reach each other over NVLink (or PCIe). On most machines it is a
server; on NVL72 it is a rack of 18 of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from choreo.errors import UsageError
from choreo.nccl.system.gpus import GPUS, Gpu, find_gpu, nearest_gpu

__all__ = ["MEDIA", "NETWORKS", "NcclSystem", "NetworkKind"]

MEDIA = ("nvswitch", "nvlink", "pcie")
# Fractions of a PCIe slot's bandwidth that GPUs reach between them; published machines vary by more than
# 2x around the second.
PCIE_PAIR, PCIE_SHARED = 0.82, 0.5


@dataclass(frozen=True, slots=True)
class NetworkKind:
    """A kind of network: what a message between two nodes costs, and how much of the wire carries payload."""

    name: str
    latency_s: float  # one hop of a small message, from one GPU's buffer to another's
    efficiency: float  # payload over line rate for large messages
    ll128: bool = True  # NCCL's 128-byte protocol needs stores to arrive in order
    line_s: float = 0.3e-6  # for each additional channel of LL, whose lines the host's proxy checks one by one
    ring_nodes: int = 0  # its tuner plug-in keeps to rings for all_reduce over three to this many nodes
    reported_s: float = 0.0  # latency the network's plug-in tells NCCL, which then prefers fewer round trips


# Latency: half of what a small all_reduce over two nodes takes beyond its hops inside the nodes. InfiniBand and RoCE do
# GPUDirect RDMA from the NIC; EFA's reliable datagrams cost more (p5), twice that without the second generation's
# hardware (p3dn, p4d); GPUDirect-TCPX(O) and sockets pass through the host. Efficiency: 4 KiB packets and their
# headers, credits and acknowledgements; "24 GB/s of a 200 Gb/s NIC" is what NCCL's authors count on. That AWS's tuner
# keeps to rings was read in NCCL's log on four p5en nodes, and four p6 nodes behave so (stas00/ml-engineering).
NETWORKS: dict[str, NetworkKind] = {
    network.name: network
    for network in (
        NetworkKind("ib", 4.5e-6, 0.965),
        NetworkKind("roce", 6e-6, 0.955, line_s=0.5e-6),
        NetworkKind("slingshot", 9e-6, 0.92, line_s=0.8e-6),
        NetworkKind("efa", 26e-6, 0.965, line_s=1.6e-6, ring_nodes=8, reported_s=35e-6),
        NetworkKind("efa1", 65e-6, 0.84, ll128=False, line_s=3.5e-6, reported_s=75e-6),
        NetworkKind("tcpx", 53e-6, 0.93, ll128=False, line_s=1e-6, reported_s=50e-6),
        NetworkKind("tcp", 40e-6, 0.75, ll128=False, line_s=1e-6),
    )
}


@dataclass(frozen=True, slots=True)
class NcclSystem:
    """Ranks, where they are, and what joins them. Bandwidths are one direction, in bytes a second."""

    gpu: Gpu
    ranks: int
    domains: int
    intra_bytes_per_s: float  # a GPU's link into its domain, as the datasheet has it
    medium: str  # one of MEDIA
    network: NetworkKind
    network_bytes_per_s: float  # per domain, all its NICs together
    nics: int  # per domain
    nvls: bool = False  # NVLink SHARP: the NVSwitch reduces and multicasts
    sharp: bool = False  # InfiniBand SHARP: the network's switches reduce
    host_overhead_s: float = 0.0  # what the program that measures adds to a call

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.domains < 1 or self.ranks < self.domains:
            raise UsageError(
                f"{self.ranks} ranks cannot be spread over {self.domains} NVLink domains; give each at least one rank"
            )
        if self.medium not in MEDIA:
            raise UsageError(f"there is no medium {self.medium!r} inside a node; known: {', '.join(MEDIA)}")
        if not (self.intra_bytes_per_s > 0 and (self.domains == 1 or self.network_bytes_per_s > 0)):
            raise UsageError(
                f"bandwidths must be more than zero, not {self.intra_bytes_per_s:g} inside a node and "
                f"{self.network_bytes_per_s:g} between nodes"
            )

    @property
    def ranks_per_domain(self) -> int:
        """The ranks of the fullest domain."""
        return math.ceil(self.ranks / self.domains)

    @property
    def payload_bytes_per_s(self) -> float:
        """A GPU's link into its domain, as NCCL counts it: without the headers of NVLink packets.

        Over PCIe two GPUs get most of a slot; more of them share root ports and the link between the sockets.
        """
        if self.medium == "pcie":
            return self.intra_bytes_per_s * (PCIE_PAIR if self.ranks_per_domain <= 2 else PCIE_SHARED)
        return self.intra_bytes_per_s * self.gpu.generation.payload

    @property
    def topology(self) -> str:
        """The system in the topology language, each GPU with its share of the network."""
        per_domain = self.ranks_per_domain
        block = "switch" if self.medium != "nvlink" else "fully_connected"
        link = self.intra_bytes_per_s
        if block == "fully_connected":
            link /= max(1, per_domain - 1)
        latency = "500ns" if self.medium != "pcie" else "1us"
        inner = f"{block}({per_domain}, {_bandwidth(link)}, {latency})"
        if self.domains == 1:
            return inner
        share = _bandwidth(self.network_bytes_per_s / per_domain)
        # Through a switch a message takes two links.
        outer = f"switch({self.domains}, {share}, {self.network.latency_s / 2 * 1e6:g}us)"
        return outer if per_domain == 1 else f"{inner} x {outer}"

    @classmethod
    def from_figures(
        cls,
        gpu: str | Gpu | None = None,
        gpus_per_node: int | None = None,
        nodes: int = 1,
        *,
        ranks: int | None = None,
        intra_bandwidth_bytes_per_s: float | None = None,
        medium: str | None = None,
        network_bandwidth_bytes_per_gpu: float | None = None,
        network_bandwidth_bytes_per_node: float | None = None,
        nics_per_node: int | None = None,
        network: str | NetworkKind | None = None,
        nvls: bool | None = None,
        sharp: bool = False,
        multi_node_nvlink: bool | None = None,
        host_overhead_s: float = 0.0,
    ) -> NcclSystem:
        """A system from the figures that are known; the GPU's usual machine fills in the rest.

        The default GPU is the one whose NVLink is nearest to `intra_bandwidth_bytes_per_s`. `gpus_per_node` counts the
        GPUs in use. `nodes` are servers: with `multi_node_nvlink` (the default for GB200 and GB300) the servers of a
        rack of 72 GPUs make one domain.
        """
        kind = _gpu(gpu, intra_bandwidth_bytes_per_s, medium)
        if ranks is None:
            ranks = (gpus_per_node or kind.gpus_per_node) * nodes
        if ranks < nodes:
            nodes = max(1, ranks)
        per_node = gpus_per_node or math.ceil(ranks / nodes)
        nics = nics_per_node or max(1, min(per_node, kind.gpus_per_node))
        network_bytes_per_s = network_bandwidth_bytes_per_node
        if network_bytes_per_s is None:
            network_bytes_per_s = (network_bandwidth_bytes_per_gpu or kind.nic_bytes_per_s) * per_node
        spans = kind.domain_gpus > 0 if multi_node_nvlink is None else multi_node_nvlink
        domains = nodes
        if spans and nodes > 1:
            domain_gpus = kind.domain_gpus or 72
            domains = min(nodes, math.ceil(ranks / domain_gpus))
            network_bytes_per_s *= nodes / domains
            nics = math.ceil(nics * nodes / domains)
        intra_bytes_per_s = intra_bandwidth_bytes_per_s
        if medium is None:
            if kind.link_bytes_per_s == 0 and intra_bytes_per_s is None:
                medium = "pcie"
            else:
                medium = "nvswitch" if kind.switched else "nvlink"
        if intra_bytes_per_s is None:
            intra_bytes_per_s = kind.pcie_bytes_per_s if medium == "pcie" else kind.link_bytes_per_s
        if isinstance(network, str) or network is None:
            name = network or "ib"
            if name == "efa" and kind.generation.index < 2:
                name = "efa1"
            if name not in NETWORKS:
                raise UsageError(f"there is no kind of network {name!r}; known: {', '.join(NETWORKS)}")
            network = NETWORKS[name]
        can_reduce = medium == "nvswitch" and kind.generation.nvls_peak > 0
        return cls(
            gpu=kind,
            ranks=ranks,
            domains=domains,
            intra_bytes_per_s=intra_bytes_per_s,
            medium=medium,
            network=network,
            network_bytes_per_s=network_bytes_per_s,
            nics=nics,
            nvls=can_reduce if nvls is None else nvls and can_reduce,
            sharp=sharp,
            host_overhead_s=host_overhead_s,
        )


def _gpu(gpu: str | Gpu | None, intra_bytes_per_s: float | None, medium: str | None) -> Gpu:
    if isinstance(gpu, Gpu):
        return gpu
    if gpu is not None:
        found = find_gpu(gpu)
        if found is None:
            raise UsageError(f"no GPU is known by the name {gpu!r}; known: {', '.join(GPUS)}")
        return found
    if medium == "pcie":
        return GPUS["A100-PCIE"]
    return nearest_gpu(intra_bytes_per_s)


def _bandwidth(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.6g}GB/s"
