"""NCCL's estimate of each algorithm and protocol: latency + bytes / bandwidth. It chooses the smallest.

The figures are those of NCCL 2.30 (src/graph/tuning.cc; channels and speeds from src/graph/search.cc), in its own
units: microseconds and GB/s. They are NCCL's estimates; the time a call takes is in `execution`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from choreo.nccl.system.system import NcclSystem
from choreo.nccl.tables import (
    BASE,
    HOP,
    LL_BUS,
    MAX_NVLS_HEADS,
    NVLS_EFFICIENCY,
    NVLS_SPEEDS,
    NVLS_TREE_CHANNEL,
    RING_LL128_CHANNEL,
    TREE_CHANNEL,
    TREE_CORRECTION,
    TREE_LL128_CHANNEL,
)

__all__ = ["ALGORITHMS", "PROTOCOLS", "Option", "algorithms_for", "channels_of", "estimates", "nvls_speed"]

PROTOCOLS = ("LL", "LL128", "Simple")
ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")

# NCCL assumes 24 GB/s for a 200 Gb/s NIC, 48 for 400 Gb/s.
_NIC_PAYLOAD = 0.96
# In a tree over nodes the NICs' traffic shares NVLink and PCIe with the chain inside the node.
_TREE_SHARE = 0.85


@dataclass(frozen=True, slots=True)
class Option:
    """One algorithm with one protocol, and NCCL's figures for it."""

    algorithm: str
    protocol: str
    latency_us: float
    bandwidth_gb_per_s: float  # size over time, for large sizes

    def time_us(self, size_bytes: float, correction: float = 1.0) -> float:
        """NCCL's estimate."""
        return self.latency_us + size_bytes / (1000 * self.bandwidth_gb_per_s * correction)


def algorithms_for(collective: str) -> tuple[str, ...]:
    """The algorithms NCCL has for a collective; point-to-point ones have none."""
    if collective == "all_reduce":
        return ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree")
    if collective in ("all_gather", "reduce_scatter"):
        return ("Ring", "CollNetDirect", "NVLS", "PAT")
    return ("Ring",) if collective in ("broadcast", "reduce") else ()


def channels_of(system: NcclSystem) -> int:
    """Channels of rings and trees: two for each NIC between nodes, two for each pair of links inside one."""
    generation = system.gpu.generation.index
    if system.medium == "pcie":
        return 4 if system.domains == 1 else max(2, min(8, 2 * system.nics))
    links = max(1, round(system.intra_bytes_per_s / (50e9 if generation == 3 else 25e9)))
    inside = min(24, 2 * links)
    if system.domains == 1:
        return inside
    between = 2 * min(system.nics, 16)
    if generation >= 2 and between < 16:
        between *= 2
    return max(2, min(between, 32))


def nvls_speed(system: NcclSystem) -> tuple[int, float]:
    """Heads of the NVLS graph, and the GB/s each can pull from every GPU."""
    heads = min(MAX_NVLS_HEADS, system.ranks_per_domain)
    speeds = NVLS_SPEEDS[system.gpu.generation.index]
    payload = system.payload_bytes_per_s / 1e9
    # 8 x 90 on B200 is within 1 % of what its links carry, so NCCL accepts it.
    speed = next((speed for speed in speeds if speed * heads <= payload * 1.003), payload / heads)
    return heads, speed


