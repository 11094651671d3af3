"""The slow, obvious twin of the bound: every set of nodes, every partition, every way, in fractions.

What all_to_all and send_recv take at best is a linear program here too, but another one: a flow for every pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

import numpy as np

from choreo.bound import bound
from choreo.topology import Topology, get_topology

ZERO = Fraction(0)


@dataclass(frozen=True)
class Arc:
    """A live link: nodes, GB/s, seconds."""

    src: int
    dst: int
    bandwidth: Fraction
    latency_s: float


def arcs_of(topology: Topology) -> list[Arc]:
    """The links that carry something."""
    links = topology.links
    live = np.flatnonzero(links.bandwidth_bytes_per_s > 0).tolist()
    return [
        Arc(int(links.src[at]), int(links.dst[at]), gigabytes(topology, at), float(links.latency_s[at])) for at in live
    ]


def gigabytes(topology: Topology, link: int) -> Fraction:
    """The bandwidth of a link, of which whole MB/s are kept."""
    return Fraction(round(topology.links.bandwidth_bytes_per_s[link] / 1e6), 1000)


def subsets(nodes: Sequence[int]) -> Iterator[frozenset[int]]:
    for size in range(len(nodes) + 1):
        yield from map(frozenset, combinations(nodes, size))


def leaving(arcs: Sequence[Arc], inside: frozenset[int]) -> Fraction:
    return sum((arc.bandwidth for arc in arcs if arc.src in inside and arc.dst not in inside), ZERO)


def entering(arcs: Sequence[Arc], inside: frozenset[int]) -> Fraction:
    return sum((arc.bandwidth for arc in arcs if arc.src not in inside and arc.dst in inside), ZERO)


def must_leave(
    collective: str, inside: frozenset[int], by_rank: Sequence[int], root: int = 0, weights: Sequence[int] | None = None
) -> int:
    """How many units must leave a set of nodes: vectors or shares, as the collective counts."""
    ranks = len(by_rank)
    within = [rank for rank, device in enumerate(by_rank) if device in inside]
    without = [rank for rank, device in enumerate(by_rank) if device not in inside]
    if not within or not without:
        return 0
    match collective:
        case "broadcast":
            return int(root in within)
        case "reduce":
            return int(root in without)
        case "all_reduce":
            return 1
        case "all_to_all":
            pairs = [a * ranks + b for a in within for b in without]
        case "send_recv":
            pairs = [a for a in within if (a + 1) % ranks in without]
        case "scatter":
            pairs = without if root in within else []
        case "gather":
            pairs = within if root in without else []
        case "all_gather":
            pairs = within
        case "reduce_scatter":
            pairs = without
        case _:
            raise AssertionError(collective)
    return sum(1 if weights is None else weights[pair] for pair in pairs)


def cut_fraction(
    topology: Topology, collective: str, by_rank: Sequence[int], root: int = 0, weights: Sequence[int] | None = None
) -> Fraction:
    """The heaviest of all cuts, for a block of mean size."""
    arcs = arcs_of(topology)
    best = ZERO
    for inside in subsets(range(topology.num_nodes)):
        if crossing := must_leave(collective, inside, by_rank, root, weights):
            best = max(best, crossing / leaving(arcs, inside))
    return best if weights is None else best * len(weights) / sum(weights)


def partitions(items: Sequence[int]) -> Iterator[list[frozenset[int]]]:
    if not items:
        yield []
        return
    for rest in subsets(items[1:]):
        part = rest | {items[0]}
        for others in partitions([item for item in items if item not in part]):
            yield [part, *others]


def partition_fraction(topology: Topology, by_rank: Sequence[int]) -> Fraction:
    """The heaviest of all partitions, by what leaves the parts or by what enters them.

    A switch that adds is in one of the parts, or makes one that is not counted.
    """
    arcs, devices = arcs_of(topology), sorted(set(by_rank))
    members = devices + np.flatnonzero(topology.reduces).tolist()
    helpers = [node for node in range(topology.num_nodes) if node not in members]
    best = ZERO
    for capacity in (leaving, entering):
        least = {
            part: min(capacity(arcs, part | others) for others in subsets(helpers))
            for part in subsets(members)
            if 0 < len(part) < len(members)
        }
        for parts in partitions(members):
            counted = sum(not part.isdisjoint(devices) for part in parts)
            if counted > 1:
                best = max(best, 2 * (counted - 1) / sum((least[part] for part in parts), ZERO))
    return best


def bottleneck_fraction(topology: Topology, by_rank: Sequence[int]) -> Fraction:
    """The most messages for a GB/s that pass the narrower sides of switches, for what every group of devices needs."""
    arcs, best = arcs_of(topology), ZERO
    sides: list[list[Arc]] = []
    for switch in np.flatnonzero(~topology.reduces[topology.num_devices :]) + topology.num_devices:
        ends = [arc for arc in arcs if arc.src == switch], [arc for arc in arcs if arc.dst == switch]
        out, into = (sum((arc.bandwidth for arc in side), ZERO) for side in ends)
        if out != into and out and into:
            sides.append(min(ends, key=lambda side: sum(arc.bandwidth for arc in side)))
    for side in [*sides, [arc for arc in arcs if any(arc in each for each in sides)]]:
        left = [arc for arc in arcs if arc not in side]
        groups = [{node} for node in range(topology.num_nodes) if node < topology.num_devices or topology.reduces[node]]
        for one in [min(group) for group in groups]:
            away = {one}
            for _ in range(topology.num_nodes):
                away |= {arc.dst for arc in left if arc.src in away}
            met = [group for group in groups if group & away]
            groups = [group for group in groups if not group & away] + [set.union(*met)]
        needed = sum(not group.isdisjoint(by_rank) for group in groups) - 1
        if side:
            best = max(best, needed / sum((arc.bandwidth for arc in side), ZERO))
    return best


def flow_time(topology: Topology, units: dict[tuple[int, int], int]) -> float:
    """The least time, in seconds for a GB of a unit, in which flows of any shape carry so many units between nodes."""
    from scipy.optimize import linprog

    arcs, pairs = arcs_of(topology), sorted(units)
    columns = len(pairs) * len(arcs) + 1
    conserved = np.zeros((len(pairs) * topology.num_nodes, columns))
    wanted = np.zeros(len(conserved))
    shared = np.zeros((len(arcs), columns))
    for number, (src, dst) in enumerate(pairs):
        row = number * topology.num_nodes
        wanted[row + src] -= units[src, dst]
        wanted[row + dst] += units[src, dst]
        for link, arc in enumerate(arcs):
            conserved[row + arc.src, number * len(arcs) + link] -= 1
            conserved[row + arc.dst, number * len(arcs) + link] += 1
            shared[link, number * len(arcs) + link] = 1
            shared[link, -1] = -float(arc.bandwidth)
    cost = np.zeros(columns)
    cost[-1] = 1
    found = linprog(cost, shared, np.zeros(len(arcs)), conserved, wanted)
    assert found.fun is not None
    return float(found.fun)


def reachable(topology: Topology, src: int) -> set[int]:
    """The nodes that have a way from one."""
    found, arcs = {src}, arcs_of(topology)
    for _ in range(topology.num_nodes):
        found |= {arc.dst for arc in arcs if arc.src in found}
    return found


def latency_s(topology: Topology, collective: str, by_rank: Sequence[int], root: int = 0) -> float:
    """The farthest that anything must go."""
    arcs = arcs_of(topology)
    far: dict[int, list[float]] = {}
    for source in set(by_rank):
        away = [float("inf")] * topology.num_nodes
        away[source] = 0.0
        for _ in range(topology.num_nodes):
            for arc in arcs:
                away[arc.dst] = min(away[arc.dst], away[arc.src] + arc.latency_s)
        far[source] = away
    pairs = journeys(collective, len(by_rank), root)
    return max((far[by_rank[a]][by_rank[b]] for a, b in pairs), default=0.0)


def journeys(collective: str, ranks: int, root: int = 0) -> list[tuple[int, int]]:
    """From which rank something must get to which."""
    match collective:
        case "broadcast" | "scatter":
            return [(root, rank) for rank in range(ranks)]
        case "reduce" | "gather":
            return [(rank, root) for rank in range(ranks)]
        case "send_recv":
            return [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    return [(a, b) for a in range(ranks) for b in range(ranks)]


def fraction(collective: str, topology: Topology | str, **options: object) -> Fraction:
    """What the bound itself says, which must be exact."""
    found = bound(collective, get_topology(topology), 1, **options)  # type: ignore[arg-type]  # each test's own
    assert found.exact
    return found.fraction_per_GBps
