"""The least time of a demand that may be spread over all paths: a linear program, solved exactly.

The least time T in which flows f(s, e), one commodity for each source s, carry the demand, sum over s of f(s, e) <=
T b(e), is by duality the greatest, over prices y(e) >= 0 of links, of

    sum over pairs of demand(u, v) distance_y(u, v)  /  sum over links of y(e) b(e)

because a unit from u to v pays at least the price of the shortest path, and in T seconds all links together earn no
more than T times the denominator (Iri 1971, Shahrokhi and Matula 1990). So any prices prove a bound. The solver's
prices are rounded to integers, and their bound is computed exactly. If the solver's flows, as fractions, meet that
bound exactly, it is the optimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from choreo.bound.demands import Demand, Pairs
from choreo.bound.flow_network import FlowNetwork, shortest_ways
from choreo.topology.graph import Bools, Floats, Ints

__all__ = ["Traffic", "can_solve", "can_spread", "solve", "solve_by_paths"]

MOST_VARIABLES = 10_000
# The most nodes and pairs whose traffic is spread over paths.
MOST_SPREAD, MOST_PAIRS = 512, 256
MOST_NODES = 256
NARROWEST = 1e-6  # of the widest link; below it the solver's numbers are unreliable
FINEST = 10**4  # the largest denominator tried for one of the solver's numbers
MOST_DENOMINATOR = 10**9  # and for their common denominator
ROUGH = 10**6  # the denominator prices are rounded to if no small one exists


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """A bound for a demand in units for each GB/s: by a set of nodes, or by prices of the network's links."""

    ratio: Fraction
    inside: Bools | None = None
    prices: Ints | None = None
    exact: bool = False


def can_solve(network: FlowNetwork, demand: Demand) -> bool:
    """Whether the linear program is solved in a second or two, and floats are good enough for it."""
    return (
        network.nodes <= MOST_NODES
        and demand.num_sources * len(network.src) <= MOST_VARIABLES
        and network.relative.min() > NARROWEST
    )


def solve(network: FlowNetwork, demand: Demand, known: Traffic) -> Traffic:
    """The bound of the linear program, or a cut that proves as much; `known` is a bound that is already proved."""
    solution = _solution(network, demand)
    if solution is None:
        return known
    price, flow = solution
    prices = _whole(price)
    away = shortest_ways(network, prices.astype(np.float64))
    found = [known, *_balls(network, demand, away), Traffic(_proved(network, demand, prices, away), prices=prices)]
    best = max(found, key=lambda traffic: traffic.ratio)  # the first of equals: a cut rather than prices
    return replace(best, exact=_meets(network, demand, flow, best.ratio))


def can_spread(network: FlowNetwork, demand: Pairs) -> bool:
    """Whether its traffic is spread over paths in a second or two."""
    return network.nodes <= MOST_SPREAD and len(demand.src) <= MOST_PAIRS and network.relative.min() > NARROWEST


def solve_by_paths(network: FlowNetwork, demand: Pairs, known: Traffic) -> Traffic:
    """A bound by the prices that column generation over paths ends with, if it is better than a known one."""
    from scipy.sparse import csr_array, diags_array

    from choreo.bound.paths import Arcs, spread

    away = (demand.src != demand.dst) & (demand.units > 0)
    if not away.any():
        return known
    alone = csr_array(diags_array(np.ones(len(network.src))))
    pairs = list(zip(demand.src[away].tolist(), demand.dst[away].tolist(), strict=True))
    arcs = Arcs(network.nodes, network.src, network.dst, alone, network.relative)
    found = spread(arcs, pairs, demand.units[away].astype(np.float64))
    if found is None or not found.price.max():
        return known
    prices = _whole(found.price)
    ways = shortest_ways(network, prices.astype(np.float64))
    return max(known, Traffic(_proved(network, demand, prices, ways), prices=prices), key=lambda one: one.ratio)


