"""A lower bound on NCCL's algorithm on a topology: its own hops, and its own bytes over the narrowest cut.

The model of NCCL knows nodes and what connects them, not every link. Any ring crosses every cut at least once each way,
so in an all_reduce 2 (p - 1) / p of the vector cross the narrowest cut, wherever the ring is laid; with a tree the
whole vector goes up, and down again. A ring's hops are at least as long as the shortest tour of its ranks, a tree's as
twice the way from the rank that is farthest from its root.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

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
MOST_RANKS = 128
ROUNDS = 40  # of the search for weights, after which a step is a sixtieth of the first
CLOSE = 0.999  # of a ring that was found
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
    hops = _hop_figures(topology, taken)
    inside, between = hops.inside_s, hops.between_s
    if collective in ("broadcast", "reduce"):  # calls overlap: one in, one out
        return inside + (between if system.domains > 1 else inside)
    levels = math.ceil(math.log2(system.domains))
    chain = (math.ceil(ranks / system.domains) - 1) * inside
    return {
        # A chunk passes all hops of the ring but one, or twice all but two next to each other: these are at most as
        # long as the average hop for the chunk that takes longest.
        "Ring": rounds * (ranks - 1) / ranks * hops.around_s,
        "Tree": 2 * max(chain + levels * between, hops.radius_s),
        "NVLSTree": 2 * max(levels * between, hops.radius_s),
        "NVLS": max(inside, between),
        "CollNetDirect": max(inside, between),
        "CollNetChain": max(2 * chain, between),
        "PAT": math.ceil(math.log2(ranks)) * between,
    }.get(algorithm, 0.0)


@dataclass(frozen=True, slots=True)
class _Hops:
    """Latencies between ranks: the cheapest hop inside a domain and between two, a lower bound on a ring through all
    ranks, and the longest way to the rank that is nearest to all."""

    inside_s: float
    between_s: float
    around_s: float
    radius_s: float


def _hop_figures(topology: Topology, taken: Ints) -> _Hops:
    inner = inner_blocks(topology)
    domain = taken // math.prod(block.size for block in inner)
    ranks, domains = len(taken), len(np.unique(domain))
    if ranks > MOST_RANKS:
        inside = min((_least_hop(block) for block in inner if block.size > 1), default=0.0)
        outer = topology.blocks[len(inner) :]
        between = min((_least_hop(block) for block in outer if block.size > 1), default=0.0)
        crossings = domains if domains > 1 else 0
        return _Hops(inside, between, (ranks - crossings) * inside + crossings * between, max(inside, between))
    routes = topology.routes(np.repeat(taken, ranks), np.tile(taken, ranks))
    away = (routes.latency_s + 2 * routes.overhead_s).reshape(ranks, ranks)
    away = np.minimum(away, away.T)
    same = domain[:, None] == domain
    others = ~np.eye(ranks, dtype=np.bool_)
    inside, between = (float(away[chosen].min(initial=np.inf)) for chosen in (same & others, ~same))
    inside, between = (latency_s if math.isfinite(latency_s) else 0.0 for latency_s in (inside, between))
    return _Hops(inside, between, _least_ring_s(away.tobytes(), ranks), float(away.max(axis=1).min()))


def _least_hop(block: Block) -> float:
    """The least time between two ports: one link, or one up and one down."""
    links, port = block.links, block.size
    overhead_s = 2 * float(links.overhead_s.min())
    across = (links.src < port) & (links.dst < port)
    if across.any():
        return float(links.latency_s[across].min()) + overhead_s
    up, down = (links.src < port), (links.dst < port)
    return float(links.latency_s[up].min() + links.latency_s[down].min()) + overhead_s


@lru_cache(maxsize=64)  # for the sizes and collectives of a network
def _least_ring_s(latencies: bytes, ranks: int) -> float:
    """A lower bound on a ring through all ranks: the best 1-tree under weights of ranks (Held and Karp 1971).

    A ring is a spanning tree of all ranks but one, and two edges to that one, in which each rank has two edges. Without
    that last condition the least is found at once; weights that punish ranks with more edges bring it near the ring's.
    """
    away = np.frombuffer(latencies).reshape(ranks, ranks)
    if ranks == 2:
        return 2 * float(away[0, 1])
    found = _nearest_first_s(away)
    weights, best, step = np.zeros(ranks), 0.0, float(away.mean()) / 2
    for _ in range(ROUNDS):
        length, edges = _one_tree(away + weights[:, None] + weights)
        best = max(best, length - 2 * float(weights.sum()))
        if (edges == 2).all() or best >= CLOSE * found:
            break
        weights += step * (edges - 2)
        step *= 0.9
    return best


def _nearest_first_s(away: Floats) -> float:
    """The length of a ring that always goes on to the nearest rank."""
    left, at, total = np.ones(len(away), np.bool_), 0, 0.0
    left[0] = False
    while left.any():
        to = int(np.where(left, away[at], np.inf).argmin())
        total, at = total + float(away[at, to]), to
        left[to] = False
    return total + float(away[at, 0])


def _one_tree(away: Floats) -> tuple[float, Ints]:
    """The least spanning tree of all ranks but the first (Prim 1957) with its two cheapest edges; each rank's edges."""
    ranks = len(away)
    edges = np.zeros(ranks, np.int64)
    first, second = np.argsort(away[0, 1:], kind="stable")[:2] + 1
    edges[[0, first, second]] += (2, 1, 1)
    total = float(away[0, first] + away[0, second])
    nearest, parent, left = away[1].copy(), np.ones(ranks, np.int64), np.ones(ranks, np.bool_)
    left[:2] = False
    while left.any():
        node = int(np.where(left, nearest, np.inf).argmin())
        total += float(nearest[node])
        edges[[node, parent[node]]] += 1
        left[node] = False
        closer = away[node] < nearest
        nearest, parent = np.where(closer, away[node], nearest), np.where(closer, node, parent)
    return total, edges
