"""A lower bound on NCCL's algorithm on a topology: its own hops, and its own bytes over the narrowest cut.

The model of NCCL knows nodes and what connects them, not every link. Any ring crosses every cut at least once each way,
so in an all_reduce 2 (p - 1) / p of the vector cross the narrowest cut, wherever the ring is laid; with a tree the
whole vector goes up, and down again. A ring is at least as long as the minimum spanning tree of its ranks.
"""

from __future__ import annotations

import math

import numpy as np

from choreo.bound import Bound, bound
from choreo.nccl import Prediction
from choreo.nccl.constants import DEFAULT
from choreo.nccl.system.placed import inner_blocks
from choreo.nccl.system.system import NcclSystem
from choreo.topology import Block, Topology
from choreo.topology.graph import Floats, Ints

__all__ = ["least_time"]

# With more ranks than this, hops are taken from the blocks and not from every pair.
MOST_RANKS = 64
# The fraction of data in what crosses a link: LL sends a flag with every four bytes, LL128 one per line.
DATA = {"LL": 0.5, "LL128": 120 / 128, "Simple": 1.0}


def least_time(topology: Topology, devices: list[int], system: NcclSystem, chosen: Prediction, least: Bound) -> float:
    """The least time of NCCL's choice on these links, for the collective whose bound is `least`."""
    if len(devices) < 2 or not least.size_bytes:
        return 0.0
    hops_s = _hops_s(least.collective, topology, np.asarray(devices, np.int64), system, chosen.algorithm)
    moving_s = max(least.latency_bound_s, hops_s, _bytes_s(topology, devices, system, chosen, least))
    return DEFAULT.launch * system.gpu.generation.launch_s + moving_s


def _bytes_s(topology: Topology, devices: list[int], system: NcclSystem, chosen: Prediction, least: Bound) -> float:
    """The bytes of any schedule, and those of this algorithm over the narrowest cut."""
    found = [(least, 1.0)]
    if chosen.algorithm != "P2P":
        ways = [bound(kind, topology, least.size_bytes, root=0, devices=devices) for kind in ("broadcast", "reduce")]
        times = 1.0 if least.collective in ("all_reduce", "broadcast", "reduce") else (len(devices) - 1) / len(devices)
        rounds = 2 * (len(devices) - 1) / len(devices)
        times = rounds if (chosen.algorithm, least.collective) == ("Ring", "all_reduce") else times
        found += [(way, times) for way in ways]
    return max(
        times * way.bandwidth_bound_s / (_efficiency(topology, system, way) * DATA[chosen.protocol])
        for way, times in found
    )


def _efficiency(topology: Topology, system: NcclSystem, narrowest: Bound) -> float:
    """The fraction of a cut's bandwidth that carries data: minus headers inside a domain, minus the NIC's between."""
    dimension = topology.dimension_of_links()[list(narrowest.cut.links)]
    if (dimension >= len(inner_blocks(topology))).any():
        return DEFAULT.network * system.network.efficiency * system.gpu.generation.nic_reach
    return system.gpu.generation.payload


def _hops_s(collective: str, topology: Topology, taken: Ints, system: NcclSystem, algorithm: str) -> float:
    ranks, rounds = len(taken), 2 if collective == "all_reduce" else 1
    inside, between, around = _hop_figures(topology, taken)
    if collective in ("broadcast", "reduce"):  # calls overlap: one in, one out
        return inside + (between if system.domains > 1 else inside)
    match algorithm:
        case "Ring":
            return rounds * around
        case "Tree":
            levels = math.ceil(math.log2(system.domains))
            return 2 * ((math.ceil(ranks / system.domains) - 1) * inside + levels * between)
        case "PAT":
            return math.ceil(math.log2(ranks)) * between
    return 0.0


def _hop_figures(topology: Topology, taken: Ints) -> tuple[float, float, float]:
    """The cheapest hop inside a domain, the cheapest between two, and the least sum of all hops of a ring but one."""
    inner = inner_blocks(topology)
    domain = taken // math.prod(block.size for block in inner)
    ranks, domains = len(taken), len(np.unique(domain))
    if ranks > MOST_RANKS:
        inside = min((_least_hop(block) for block in inner if block.size > 1), default=0.0)
        outer = topology.blocks[len(inner) :]
        between = min((_least_hop(block) for block in outer if block.size > 1), default=0.0)
        return inside, between, (ranks - domains) * inside + (domains - 1) * between
    routes = topology.routes(np.repeat(taken, ranks), np.tile(taken, ranks))
    away = (routes.latency_s + 2 * routes.overhead_s).reshape(ranks, ranks)
    away = np.minimum(away, away.T)
    same = domain[:, None] == domain
    others = ~np.eye(ranks, dtype=np.bool_)
    inside, between = (float(away[chosen].min(initial=np.inf)) for chosen in (same & others, ~same))
    inside, between = (latency_s if math.isfinite(latency_s) else 0.0 for latency_s in (inside, between))
    return inside, between, _spanning_tree_s(away)


def _least_hop(block: Block) -> float:
    """The least time between two ports: one link, or one up and one down."""
    links, port = block.links, block.size
    overhead_s = 2 * float(links.overhead_s.min())
    across = (links.src < port) & (links.dst < port)
    if across.any():
        return float(links.latency_s[across].min()) + overhead_s
    up, down = (links.src < port), (links.dst < port)
    return float(links.latency_s[up].min() + links.latency_s[down].min()) + overhead_s


def _spanning_tree_s(away: Floats) -> float:
    """The length of the minimum spanning tree (Prim 1957)."""
    nearest, left = away[0].copy(), np.ones(len(away), np.bool_)
    left[0], total = False, 0.0
    while left.any():
        node = int(np.where(left, nearest, np.inf).argmin())
        total += float(nearest[node])
        left[node] = False
        nearest = np.minimum(nearest, away[node])
    return total
