"""What messages must carry through switches that take in less than they send, or send less than they take in.

A switch that does not multicast sends a message to one device, so what several devices need passes it several times. A
cut does not say so: each device alone may get its part in time. Take some links, so that without them no device of one
group reaches a device of another. To come from one group to k - 1 others, data crosses these links in at least k - 1
messages; an all_reduce takes 2 (k - 1), as in `partitions`. Where a switch is as wide on both sides, the cut around a
device proves as much. So the links tried are those on the narrower side of the switches that are not, like the fabric
of an oversubscribed switch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from choreo.bound.flow_network import FlowNetwork
from choreo.bound.partitions import Parting
from choreo.bound.product import Product
from choreo.topology.graph import Bools, Ints

__all__ = ["narrowest"]

MOST_ALONE = 64  # so many switches are also tried one by one


def narrowest(network: FlowNetwork, product: Product, devices: Ints) -> Parting | None:
    """The links with the most messages for their bandwidth, for a unit that each group of devices needs."""
    partings = (_parted(network, product, devices, links) for links in _narrow_sides(network, product))
    return max((parting for parting in partings if parting.ratio), key=lambda parting: parting.ratio, default=None)


def _narrow_sides(network: FlowNetwork, product: Product) -> Iterator[Ints]:
    """The narrower sides of unbalanced switches: those of each dimension together, and of a few switches alone."""
    out = np.bincount(network.src, network.relative, network.nodes)
    into = np.bincount(network.dst, network.relative, network.nodes)
    uneven = ~np.isclose(out, into, atol=0.0) & (out > 0) & (into > 0)
    uneven[: product.topology.num_devices] = False
    uneven &= ~product.topology.reduces
    narrow = (uneven & (out < into))[network.src] | (uneven & (into < out))[network.dst]
    for dimension in product.dimensions:
        first = dimension.first_link
        those = (network.number >= first) & (network.number < first + dimension.lines * len(dimension.block.links))
        if (links := np.flatnonzero(narrow & those)).size:
            yield links
    switches = np.flatnonzero(uneven)
    for switch in switches.tolist() if len(switches) <= MOST_ALONE else ():
        yield np.flatnonzero((network.src if out[switch] < into[switch] else network.dst) == switch)


def _parted(network: FlowNetwork, product: Product, devices: Ints, links: Ints) -> Parting:
    """The groups of devices that reach each other without some links, and what messages between them prove."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    ends = product.topology.reduces.copy()
    ends[: product.topology.num_devices] = True
    kept = np.ones(len(network.src), np.bool_)
    kept[links] = False
    src, dst = network.src[kept], network.dst[kept]
    # A switch that no device reaches, or that reaches none, joins nobody.
    on_ways = _reached(src, dst, ends) & _reached(dst, src, ends)
    joins = on_ways[src] & on_ways[dst]
    src, dst = src[joins], dst[joins]
    ones = np.ones(len(src), np.int8)
    group = connected_components(csr_array((ones, (src, dst)), shape=(network.nodes, network.nodes)), directed=False)[1]
    found, part = np.unique(group[devices], return_inverse=True)
    return Parting((len(found) - 1) / network.bandwidth(links), part, links)


def _reached(src: Ints, dst: Ints, first: Bools) -> Bools:
    """The nodes that are reached from the first ones."""
    reached = first.copy()
    while not reached[onward := dst[reached[src]]].all():
        reached[onward] = True
    return reached