def estimates(collective: str, size_bytes: float, system: NcclSystem) -> dict[tuple[str, str], float]:
    """Microseconds NCCL expects of every algorithm and protocol it could use here.

    >>> system = NcclSystem.from_figures("H100", 8, 1)
    >>> found = estimates("all_reduce", 1 << 20, system)
    >>> min(found, key=lambda option: found[option])
    ('Ring', 'LL')
    """
    found: dict[tuple[str, str], float] = {}
    if system.ranks == 1:
        return {("Ring", "Simple"): 0.0}
    for algorithm in algorithms_for(collective):
        if not _available(algorithm, collective, system):
            continue
        for protocol in PROTOCOLS:
            option = _option(algorithm, protocol, collective, system)
            if option is None:
                continue
            correction = 1.0
            power = int(math.log2(size_bytes / 64)) if size_bytes >= 64 else -1
            if algorithm == "Tree" and 0 <= power < 23:
                correction = TREE_CORRECTION[protocol][power]
            if algorithm == "NVLSTree" and 0 <= power < 24 and _blackwell_on_x86(system):
                correction = TREE_CORRECTION[protocol][power]
            plateau = 1.0
            if algorithm == "Ring" and protocol == "Simple" and system.domains > 1 and collective == "all_reduce":
                enough = size_bytes / (channels_of(system) * system.ranks) >= 64
                plateau = (1.9 if system.gpu.generation.index == 0 else 1.4) if enough else 1.0
            time_us = option.time_us(size_bytes, correction) + option.latency_us * (plateau - 1)
            found[algorithm, protocol] = time_us
    return found


def _blackwell_on_x86(system: NcclSystem) -> bool:
    return system.gpu.generation.index == 3 and system.gpu.domain_gpus == 0


def _available(algorithm: str, collective: str, system: NcclSystem) -> bool:
    several = system.domains > 1
    if algorithm == "PAT":
        return several and system.ranks == system.domains
    if algorithm in ("CollNetDirect", "CollNetChain"):
        fits = system.sharp and several and system.ranks_per_domain <= 8
        return fits and (algorithm == "CollNetChain" or system.medium == "nvswitch")
    if algorithm == "NVLS":
        small = collective == "all_reduce" or system.ranks_per_domain <= MAX_NVLS_HEADS
        return system.nvls and system.ranks_per_domain > 1 and small and (not several or system.sharp)
    if algorithm == "NVLSTree":
        return system.nvls and system.ranks_per_domain > 1 and several
    return True


def _option(algorithm: str, protocol: str, collective: str, system: NcclSystem) -> Option | None:
    if protocol != "Simple" and algorithm not in ("Tree", "Ring"):
        return None
    if protocol == "LL128" and (system.medium == "pcie" or (system.domains > 1 and not system.network.ll128)):
        return None
    if system.gpu.generation.name == "CDNA 3" and protocol == "LL128":
        return None
    bandwidth = _bandwidth(algorithm, protocol, collective, system)
    if bandwidth <= 0:
        return None
    return Option(algorithm, protocol, _latency(algorithm, protocol, collective, system), bandwidth)


def _network_gb_per_s(system: NcclSystem) -> float:
    return system.network_bytes_per_s / 1e9 * _NIC_PAYLOAD if system.domains > 1 else math.inf


def _column(system: NcclSystem) -> int:
    """The column of tables by number of nodes: one, two, more."""
    return min(system.domains, 3) - 1


def _ll_gb_per_s(system: NcclSystem) -> float:
    # Over the network the CPU matters: DGX A100 has AMD's, most others Intel's or Arm's.
    generation = system.gpu.generation.index
    row = generation if system.domains == 1 else (1 if generation == 1 else 0)
    return LL_BUS[row][_column(system)]


def _steps(collective: str, ranks: int) -> int:
    """The steps of a ring."""
    if collective in ("broadcast", "reduce"):
        return ranks
    return (2 if collective == "all_reduce" else 1) * (ranks - 1)


def _bandwidth(algorithm: str, protocol: str, collective: str, system: NcclSystem) -> float:
    """Size over time, GB/s; zero where NCCL would not use it."""
    if algorithm == "Ring":
        return _ring_bandwidth(protocol, system) * system.ranks / _steps(collective, system.ranks)
    if algorithm == "Tree":
        return _tree_bandwidth(protocol, system) / 2
    if algorithm in ("NVLS", "NVLSTree"):
        return _nvls_bandwidth(algorithm, collective, system)
    bus = min(system.payload_bytes_per_s / 1e9, _network_gb_per_s(system))
    if algorithm == "PAT":
        return bus * 0.75
    # SHARP: each node sends its data once and receives the sum once.
    if algorithm == "CollNetChain":
        return bus / 2
    ratio = system.ranks_per_domain / max(1, system.nics)
    bus /= ratio - (ratio - 1) / 2
    bus *= 0.85 if system.gpu.generation.index >= 2 else 1.0
    return bus / 2 if collective == "all_reduce" else bus * 0.9


