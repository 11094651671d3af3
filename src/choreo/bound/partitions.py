"""The heaviest partition: what all_reduce must move between parts of the devices.

Partition the devices into k groups. For every byte of the vector, each group but the first to know the whole sum must
send its contribution in a message that leaves it, and receive the result in a message that enters it. These are
2 (k - 1) messages (docs/explanation/bound.md). So 2 (k - 1) / sum of B(group) bounds the time of a unit, where B is the
capacity out of a group, or into it. With k = 2 that is a cut. A switch that adds or multicasts, or a device without a
rank, belongs to a group too, or is a group by itself without a contribution. Where links are the same both ways and
there are no switches, the best partition is attained. That is the theorem of Tutte and Nash-Williams (1961) on spanning
trees: a piece of the vector goes up and down each tree.

The best of all partitions is found by Newton's method: for a time T a part costs T B(part) - 2, and the partition of
least cost is found greedily, device by device, each by a minimum cut (Cunningham 1985); if it costs less than -2, its
own bound is the next T.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from choreo.bound.cuts import counts_fit
from choreo.bound.flow import Arcs, minimum_cut
from choreo.bound.flow_network import FlowNetwork
from choreo.bound.product import MOST_FAMILIES, Product
from choreo.topology.graph import Ints

__all__ = ["Parting", "best_boxes", "boxes_of", "heaviest_partition"]

# Devices times links: as in cuts.py.
LITTLE_WORK = 10_000
MOST_PLAIN_WORK = 40_000
MOST_WORK = 300_000


@dataclass(frozen=True, slots=True, eq=False)
class Parting:
    """The part that each device is in, the links that leave the parts, and the bound that this proves.

    `exact` if no partition proves more.
    """

    ratio: Fraction
    part: Ints
    links: Ints
    exact: bool = False


def best_boxes(network: FlowNetwork, product: Product, devices: Ints) -> Parting:
    """The heaviest partition of some devices into boxes."""
    families = product.unsplit()[:MOST_FAMILIES]
    return max((boxes_of(network, product, unsplit, devices) for unsplit in families), key=lambda family: family.ratio)


def heaviest_partition(
    network: FlowNetwork, product: Product, devices: Ints, start: Parting, known: Fraction
) -> Parting:
    """The heaviest partition of some devices. It is `start` if that is known to be best, and otherwise searched.

    It is exact if no partition is heavier than both it and the `known` ratio.
    """
    ceiling = product.partition_ceiling() if len(devices) == product.topology.num_devices else None
    if ceiling is not None and max(start.ratio, known) >= ceiling:
        return replace(start, exact=True)
    most = MOST_WORK if counts_fit(network, 2 * len(devices)) else MOST_PLAIN_WORK
    if len(devices) < product.topology.num_devices:
        return replace(start, exact=len(devices) == 2)  # two parts are a cut; relays make more of them hard to search
    if product.topology.reduces.any() or len(devices) * len(network.src) > most:
        return start
    return search(network, devices, start, known)


def search(network: FlowNetwork, devices: Ints, start: Parting, known: Fraction = Fraction(0)) -> Parting:
    """The heaviest of all partitions; the search begins at `start`, returned if none exceeds the `known` ratio."""
    best, units = max(start.ratio, known) * network.unit, network.each_units()
    found: list[list[int]] | None = None
    while True:
        parts, cost = _cheapest(network, units, devices.tolist(), best)
        # Costs are by the denominator: of part A, numerator x B(A) - 2 x denominator.
        if cost >= -2 * best.denominator:
            break
        carried = Fraction(cost + 2 * best.denominator * len(parts), best.numerator)
        best, found = 2 * (len(parts) - 1) / carried, parts
    if found is None:
        return replace(start, exact=True)
    part = np.zeros(network.nodes, np.int64)
    for number, members in enumerate(found):
        part[members] = number
    links = [_leaving(network, units, members, devices) for members in found]
    return Parting(best / network.unit, part[devices], np.concatenate(links), exact=True)


def boxes_of(network: FlowNetwork, product: Product, unsplit: tuple[int, ...], devices: Ints) -> Parting:
    """The partition into boxes. Those without ranks, whose devices may relay, are part of one that has some.

    A switch that adds is a part by itself, or belongs to the box of a device that it is linked with: the heavier of the
    two counts.
    """
    group = _with_relays(network, product.boxes(unsplit), devices, product.topology.num_devices)
    adds = np.flatnonzero(product.topology.reduces)
    alone = adds[group[adds] < 0]
    apart = group.copy()
    apart[alone] = network.nodes + np.arange(len(alone))
    tried = [apart]
    if len(alone):
        linked = np.flatnonzero(group[network.src] >= 0)
        served, first = np.unique(network.dst[linked], return_index=True)
        nearest = apart.copy()
        nearest[served] = group[network.src[linked[first]]]
        joined = group.copy()
        joined[alone] = nearest[alone]
        tried.append(joined)
    return max(
        (_parted(network, partition, devices, adds) for partition in tried), key=lambda partition: partition.ratio
    )


def _parted(network: FlowNetwork, group: Ints, devices: Ints, adds: Ints) -> Parting:
    """The bound that a partition proves; a group without a rank contributes only its links."""
    part = np.zeros(int(group.max()) + 1, np.bool_)
    part[group[devices]] = True
    number = int(part.sum())
    part[group[adds]] = True
    src, dst = group[network.src], group[network.dst]
    links = np.flatnonzero((src != dst) & (src >= 0) & part[src])
    ratio = 2 * (number - 1) / network.bandwidth(links) if number > 1 else Fraction(0)
    return Parting(ratio, group[devices], links)


def _with_relays(network: FlowNetwork, group: Ints, devices: Ints, num_devices: int) -> Ints:
    """The boxes, after those without ranks, and the switches that mostly serve them, joined the nearest box.

    Traffic among relays then costs nothing, and links between them and other boxes count.
    """
    ranked = np.zeros(int(group.max()) + 1, np.bool_)
    ranked[group[devices]] = True
    free = (group >= 0) & ~ranked[group]
    if not free[:num_devices].any():
        return group
    capacity = np.array(network.each_units(), np.float64)
    while True:
        served = np.bincount(network.dst, capacity * free[network.src], network.nodes)
        others = np.bincount(network.src, capacity * ~free[network.dst], network.nodes)
        joining = (group < 0) & ~free & (served > others)
        if not joining.any():
            break
        free |= joining
    near = np.zeros(len(ranked))
    for here, there in ((network.src, network.dst), (network.dst, network.src)):
        between = free[here] & ~free[there] & (group[there] >= 0)
        near += np.bincount(group[there[between]], capacity[between], len(ranked))
    home = int(np.argmax(np.where(ranked, near, -1.0)))
    return np.where(free, home, group)


def _cheapest(
    network: FlowNetwork, units: list[int], devices: list[int], time: Fraction
) -> tuple[list[list[int]], int]:
    """The partition of least cost, and its cost.

    Greedy, device by device: each gets the cost of the cheapest set of it and earlier devices, less what those got. In
    the end the partition consists of the sets whose cost equals what their devices got.
    """
    got: dict[int, int] = {}
    part = {device: {device} for device in devices}
    scaled = [each * time.numerator for each in units]
    # Devices still to come are on the far side of every cut.
    source, sink = network.nodes, network.nodes + 1
    label = np.arange(network.nodes + 2)
    label[devices] = sink
    compiled = len(devices) * len(units) > LITTLE_WORK
    for device in devices:
        label[device] = source
        gains = [(other, amount) for other, amount in got.items() if amount]
        arcs = _arcs(network, scaled, label, gains)
        value, inside = minimum_cut(arcs, source, sink, compiled=compiled)
        got[device] = value - sum(amount for _, amount in gains if amount > 0) - 2 * time.denominator
        together = part[device].union(*(part[other] for other in got if inside[label[other]]))
        for member in together:
            part[member] = together
        label[device] = device
    distinct = {id(members): sorted(members) for members in part.values()}
    return list(distinct.values()), sum(got.values())


def _arcs(network: FlowNetwork, scaled: list[int], label: Ints, gains: list[tuple[int, int]]) -> Arcs:
    """The links, and for every node with a gain an arc that is cut if the gain is missed or a loss is made."""
    source, sink = len(label) - 2, len(label) - 1
    src, dst = label[network.src], label[network.dst]
    kept = np.flatnonzero((src != dst) & (src != sink) & (dst != source))
    ends = [(source, node) if amount > 0 else (node, sink) for node, amount in gains]
    more = np.array(ends, np.int64).reshape(-1, 2)
    return Arcs(
        len(label),
        np.concatenate((src[kept], more[:, 0])),
        np.concatenate((dst[kept], more[:, 1])),
        [scaled[link] for link in kept.tolist()] + [abs(amount) for _, amount in gains],
    )


def _leaving(network: FlowNetwork, units: list[int], members: list[int], devices: Ints) -> Ints:
    """The minimum cut from a part to the other devices."""
    source, sink = network.nodes, network.nodes + 1
    label = np.arange(network.nodes + 2)
    label[devices] = sink
    label[members] = source
    _, inside = minimum_cut(_arcs(network, units, label, []), source, sink, compiled=False)
    return network.leaving(inside[label[:-2]])
