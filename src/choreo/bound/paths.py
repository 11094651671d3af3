"""Traffic of a few pairs spread over paths so that the busiest link has the least load, by column generation.

A linear program divides the units of every pair among the paths that are known. Its prices of the links lead to cheaper
paths, which are added. It would begin with all its price on one link, and find hardly any path a round. So the first
paths are the cheapest ones at prices that grow with the load of all paths before (multiplicative weights).

Source: N. Garg, J. Könemann, "Faster and simpler algorithms for multicommodity flow", SIAM Journal on Computing 2007.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, hstack
from scipy.sparse.csgraph import dijkstra

from choreo.topology.graph import Floats, Ints

__all__ = ["Arcs", "Spread", "spread"]

# The rounds before the first linear program, how fast prices grow with loads, and the rounds with linear programs.
FIRST, GROWTH, ROUNDS = 100, 3.0, 20
# How far from the optimum it may stop.
TOLERANCE = 0.005
# A small cost per arc, so that the shortest of equally good paths is taken.
ARC_COST = 1e-4
# Free arcs cost this part of the mean, so that paths are not longer than they must be.
FREE = 1e-10


@dataclass(frozen=True, slots=True, eq=False)
class Arcs:
    """Arcs between nodes. `load` is a matrix of links by arcs: the part of a unit on the arc that crosses the link."""

    nodes: int
    src: Ints
    dst: Ints
    load: csr_array
    capacity: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """Paths as lists of arcs, the pair that each serves, the units on it, and the price of each link."""

    ways: list[tuple[int, ...]]
    pair: Ints
    units: Floats
    price: Floats


def spread(arcs: Arcs, pairs: Sequence[tuple[int, int]], units: Floats) -> Spread | None:
    """The units of each pair on paths from its first node to its second; None if the solver gives up."""
    return _Search(arcs, pairs, units).run()


class _Search:
    """The paths that are known."""

    def __init__(self, arcs: Arcs, pairs: Sequence[tuple[int, int]], units: Floats) -> None:
        self.arcs, self.pairs, self.units = arcs, pairs, units
        self.capacity = arcs.capacity / arcs.capacity.max()
        self.by_arc = csr_array(arcs.load.T)
        self.known: dict[tuple[int, tuple[int, ...]], int] = {}
        self.starts, self.row = np.unique([start for start, _ in pairs], return_inverse=True)
        self.rng = np.random.default_rng(len(pairs))

    def run(self) -> Spread | None:
        price, load = 1 / self.capacity, np.zeros(len(self.capacity))
        for number in range(1, FIRST + 1):
            _, uses = self._add_cheapest(price, noise=1e-3)
            load += (self.arcs.load @ uses) / self.capacity
            growth = GROWTH * np.log(len(load) + 1) * np.sqrt(number)
            price = np.exp(growth * (load / load.max() - 1)) / self.capacity
        best = price / (price @ self.capacity)
        least, proof = 0.0, best
        for _ in range(ROUNDS):
            found = self._divided()
            if found is None:
                return None
            time, division = found
            both = 0.5 * best + 0.5 * division.price / max(float(division.price @ self.capacity), 1e-300)
            best = both / (both @ self.capacity)
            paid, _ = self._add_cheapest(best, noise=0.0)
            if paid > least:
                least, proof = paid, best
            if time <= least * (1 + TOLERANCE):
                break
        return replace(division, price=proof)

    def _add_cheapest(self, price: Floats, noise: float) -> tuple[float, Floats]:
        """Add the cheapest path of every pair: what all units pay, and what each arc carries then."""
        arcs = self.arcs
        cost = self.by_arc @ price
        length = cost * (1 + noise * self.rng.random(len(cost))) + FREE * cost.mean()
        shortest_last = np.argsort(-length, kind="stable")
        number = np.full((arcs.nodes, arcs.nodes), -1)
        number[arcs.src[shortest_last], arcs.dst[shortest_last]] = shortest_last
        some = number[number >= 0]
        graph = csr_array((length[some], (arcs.src[some], arcs.dst[some])), shape=(arcs.nodes,) * 2)
        before = dijkstra(graph, indices=self.starts, return_predecessors=True)[1]
        uses = np.zeros(len(cost))
        for pair, (start, end) in enumerate(self.pairs):
            way: list[int] = []
            here = end
            while here != start:
                there = int(before[self.row[pair], here])
                way.append(int(number[there, here]))
                here = there
            uses[way] += self.units[pair]
            self.known.setdefault((pair, tuple(reversed(way))), len(self.known))
        return float(uses @ cost), uses

    def _divided(self) -> tuple[float, Spread] | None:
        """The units divided among the known paths."""
        pair = np.array([one for one, _ in self.known])
        ways = [way for _, way in self.known]
        count = len(ways)
        path = np.repeat(np.arange(count), [len(way) for way in ways])
        arc = np.concatenate([np.array(way, np.int64) for way in ways])
        uses = csr_array((np.ones(len(path)), (arc, path)), shape=(len(self.arcs.src), count))
        most = hstack((self.arcs.load @ uses, coo_array(-self.capacity[:, None])))
        whole = coo_array((np.ones(count), (pair, np.arange(count))), shape=(len(self.pairs), count + 1))
        lengths = np.bincount(path, minlength=count)
        cost = np.append(ARC_COST * lengths / max(1.0, float(self.units.sum())), 1.0)
        limits = most, np.zeros(len(self.capacity)), csr_array(whole), self.units
        found = linprog(cost, *limits, method="highs")  # type: ignore[call-overload]  # the stubs have no sparse matrices
        if found.x is None:
            return None
        price = np.maximum(-found.ineqlin.marginals, 0.0)
        return float(found.x[-1]), Spread(ways, pair, found.x[:-1], price)