def _ring_bandwidth(protocol: str, system: NcclSystem) -> float:
    bus = min(system.payload_bytes_per_s / 1e9, _network_gb_per_s(system))
    if protocol == "LL":
        return min(bus / 2, _ll_gb_per_s(system))
    if protocol == "LL128":
        channel = RING_LL128_CHANNEL[system.gpu.generation.index][_column(system)]
        return min(bus * 0.92, channels_of(system) * channel)
    return bus


def _tree_bandwidth(protocol: str, system: NcclSystem) -> float:
    nodes, generation, channels = system.domains, system.gpu.generation.index, channels_of(system)
    inside = system.payload_bytes_per_s / 1e9 * (_TREE_SHARE if nodes > 1 else 1.0)
    bus = min(inside, _network_gb_per_s(system) * (2 if nodes == 2 else 1))
    bus = min(bus * 0.92, channels * TREE_CHANNEL[generation][_column(system)])
    if protocol == "LL":
        return min(bus / 3.8, _ll_gb_per_s(system))
    if protocol == "LL128":
        channel = TREE_LL128_CHANNEL[generation][_column(system)]
        return min(bus * (7 / 9 if nodes == 1 else 120 / 128), channels * channel)
    return bus


def _nvls_bandwidth(algorithm: str, collective: str, system: NcclSystem) -> float:
    heads, speed = nvls_speed(system)
    if heads < 2:
        return 0.0
    generation, per_node = system.gpu.generation.index, system.ranks_per_domain
    bus = heads * speed * NVLS_EFFICIENCY[generation] * (heads - 1) / heads
    bus *= 2 if collective == "all_reduce" else (per_node - 1) / per_node
    if algorithm == "NVLSTree":
        bus = min(bus, heads * NVLS_TREE_CHANNEL[generation][_column(system)])
        bus = min(bus, _network_gb_per_s(system) * (2 if system.domains == 2 else 1))
    else:
        bus = min(bus, _network_gb_per_s(system))
    return bus * system.ranks / _steps(collective, system.ranks) if collective == "all_reduce" else bus


def _latency(algorithm: str, protocol: str, collective: str, system: NcclSystem) -> float:
    nodes, column, per_node = system.domains, PROTOCOLS.index(protocol), system.ranks_per_domain
    inside = HOP["pcie" if system.medium == "pcie" else "nvlink"][algorithm][column]
    between = HOP["network"]["Tree" if per_node == 1 and algorithm == "Ring" else algorithm][column]
    # Simple also flushes what the NIC wrote.
    between += system.network.reported_s * 1e6 * (2 if protocol == "Simple" else 1)
    levels = int(math.log2(nodes))
    base = BASE.get(algorithm, (0.0, 0.0, 0.0))[column]
    several = nodes > 1
    if algorithm == "Ring":
        if collective in ("broadcast", "reduce"):
            return base + (between if several else inside)
        steps = _steps(collective, system.ranks)
        crossings = steps * (nodes - 1) / (system.ranks - 1) if several else 0
        if several:
            inside = max(inside, 3.0 if protocol == "Simple" else 1.0)
        return base + (steps - crossings) * inside + crossings * between
    return (
        base
        + {
            "Tree": 2 * ((per_node - 1) * inside + levels * between),
            "CollNetDirect": 2 * (min(1, per_node - 1) * inside + (per_node - 1) * 0.4) + between,
            "CollNetChain": 2 * (per_node - 1) * inside + between,
            "NVLS": inside + (between if several else 0.0),
            "NVLSTree": inside + 2 * levels * between,
            "PAT": levels * (between / 3.5) + system.ranks * 2.8,
        }[algorithm]
    )
