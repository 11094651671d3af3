"""The paths of packets: every hop of a route, and the hops that may follow it.

A topology spreads a message over links; the links that leave one node are the choices of a packet there. With ECMP each
connection chooses one of them at every node, once, by a hash.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choreo.topology import Topology

__all__ = ["Hops", "hops_between"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Hops:
    """Routes as hops: those of route r are offsets[r] to offsets[r + 1] - 1; the first `ways` of them leave its start.

    After hop h come `ways_after[h]` hops from `after[h]` on, of which a draw of 32 bits takes the first whose `until`
    is greater; -1 is the end. `share` is the part of the packets that takes a hop.
    """

    offsets: Ints
    ways: Ints
    link: Ints
    after: Ints
    ways_after: Ints
    until: Ints
    share: Floats

    def sums(self, values: Floats) -> Floats:
        """The sum over each route of a value by link, each weighted by its share."""
        total = np.concatenate((np.zeros(1), np.cumsum(values[self.link] * self.share)))
        return np.asarray(np.diff(total[self.offsets]))


def hops_between(topology: Topology, start: Ints, end: Ints, flow: Ints, *, spray: bool, seed: int) -> Hops:
    """The hops from nodes to nodes: all that packets may take, or for each `flow` one path drawn by a hash of it."""
    all_ways = _all_ways(topology, start, end)
    return all_ways if spray else _one_path(all_ways, topology, flow, seed)


def _all_ways(topology: Topology, start: Ints, end: Ints) -> Hops:
    routes = topology.with_routing("spread").routes(start, end)
    count = np.diff(routes.offsets)
    route = np.repeat(np.arange(len(start)), count)
    nodes, links = topology.num_nodes, topology.links
    leaves = route * nodes + links.src[routes.links]
    order = np.argsort(leaves, kind="stable")
    leaves, route, link, share = leaves[order], route[order], routes.links[order].astype(np.int64), routes.share[order]
    # The hops that leave a route's first node come first.
    first = leaves == route * nodes + start[route]
    order = np.lexsort((~first, route))
    leaves, route, link, share, first = leaves[order], route[order], link[order], share[order], first[order]
    # The hops of one node of one route stand together: where each such block begins, and how many there are.
    begins = np.flatnonzero(np.diff(leaves, prepend=-1))
    sizes = np.diff(np.append(begins, len(leaves)))
    by_node = np.argsort(leaves[begins], kind="stable")
    wanted = route * nodes + links.dst[link]
    place = np.searchsorted(leaves[begins][by_node], wanted)
    found = by_node[np.minimum(place, len(begins) - 1)] if len(begins) else route
    arrived = links.dst[link] == end[route]
    assert len(begins) == 0 or (arrived | (leaves[begins[found]] == wanted)).all(), "a route ends before its end"
    after, ways_after = np.where(arrived, -1, begins[found]), np.where(arrived, 0, sizes[found])
    return Hops(
        routes.offsets,
        np.bincount(route[first], minlength=len(start)).astype(np.int64),
        link,
        after.astype(np.int64),
        ways_after.astype(np.int64),
        _draws(share, begins, sizes),
        share,
    )


def _draws(share: Floats, begins: Ints, sizes: Ints) -> Ints:
    """Up to which draw of 32 bits each hop of a block is taken."""
    total = np.concatenate((np.zeros(1), np.cumsum(share)))
    before = np.repeat(total[begins], sizes)
    whole = np.repeat(np.add.reduceat(share, begins) if len(begins) else share, sizes)
    part = np.divide(total[1:] - before, whole, out=np.ones(len(share)), where=whole > 0)
    until: Ints = np.clip(np.round(part * 2.0**32), 0, 2**32 - 1).astype(np.int64)
    return until


def _one_path(every: Hops, topology: Topology, flow: Ints, seed: int) -> Hops:
    """One path through each route."""
    at, ways = every.offsets[:-1].copy(), every.ways.copy()
    going = np.flatnonzero(ways > 0)
    columns: list[tuple[Ints, Ints]] = []
    while len(going):
        here, last = at[going], at[going] + ways[going] - 1
        drawn = _hashed(flow[going], topology.links.src[every.link[here]], seed)
        for _ in range(int(ways[going].max()) - 1):
            here = here + ((drawn >= every.until[here]) & (here < last))
        columns.append((going, here))
        at[going], ways[going] = every.after[here], every.ways_after[here]
        going = going[every.after[here] >= 0]
    route = np.concatenate([np.zeros(0, np.int64), *(who for who, _ in columns)])
    hop = np.concatenate([np.zeros(0, np.int64), *(taken for _, taken in columns)])
    order = np.argsort(route, kind="stable")
    route, link = route[order], every.link[hop[order]]
    counts = np.bincount(route, minlength=len(flow))
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    last = np.zeros(len(link), np.bool_)
    last[offsets[1:][counts > 0] - 1] = True
    after = np.where(last, -1, np.arange(1, len(link) + 1))
    until = np.full(len(link), 2**32 - 1, np.int64)
    return Hops(offsets, (counts > 0).astype(np.int64), link, after, np.where(last, 0, 1), until, np.ones(len(link)))


def _hashed(flow: Ints, node: Ints, seed: int) -> Ints:
    """32 bits for each flow at each node."""
    key = flow.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + node.astype(np.uint64)
    key += np.uint64(seed * 0xD1B54A32D192ED03 % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        key = (key ^ (key >> np.uint64(shift))) * np.uint64(factor)
    return ((key ^ (key >> np.uint64(31))) >> np.uint64(32)).astype(np.int64)
