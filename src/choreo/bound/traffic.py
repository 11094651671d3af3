"""The bound of all_to_all and send_recv, whose traffic may take any paths through the network.

On an unchanged product of blocks, all_to_all among all devices takes as long as its slowest dimension: a dimension of n
ports among N devices carries N / n times an all_to_all of its block. Dimension-order routing takes no longer, because
the lines of a dimension share its traffic evenly. Prices on the links of one dimension prove that time, because paths
through the other dimensions change nothing there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np

from choreo.bound.cuts import capacities, divided
from choreo.bound.demands import Demand, Everybody, Pairs
from choreo.bound.flow_network import FlowNetwork
from choreo.bound.kinds import has_fabric, telling_cuts
from choreo.bound.prices import Traffic, can_solve, can_spread, solve, solve_by_paths
from choreo.bound.product import MOST_FAMILIES, Product
from choreo.topology import Block, Topology
from choreo.topology.graph import Bools, Ints

__all__ = ["traffic_bound", "traffic_cuts"]

MOST_ROUTES = 1 << 15


def traffic_bound(network: FlowNetwork, product: Product, demand: Demand) -> Traffic:
    """The best bound for a demand. Every destination must be reachable from its source."""
    known: list[Traffic] = []
    if isinstance(demand, Everybody) and (demand.ranks == 1).all() and _is_plain(product):
        known = [_by_dimension(network, product)]
        if known[0].exact:
            return known[0]
    best = max((*known, *traffic_cuts(network, product, demand)), key=_ratio)
    if can_solve(network, demand):
        return solve(network, demand, best)
    if isinstance(demand, Pairs):
        if best.ratio >= _routed(product.topology, demand):
            return replace(best, exact=True)
        if can_spread(network, demand):
            return solve_by_paths(network, demand, best)
    return best


def _ratio(traffic: Traffic) -> Fraction:
    return traffic.ratio


def traffic_cuts(network: FlowNetwork, product: Product, demand: Demand) -> Iterator[Traffic]:
    """Cuts around boxes, and cuts through all lines of a dimension at its bottlenecks."""
    for unsplit in product.unsplit()[:MOST_FAMILIES]:
        yield from _around_groups(network, demand, product.boxes(unsplit), product.topology.num_devices)
    for at, dimension in enumerate(product.dimensions):
        for cut in telling_cuts(dimension.block) or ():
            inside = product.lifted(at, cut)
            yield from (_around(network, demand, side) for side in (inside, ~inside))


def _around_groups(network: FlowNetwork, demand: Demand, group: Ints, devices: int) -> Iterator[Traffic]:
    count = int(group.max()) + 1
    leaves, enters = capacities(network, group, count)
    for crossing, carried, outside in (
        (demand.leaving(group[:devices], count), leaves, False),
        (demand.entering(group[:devices], count), enters, True),
    ):
        yield _around(network, demand, (group == int(divided(crossing, carried).argmax())) ^ outside)


def _around(network: FlowNetwork, demand: Demand, inside: Bools) -> Traffic:
    crossing = demand.crossing(inside)
    return Traffic(crossing / network.bandwidth(network.leaving(inside)) if crossing else Fraction(0), inside)


def _is_plain(product: Product) -> bool:
    """Whether every link has its block's bandwidth."""
    bandwidth = product.topology.links.bandwidth_bytes_per_s
    return all(
        (dimension.of_lines(bandwidth) == dimension.block.links.bandwidth_bytes_per_s).all()
        for dimension in product.dimensions
    )


def _by_dimension(network: FlowNetwork, product: Product) -> Traffic:
    """The bound of the slowest dimension; it is exact if every dimension's own bound is."""
    found = [_of_block(dimension.block) for dimension in product.dimensions]
    at = max(range(len(found)), key=lambda at: found[at].ratio * product.dimensions[at].lines)
    slowest, block = product.dimensions[at], found[at]
    exact = all(each.exact for each in found)
    if block.inside is not None:
        return Traffic(block.ratio * slowest.lines, product.lifted(at, block.inside), exact=exact)
    prices = np.zeros(len(product.topology.links))
    own = np.zeros(len(slowest.block.links))
    own[FlowNetwork.of_block(slowest.block).number] = 0 if block.prices is None else block.prices
    slowest.of_lines(prices)[:] = own
    return Traffic(block.ratio * slowest.lines, prices=prices[network.number].astype(np.int64), exact=exact)


def _of_block(block: Block) -> Traffic:
    """An all_to_all among the ports of one block."""
    network, everybody = FlowNetwork.of_block(block), Everybody(np.ones(block.size, np.int64))
    if has_fabric(block):
        fabric = np.arange(len(network.src)) == len(network.src) - 1
        pairs = block.size * (block.size - 1)
        return Traffic(pairs / network.bandwidth(np.flatnonzero(fabric)), prices=fabric.astype(np.int64), exact=True)
    cuts = telling_cuts(block)
    if cuts is not None:
        return replace(max((_around(network, everybody, inside) for inside in cuts), key=_ratio), exact=True)
    alone = np.where(np.arange(block.nodes) < block.size, np.arange(block.nodes), -1)
    best = max(_around_groups(network, everybody, alone, block.size), key=_ratio)
    return solve(network, everybody, best) if can_solve(network, everybody) else best


def _routed(topology: Topology, demand: Pairs) -> Fraction | float:
    """The time of the busiest link when all traffic takes the topology's own routes: an upper limit on the bound."""
    away = (demand.src != demand.dst) & (demand.units > 0)
    if away.sum() > MOST_ROUTES:
        return math.inf
    routes = topology.routes(demand.src[away], demand.dst[away])
    if (routes.share != 1.0).any():
        return math.inf
    network = FlowNetwork.of_topology(topology)
    units = np.repeat(demand.units[away], np.diff(routes.offsets))
    load = np.bincount(routes.links, units, len(topology.links))[network.number]
    most = [int(load[network.code == code].max()) for code in range(len(network.values))]
    return max(each / (value * network.unit) for each, value in zip(most, network.values, strict=True))