def _proved(network: FlowNetwork, demand: Demand, prices: Ints, away: Floats) -> Fraction:
    """The bound that prices prove, given the distances they lead to."""
    sources, units = demand.table()
    paid = int((units * np.where(units > 0, away[sources, : units.shape[1]], 0.0).astype(np.int64)).sum())
    all_links: int = sum(price * each for price, each in zip(prices.tolist(), network.each_units(), strict=True))
    return paid / (all_links * network.unit)


def _balls(network: FlowNetwork, demand: Demand, away: Floats) -> list[Traffic]:
    """The best cut around a ball: all nodes within some distance of a node. Where a cut binds, it is such a ball."""
    best: Traffic | None = None
    for row in away:
        for radius in np.unique(row[np.isfinite(row)])[:-1]:
            inside = row <= radius
            leaving = network.leaving(inside)
            crossing = demand.crossing(inside)
            if crossing and len(leaving):
                ratio = crossing / network.bandwidth(leaving)
                best = best if best is not None and best.ratio >= ratio else Traffic(ratio, inside)
    return [] if best is None else [best]


def _solution(network: FlowNetwork, demand: Demand) -> tuple[Floats, Floats] | None:
    """The solver's prices, and its flows: a row for each source, a column for each link. None if it gives up."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array, csr_array, hstack, kron

    sources, units = demand.table()
    links, count, wanted = len(network.src), len(sources), np.zeros((len(sources), network.nodes))
    wanted[:, : units.shape[1]] = units
    ends = np.concatenate((network.dst, network.src)), np.tile(np.arange(links), 2)
    signs = np.repeat([1.0, -1.0], links)
    gained = coo_array((signs, ends), shape=(network.nodes, links))
    # The net flow of each commodity into a node is its demand; the equation at the source follows from the others.
    kept = np.ones((count, network.nodes), np.bool_)
    kept[np.arange(count), sources] = False
    gains = csr_array(kron(coo_array(np.eye(count)), gained))[np.flatnonzero(kept.reshape(-1))]
    gains = hstack((gains, csr_array((gains.shape[0], 1))))
    capacity = (network.relative / network.relative.min())[:, None]
    loads = hstack((kron(coo_array(np.ones((1, count))), coo_array(np.eye(links))), csr_array(-capacity)))
    cost = np.zeros(count * links + 1)
    cost[-1] = 1.0
    limits = (csr_array(loads), np.zeros(links), csr_array(gains), wanted[kept])
    found = linprog(cost, *limits, method="highs-ds")  # type: ignore[call-overload]  # the stubs have no sparse matrices
    if found.status != 0:
        return None
    return -found.ineqlin.marginals, found.x[:-1].reshape(count, links)


def _whole(price: Floats) -> Ints:
    """Prices as whole numbers: small ones where the solver's are simple fractions of the greatest."""
    relative = np.clip(price / price.max(), 0.0, None)
    times = _denominator(relative)
    whole: Ints = np.rint(relative * (times or ROUGH)).astype(np.int64)
    return whole


def _meets(network: FlowNetwork, demand: Demand, flow: Floats, ratio: Fraction) -> bool:
    """Whether the flows, as fractions, carry the demand and load no link beyond the ratio. Then no bound is better."""
    times = _denominator(flow)
    if times is None:
        return False
    sources, units = demand.table()
    whole = np.rint(flow * times).astype(np.int64)
    gained = np.zeros((network.nodes, len(sources)), np.int64)
    np.add.at(gained, network.dst, whole.T)
    np.subtract.at(gained, network.src, whole.T)
    wanted = np.zeros((len(sources), network.nodes), np.int64)
    wanted[:, : units.shape[1]] = units * times
    wanted[np.arange(len(sources)), sources] = -wanted.sum(axis=1)
    if (whole < 0).any() or (wanted != gained.T).any():
        return False
    most = ratio * network.unit * times
    return all(load <= most * each for load, each in zip(whole.sum(axis=0).tolist(), network.each_units(), strict=True))


def _denominator(values: Floats) -> int | None:
    """A common denominator of the values, each rounded to a simple fraction; None if it is too large."""
    times = 1
    for value in np.unique(np.round(values, 9)).tolist():
        times = math.lcm(times, Fraction(value).limit_denominator(FINEST).denominator)
        if times > MOST_DENOMINATOR:
            return None
    return times
