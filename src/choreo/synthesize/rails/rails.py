"""Servers joined by rails, and the way of one chunk of a broadcast through them.

A rail joins the devices of the same local rank in all servers. A chunk goes from the root to a carrier in its own
server, along a rail to the carriers in the others, and from every carrier to the rest of its server: by packed trees,
or through a switch that multicasts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from scipy.sparse import csr_matrix, diags
from scipy.sparse.csgraph import dijkstra

from choreo.synthesize.network import Hops
from choreo.synthesize.problem import Problem
from choreo.synthesize.relays import connects
from choreo.synthesize.trees.disjoint import disjoint_trees
from choreo.synthesize.trees.packing import Tree as Packed
from choreo.synthesize.trees.packing import pack
from choreo.topology.graph import Floats, Ints

__all__ = ["Rails", "Route", "Strand", "Tree", "rails_of"]

# The usual number of pieces of a rail's part; it determines the cost of a deep tree.
USUAL_PIECES = 32
# Shallow trees are good enough if their busiest link is busy for this part of the time that the bound allows.
SLACK = 0.9
# How often shallow trees are grown anew, by the links that the others leave free.
ROUNDS = 4

# The arcs of a tree inside a server, parents first. A device has its local rank, a switch the number after the last.
Tree: TypeAlias = tuple[tuple[int, int], ...]
# The messages of a chunk between servers, parents first. The root's server is 0, the one after it 1, and so on.
Route: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Strand:
    """The hops of one chunk, and for each the one before it (-1 for none).

    `since` has for each hop the last message between carriers that it waits for, counted along the route, and `depth`
    the hops since then; -1 if it waits for none.
    """

    hop: Ints
    parent: Ints
    since: Ints
    depth: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Rails:
    """Servers of equal size, the root, and trees inside a server with the part of the data that each carries.

    `away` are trees from the root's local rank, and `onward` those from each local rank, for data that comes by rail.
    """

    servers: int
    gpus: int
    root: int
    hops: Hops
    number: Mapping[tuple[int, int], int]
    switches: tuple[int, ...]
    away: tuple[tuple[Tree, float], ...]
    onward: tuple[tuple[tuple[Tree, float], ...], ...]

    def strand(self, carriers: Sequence[int], route: Route, away: Tree, onward: Sequence[Tree]) -> Strand:
        """The way of a chunk: inside the root's server, between servers, and inside each of the others.

        Server s gets it by the rail of `carriers[s]`, and spreads it by `onward[s]`.
        """
        arcs = [(self._node(0, here), self._node(0, there)) for here, there in away]
        arcs += [(self._node(here, carriers[there]), self._node(there, carriers[there])) for here, there in route]
        for server in range(1, self.servers):
            arcs += [(self._node(server, here), self._node(server, there)) for here, there in onward[server]]
        into = {self.root: (-1, -1, 0)}  # by member: the hop to it, and what else a strand has about the next hops
        before = []
        for nth, (here, there) in enumerate(arcs):
            parent, since, depth = into[here]
            if len(away) <= nth < len(away) + len(route):
                since, depth = nth - len(away), 0
            before.append((parent, since, depth))
            into[there] = nth, since, depth + 1
        return Strand(np.array([self.number[arc] for arc in arcs]), *np.array(before).T)

    def _node(self, server: int, local: int) -> int:
        home = (self.root // self.gpus + server) % self.servers
        return home * self.gpus + local if local < self.gpus else self.switches[home]


def rails_of(problem: Problem, hops: Hops) -> Rails | None:
    """The rails of servers that the outermost dimension joins; None if devices of a local rank have no direct hops."""
    blocks, ranks, root = problem.topology.blocks, problem.ranks, problem.root
    assert root is not None
    if len(blocks) < 2 or blocks[-1].size < 2:
        return None
    servers = blocks[-1].size
    gpus = ranks // servers
    number = {pair: hop for hop, pair in enumerate(zip(hops.src.tolist(), hops.dst.tolist(), strict=True))}
    peers = [
        (first, second)
        for rank in range(gpus)
        for first in range(rank, ranks, gpus)
        for second in range(rank, ranks, gpus)
    ]
    if not all(pair in number for pair in peers if pair[0] != pair[1]):
        return None
    if hops.members > ranks:
        above = {src: dst for src, dst in number if src < ranks <= dst}
        switches = tuple(above.get(first, -1) for first in range(0, ranks, gpus))
        if not all((device, switches[device // gpus]) in number for device in range(ranks)):
            return None
        stars = [_through_switch(rank, gpus) for rank in range(gpus)]
        away, onward = stars[root % gpus], tuple(stars)
    else:
        switches = ()
        everywhere = [
            all((src + first, dst + first) in number for first in range(0, ranks, gpus)) and max(src, dst) < gpus
            for src, dst in zip(hops.src.tolist(), hops.dst.tolist(), strict=True)
        ]  # some links of other servers may be dead
        inside = replace(hops.keeping(np.array(everywhere)), devices=gpus, members=gpus)
        if not connects(inside):
            return None
        away, onward = _packed_inside(problem, inside, root % gpus)
    return Rails(servers, gpus, root, hops, number, switches, away, onward)


def _through_switch(rank: int, gpus: int) -> tuple[tuple[Tree, float], ...]:
    return ((((rank, gpus), *((gpus, other) for other in range(gpus) if other != rank)), 1.0),)


def _packed_inside(
    problem: Problem, inside: Hops, root: int
) -> tuple[tuple[tuple[Tree, float], ...], tuple[tuple[tuple[Tree, float], ...], ...]]:
    """Trees from the root, and from every local rank, as for an all_gather."""
    size, gpus = problem.size_bytes, inside.devices
    costs_s = inside.latency_s + inside.send_s + inside.receive_s
    hop_s = 1 / (gpus * USUAL_PIECES) / inside.bandwidth_bytes_per_s + costs_s / size
    shallow, load_s = _shallow(inside, hop_s, size / gpus)
    trees = [Packed(rank, into, None, 1 / gpus) for rank, into in enumerate(shallow)]
    if load_s > SLACK * problem.bound().bandwidth_bound_s:
        trees, _ = pack(inside, dict.fromkeys(range(gpus), 1 / gpus), hop_s)
    onward = tuple(
        tuple((_arcs(tree.into, rank, inside), tree.part * gpus) for tree in trees if tree.root == rank)
        for rank in range(gpus)
    )
    disjoint = disjoint_trees(inside, root, hop_s, _least_s_a_byte(inside, root))
    if disjoint:
        return tuple((_arcs(into, root, inside), 1 / len(disjoint)) for into in disjoint), onward
    packed, _ = pack(inside, {root: 1.0}, hop_s)
    return tuple((_arcs(tree.into, root, inside), tree.part) for tree in packed), onward


def _shallow(inside: Hops, hop_s: Floats, part_bytes: float) -> tuple[list[Ints], float]:
    """A tree of shortest paths from every local rank, by the less busy links, and the busiest link's time."""
    members = inside.members
    paths = csr_matrix((hop_s, (inside.src, inside.dst)), shape=(members, members))
    away = dijkstra(paths)
    links = inside.load.T.tocsr()
    part_s = csr_matrix(links @ diags(part_bytes / inside.capacity))
    load_s = np.zeros(len(inside.capacity))
    trees = [np.full(members, -1)] * members
    for rank in list(range(members)) * ROUNDS:
        load_s -= part_s[trees[rank][trees[rank] >= 0]].sum(axis=0).A1
        into = np.full(members, -1)
        for member in np.argsort(away[rank], kind="stable")[1:].tolist():
            hops = np.flatnonzero(inside.dst == member)
            shortest = hops[away[rank, inside.src[hops]] + hop_s[hops] <= away[rank, member] * (1 + 1e-9)].tolist()
            into[member] = min(shortest, key=lambda hop: load_s[links[hop].indices].max())
            load_s += part_s[into[member]].toarray()[0]
        trees[rank] = into
    return trees, float(load_s.max())


def _least_s_a_byte(inside: Hops, root: int) -> float:
    """The least time for a byte: the root sends it once, and every other device receives it."""
    width: Floats = inside.bandwidth_bytes_per_s
    into = np.bincount(inside.dst, width, minlength=inside.members)
    into[root] = np.bincount(inside.src, width, minlength=inside.members)[root]
    return 1 / float(into.min())


def _arcs(into: Ints, root: int, inside: Hops) -> Tree:
    """The arcs of a tree, parents first."""
    children: dict[int, list[int]] = {}
    for hop in into[into >= 0].tolist():
        children.setdefault(int(inside.src[hop]), []).append(int(inside.dst[hop]))
    arcs, queue = [], [root]
    for here in queue:
        arcs += [(here, there) for there in children.get(here, ())]
        queue += children.get(here, ())
    return tuple(arcs)
