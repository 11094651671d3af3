"""Trees packed into the links of any network, by column generation.

A linear program divides the data among trees so that the busiest link finishes first. It starts with a few trees. Its
dual prices of the links tell which trees would help: the cheapest arborescence of each root, added until none helps.
Deep trees are slow, so trees of shortest paths are offered as well, and a tree costs the time of its longest path. A
single root should send each part once, so trees of shortest paths from its neighbours are offered for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, diags, hstack, vstack
from scipy.sparse.csgraph import dijkstra

from choreo.synthesize.network import Hops
from choreo.synthesize.problem import UnsolvedError
from choreo.synthesize.trees.arborescence import cheapest_arborescence
from choreo.topology.graph import Bools, Floats, Ints

__all__ = ["Tree", "pack", "pack_both_ways", "tree_depth"]

Column: TypeAlias = tuple[int, Ints, Ints | None]

# How far from the optimum the packing may stop, and the most rounds of adding trees.
TOLERANCE = 0.004
ROUNDS = 60
# It also stops after IDLE_ROUNDS rounds that each gain less than HARDLY. If the time is further than FAR from the known
# bound on the optimum, it stops after FAR_ROUNDS: a link that every tree crosses takes many trees to get around.
IDLE_ROUNDS, FAR_ROUNDS, HARDLY, FAR = 4, 12, 0.001, 0.05
# The extra cost of a hop that leads no further from the root, as a fraction of the mean price of a hop: deep trees are
# slow.
DETOUR = 0.01
# The weight of time, relative to the price of links, in trees of shortest paths.
BY_TIME = (0.1, 1.0)
# The most trees over a neighbour of a single root that are offered at a time.
MOST_PAST = 16
# A link that is busy for more than a fraction BUSY of the time has an extra cost: a full link has no room for late
# messages.
BUSY, BUSY_COST = 0.9, 0.05
# A tree that would carry less of the data than this is dropped.
LEAST_PART = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """A tree from a root to all devices, possibly one to the root, and the part of the data they carry.

    `into` has the hop into each member, -1 for the root and for unused switches. `back` has the hop by which each
    member sends towards the root, likewise.
    """

    root: int
    into: Ints
    back: Ints | None
    part: float


class _Prices:
    """The cheapest trees at given prices of links. `hop_s` is the time of a chunk over each hop.

    `reached` says for each root which members it has a way to. A tree leaves out the others, such as the switches of
    servers without a rank.
    """

    def __init__(self, hops: Hops, hop_s: Floats) -> None:
        self.hops, self.hop_s = hops, hop_s
        members = hops.members
        self.number = np.full((members, members), -1)
        self.number[hops.src, hops.dst] = np.arange(len(hops))
        self.by_hop = hops.load.T.tocsr()
        steps = csr_matrix((np.ones(len(hops)), (hops.src, hops.dst)), shape=(members, members))
        away = dijkstra(steps, unweighted=True)
        self.reached: Bools = np.isfinite(away)
        self.detour = [away[root][hops.src] + 1 > away[root][hops.dst] for root in range(members)]

    def per_hop(self, price: Floats) -> Floats:
        """The price of each hop."""
        cost: Floats = self.by_hop @ price
        return cost

    def cheapest(self, per_hop: Floats, root: int) -> Ints:
        """The hop into each member of the cheapest tree."""
        hops = self.hops
        matrix = np.full((hops.members,) * 2, np.inf)
        small = DETOUR * max(float(per_hop.mean()), 1e-12)
        matrix[hops.src, hops.dst] = per_hop + np.where(self.detour[root], small, 0.0)
        inside = np.flatnonzero(self.reached[root])
        found = cheapest_arborescence(matrix[np.ix_(inside, inside)], int(np.searchsorted(inside, root)))
        parent = np.full(hops.members, -1)
        parent[inside] = np.where(found >= 0, inside[found], -1)
        return self._into(parent)

    def shortest(self, per_hop: Floats, by_time: float) -> list[Ints]:
        """The tree of shortest paths from every root, by price and by time."""
        hops = self.hops
        length = per_hop / max(float(per_hop.mean()), 1e-300) + by_time * self.hop_s / self.hop_s.mean()
        paths = csr_matrix((length, (hops.src, hops.dst)), shape=(hops.members,) * 2)
        parents = dijkstra(paths, return_predecessors=True)[1]
        return [self._into(np.maximum(parent, -1)) for parent in parents]

    def past(self, per_hop: Floats, root: int) -> Iterator[Ints]:
        """Trees whose root sends once: to a neighbour, from which shortest paths go on; the cheapest few."""
        hops = self.hops
        length = per_hop / max(float(per_hop.mean()), 1e-300) + self.hop_s / self.hop_s.mean()
        first = np.flatnonzero(hops.src == root)
        onward = (hops.src != root) & (hops.dst != root)
        ends = hops.src[onward], hops.dst[onward]
        paths = csr_matrix((length[onward], ends), shape=(hops.members,) * 2)
        away, parents = dijkstra(paths, indices=hops.dst[first], return_predecessors=True)
        away[:, root] = 0.0
        found = []
        for hop, reached, parent in zip(first.tolist(), away[:, : hops.devices], parents, strict=True):
            if np.isfinite(reached).all():
                tree = np.maximum(parent, -1)
                tree[hops.dst[hop]] = root
                into = self._into(tree)
                found.append((float(per_hop[into[into >= 0]].sum()), into))
        found.sort(key=lambda one: one[0])
        yield from (into for _, into in found[:MOST_PAST])

    def _into(self, parent: Ints) -> Ints:
        """The hops of a tree, without switches that lead nowhere."""
        hops = self.hops
        parent = parent.copy()
        while True:
            leads = np.bincount(parent[parent >= 0], minlength=hops.members) > 0
            idle = np.flatnonzero((parent[hops.devices :] >= 0) & ~leads[hops.devices :]) + hops.devices
            if not len(idle):
                break
            parent[idle] = -1
        into: Ints = np.where(parent >= 0, self.number[parent, np.arange(hops.members)], -1)
        return into


def tree_depth(hops: Hops, hop_s: Floats, into: Ints, root: int) -> float:
    """The time of a chunk from the root to the last member of a tree, without contention."""
    at = np.full(hops.members, -1.0)
    at[root] = 0.0
    rest = into[into >= 0]
    while len(rest):
        known = at[hops.src[rest]] >= 0
        hop = rest[known]
        at[hops.dst[hop]] = at[hops.src[hop]] + hop_s[hop]
        rest = rest[~known]
    return float(at.max())


def pack(hops: Hops, demand: dict[int, float], hop_s: Floats, least_s_a_byte: float = 0.0) -> tuple[list[Tree], float]:
    """Trees for the data that each root must send to all devices, and the busiest link's seconds per byte.

    `hop_s` is the time of a chunk over each hop, per byte of a root's data. No trees take less than `least_s_a_byte`.
    """

    def cheapest(price: Floats) -> Iterator[tuple[int, float, Column]]:
        per_hop = trees.per_hop(price)
        short = [trees.shortest(per_hop, by_time) for by_time in BY_TIME]
        for root, amount in wanted.items():
            for into in (trees.cheapest(per_hop, root), *(of_root[root] for of_root in short)):
                yield root, amount * float(per_hop[into[into >= 0]].sum()), (root, into, None)
            if len(wanted) == 1:
                for into in trees.past(per_hop, root):
                    yield root, amount * float(per_hop[into[into >= 0]].sum()), (root, into, None)

    trees = _Prices(hops, hop_s)
    wanted = {root: amount for root, amount in demand.items() if amount > 0}

    def depth(column: Column) -> float:
        return tree_depth(hops, hop_s, column[1], column[0])

    return _generate(hops, wanted, cheapest, depth, least_s_a_byte)


def pack_both_ways(hops: Hops, hop_s: Floats, least_s_a_byte: float = 0.0) -> tuple[list[Tree], float]:
    """Pairs of trees, to a root and back from it, for one unit of data whose parts may choose their roots."""

    def cheapest(price: Floats) -> Iterator[tuple[int, float, Column]]:
        per_hop = away.per_hop(price)
        pairs = [
            list(zip(away.shortest(per_hop, by_time), home.shortest(per_hop, by_time), strict=True))
            for by_time in BY_TIME
        ]
        best = ((away.cheapest(per_hop, root), home.cheapest(per_hop, root)) for root in roots)
        for found in (best, *([both[root] for root in roots] for both in pairs)):
            for root, (into, back) in zip(roots, found, strict=True):
                cost = float(per_hop[into[into >= 0]].sum() + per_hop[back[back >= 0]].sum())
                yield 0, cost, (root, into, back)

    def depth(column: Column) -> float:
        root, into, back = column
        assert back is not None
        return tree_depth(hops, hop_s, into, root) + tree_depth(turned, hop_s, back, root)

    turned = hops.turned()
    away, home = _Prices(hops, hop_s), _Prices(turned, hop_s)
    both_ways = (away.reached & home.reached)[:, : hops.devices].all(axis=1)
    roots = np.flatnonzero(both_ways).tolist()
    return _generate(hops, {0: 1.0}, cheapest, depth, least_s_a_byte)


def _generate(
    hops: Hops,
    demand: dict[int, float],
    cheapest: Callable[[Floats], Iterator[tuple[int, float, Column]]],
    depth: Callable[[Column], float],
    least_s_a_byte: float,
) -> tuple[list[Tree], float]:
    """Add the cheapest trees at the prices of the last division, until they are no better than the known ones.

    `cheapest` gives trees, the demand each serves, and what its part of the data costs. One per demand is enough: the
    sum of the least costs over all demands is a bound on the time.
    """
    columns: list[tuple[int, Column]] = []
    depths: list[float] = []
    seen: set[tuple[int, bytes]] = set()
    price = smooth = 1 / hops.capacity / len(hops.capacity)
    bound, time, parts = 0.0, np.inf, np.zeros(0)
    best, idle = np.inf, 0
    for _ in range(ROUNDS):
        least: dict[int, float] = {}
        known = len(columns)
        for kind, cost, column in cheapest(smooth):
            least[kind] = min(cost, least.get(kind, np.inf))
            root, into, back = column
            key = (root, into.tobytes() + (b"" if back is None else back.tobytes()))
            if key not in seen:
                seen.add(key)
                columns.append((kind, column))
                depths.append(depth(column))
        scale = float(smooth @ hops.capacity)
        bound = max(bound, sum(least.values()) / scale)
        if len(columns) > known:
            time, parts, price = _divide(hops, columns, demand, np.array(depths))
        elif np.array_equal(smooth, price):
            break
        total = time + float(parts @ depths) / sum(demand.values())
        idle = 0 if total < best * (1 - HARDLY) else idle + 1
        best = min(best, total)
        near = time <= max(bound, least_s_a_byte) * (1 + FAR)
        if time <= bound * (1 + TOLERANCE) or idle > (IDLE_ROUNDS if near else FAR_ROUNDS):
            break
        # Prices oscillate from round to round; those between old and new find better trees.
        smooth = 0.5 * smooth / scale + 0.5 * price if len(columns) > known else price
    divided = zip(columns, parts, strict=True)
    return [Tree(*column, float(part)) for (kind, column), part in divided if part > LEAST_PART * demand[kind]], time


def _divide(
    hops: Hops, columns: Sequence[tuple[int, Column]], demand: dict[int, float], depths: Floats
) -> tuple[float, Floats, Floats]:
    """Divide the data among trees so that the busiest link finishes first: the time, the parts, the links' prices.

    The mean depth of the trees over the data counts as well, and so do links that are busy almost all the time.
    """
    links = len(hops.capacity)
    kinds = {kind: number for number, kind in enumerate(demand)}
    used = [np.concatenate([side[side >= 0] for side in column[1:] if side is not None]) for _, column in columns]
    tree = np.repeat(np.arange(len(columns)), [len(each) for each in used])
    uses = csr_matrix((np.ones(len(tree)), (np.concatenate(used), tree)), shape=(len(hops), len(columns)))
    scale = float(hops.capacity.max())
    load, capacity = hops.load @ uses, csr_matrix((hops.capacity / scale)[:, None])
    excess = diags(hops.capacity / scale)
    most = vstack(
        (
            hstack((load, -capacity, csr_matrix((links, links)))),
            hstack((load, -BUSY * capacity, -excess)),
        )
    )
    owner = csr_matrix(
        (np.ones(len(columns)), ([kinds[kind] for kind, _ in columns], np.arange(len(columns)))),
        shape=(len(kinds), len(columns)),
    )
    whole = hstack((owner, csr_matrix((len(kinds), 1 + links))))
    cost = np.concatenate((depths * scale / sum(demand.values()), [1.0], np.full(links, BUSY_COST / links)))
    limits = most, np.zeros(2 * links), whole, list(demand.values())
    found = linprog(cost, *limits, method="highs")  # type: ignore[call-overload]  # the stubs have no sparse matrices
    if found.x is None:  # links of very different speed
        raise UnsolvedError(found.message)
    price = np.maximum(-found.ineqlin.marginals, 0.0).reshape(2, -1).sum(axis=0)
    return float(found.x[len(columns)]) / scale, found.x[: len(columns)], price / scale
