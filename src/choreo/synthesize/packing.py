"""Trees packed into the links of any network, by column generation.

A linear program divides the data among trees so that the busiest link is done soonest. It knows few trees at first. Its
prices of links tell which trees would help: for each root the cheapest arborescence, which is added until none helps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, hstack
from scipy.sparse.csgraph import dijkstra

from choreo.synthesize.arborescence import cheapest_arborescence
from choreo.synthesize.network import Hops
from choreo.topology.graph import Floats, Ints

__all__ = ["Tree", "pack", "pack_both_ways"]

Column: TypeAlias = tuple[int, Ints, Ints | None]

# How far from the optimum the packing may stop, and how often it may ask for more trees.
TOLERANCE = 0.004
ROUNDS = 60
# What a hop that leads no further from the root costs besides, as a part of a hop's mean price: deep trees are slow.
DETOUR = 0.01
# Less of the data than this is not worth a tree.
LEAST_PART = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """A tree from a root to all devices, and perhaps one to the root, with the part of the data on them.

    `into` has the hop into each device, -1 for the root. `back` has the hop by which each device sends to the root's
    side, -1 for the root.
    """

    root: int
    into: Ints
    back: Ints | None
    part: float


class _Prices:
    """The cheapest trees at given prices of links."""

    def __init__(self, hops: Hops) -> None:
        self.hops = hops
        devices = hops.devices
        self.number = np.full((devices, devices), -1)
        self.number[hops.src, hops.dst] = np.arange(len(hops))
        steps = csr_matrix((np.ones(len(hops)), (hops.src, hops.dst)), shape=(devices, devices))
        away = dijkstra(steps, unweighted=True)
        self.detour = [away[root][hops.src] + 1 > away[root][hops.dst] for root in range(devices)]

    def tree(self, price: Floats, root: int) -> tuple[Ints, float]:
        """The hop into each device of the cheapest tree, and what its hops cost."""
        hops = self.hops
        per_hop = hops.load.T @ price
        matrix = np.full((hops.devices,) * 2, np.inf)
        small = DETOUR * max(float(per_hop.mean()), 1e-12)
        matrix[hops.src, hops.dst] = per_hop + np.where(self.detour[root], small, 0.0)
        parent = cheapest_arborescence(matrix, root)
        into = np.where(parent >= 0, self.number[parent, np.arange(hops.devices)], -1)
        return into, float(per_hop[into[into >= 0]].sum())


def pack(hops: Hops, demand: dict[int, float]) -> tuple[list[Tree], float]:
    """Trees for the data that each root must send to all devices, and the seconds a byte of the busiest link."""

    def cheapest(price: Floats) -> Iterator[tuple[int, float, Column]]:
        for root, amount in wanted.items():
            into, cost = trees.tree(price, root)
            yield root, amount * cost, (root, into, None)

    trees = _Prices(hops)
    wanted = {root: amount for root, amount in demand.items() if amount > 0}
    return _generate(hops, wanted, cheapest)


def pack_both_ways(hops: Hops) -> tuple[list[Tree], float]:
    """Pairs of trees, to a root and back from it, for one unit of data whose parts may choose their roots."""

    def cheapest(price: Floats) -> Iterator[tuple[int, float, Column]]:
        for root in range(hops.devices):
            (into, cost), (back, also) = away.tree(price, root), home.tree(price, root)
            yield 0, cost + also, (root, into, back)

    away, home = _Prices(hops), _Prices(hops.turned())
    return _generate(hops, {0: 1.0}, cheapest)


def _generate(
    hops: Hops,
    demand: dict[int, float],
    cheapest: Callable[[Floats], Iterator[tuple[int, float, Column]]],
) -> tuple[list[Tree], float]:
    """Add the trees that are cheapest at the prices of the last division, until they are no better than those known.

    `cheapest` gives trees with what they are for and what their part of the data costs. Of those for the same, one is
    enough: the sum over all of the least cost is a bound on the time.
    """
    columns: list[tuple[int, Column]] = []
    seen: set[tuple[int, bytes]] = set()
    price = smooth = 1 / hops.capacity / len(hops.capacity)
    bound, time, parts = 0.0, np.inf, np.zeros(0)
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
        scale = float(smooth @ hops.capacity)
        bound = max(bound, sum(least.values()) / scale)
        if len(columns) > known:
            time, parts, price = _divide(hops, columns, demand)
        elif np.array_equal(smooth, price):
            break
        if time <= bound * (1 + TOLERANCE):
            break
        # Prices swing from round to round; those between old and new find better trees.
        smooth = 0.5 * smooth / scale + 0.5 * price if len(columns) > known else price
    divided = zip(columns, parts, strict=True)
    return [Tree(*column, float(part)) for (kind, column), part in divided if part > LEAST_PART * demand[kind]], time


def _divide(
    hops: Hops, columns: Sequence[tuple[int, Column]], demand: dict[int, float]
) -> tuple[float, Floats, Floats]:
    """The data among trees so that the busiest link is done soonest: the time, the parts, the links' prices."""
    kinds = {kind: number for number, kind in enumerate(demand)}
    used = [np.concatenate([side[side >= 0] for side in column[1:] if side is not None]) for _, column in columns]
    tree = np.repeat(np.arange(len(columns)), [len(each) for each in used])
    uses = csr_matrix((np.ones(len(tree)), (np.concatenate(used), tree)), shape=(len(hops), len(columns)))
    scale = float(hops.capacity.max())
    most = hstack((hops.load @ uses, csr_matrix(-(hops.capacity / scale)[:, None])))
    owner = csr_matrix(
        (np.ones(len(columns)), ([kinds[kind] for kind, _ in columns], np.arange(len(columns)))),
        shape=(len(kinds), len(columns)),
    )
    whole = hstack((owner, csr_matrix((len(kinds), 1))))
    cost = np.zeros(len(columns) + 1)
    cost[-1] = 1.0
    limits = most, np.zeros(len(hops.capacity)), whole, list(demand.values())
    found = linprog(cost, *limits, method="highs")  # type: ignore[call-overload]  # the stubs have no sparse matrices
    assert found.x is not None, found.message
    return float(found.x[-1]) / scale, found.x[:-1], np.maximum(-found.ineqlin.marginals, 0.0) / scale
