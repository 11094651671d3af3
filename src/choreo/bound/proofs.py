"""The bandwidth bound of each collective: data that must leave some devices, over the capacity of the links out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

import numpy as np

from choreo.bound.bottlenecks import narrowest
from choreo.bound.crossing import LinkSet
from choreo.bound.cuts import Question, best_groups
from choreo.bound.demands import Demand, Everybody, Pairs
from choreo.bound.flow_network import FlowNetwork
from choreo.bound.partitions import Parting, best_boxes, boxes_of, heaviest_partition
from choreo.bound.product import MOST_FAMILIES, Product, answer
from choreo.bound.traffic import traffic_bound, traffic_cuts
from choreo.topology.graph import Bools, Ints

__all__ = ["PROOFS", "Asked", "BoundProof", "Cut"]

MOST_TRIED = 1 << 21  # links times choices of dimensions


@dataclass(frozen=True, slots=True)
class Cut:
    """The proof of a bandwidth bound: some devices, and all the links out of them.

    If no single set of devices binds, `devices` is empty and `prices` gives the price of each link. If the bound is
    what must move between `parts` of the devices, the links are those that all of it crosses.
    """

    devices: tuple[int, ...] = ()
    links: tuple[int, ...] = ()
    prices: tuple[int, ...] = ()
    parts: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class BoundProof:
    """A fraction, and the nodes or priced links that prove it.

    `sets` are sets of links with the fractions they prove, its own among them: less bandwidth may come with more
    latency.
    """

    fraction: Fraction = Fraction(0)
    kind: str = "cut"
    exact: bool = True
    cut: Cut = Cut()
    sets: tuple[LinkSet, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A collective on a network: the devices of its ranks, in order of rank, and the root's rank if it has one.

    `weights` are the relative sizes of the contract's blocks; None if all are equal.
    """

    collective: str
    network: FlowNetwork
    product: Product
    by_rank: Ints
    root: int | None
    weights: Ints | None = None

    @property
    def devices(self) -> Ints:
        """The devices that have ranks."""
        return np.unique(self.by_rank)

    def shares(self) -> Ints:
        """The total weight of the blocks at each node, for a collective with a block for each rank."""
        weights = np.ones(len(self.by_rank), np.int64) if self.weights is None else self.weights
        shares = np.zeros(self.network.nodes, np.int64)
        np.add.at(shares, self.by_rank, weights)
        return shares

    @property
    def root_device(self) -> int:
        """The root's device, or the first rank's if the collective has no root."""
        return int(self.by_rank[self.root or 0])


def _from_cuts(
    asked: Asked, weight: Ints, sinks: Ints, *, backwards: bool, known: Fraction = Fraction(0)
) -> BoundProof:
    """The bound by the heaviest cut: `weight` must reach every sink, or come from every sink if backwards."""
    if not weight.any():
        return BoundProof()
    network = asked.network.backwards() if backwards else asked.network
    question = Question(network, weight, sinks)
    found = answer(question, asked.product, known)
    inside = ~found.inside if backwards else found.inside
    groups = (group for unsplit in _families(asked) for group in best_groups(question, asked.product.boxes(unsplit)))
    sets = (_link_set(asked, cut.ratio, ~cut.inside if backwards else cut.inside) for cut in (found, *groups))
    return BoundProof(found.ratio, "cut", found.exact, _cut(asked, inside), tuple(sets))


def _link_set(asked: Asked, ratio: Fraction, inside: Bools) -> LinkSet:
    """The links out of a set of nodes, the sources that all crossing data comes from, and the targets it must reach."""
    devices, collective = asked.devices, asked.collective
    nobody, root = devices[:0], np.array([asked.root_device])
    sources = {"broadcast": root, "scatter": root, "all_gather": nobody, "gather": nobody}
    targets = {"reduce": root, "gather": root, "reduce_scatter": nobody, "scatter": nobody}
    return LinkSet(
        ratio,
        asked.network.number[asked.network.leaving(inside)],
        True,
        sources.get(collective, devices[inside[devices]]),
        targets.get(collective, devices[~inside[devices]]),
    )


def _families(asked: Asked) -> list[tuple[int, ...]]:
    """The choices of dimensions whose boxes are tried as well; none in a network where that takes too long."""
    families = asked.product.unsplit()[:MOST_FAMILIES]
    return families if len(families) * len(asked.network.src) <= MOST_TRIED else []


def _cut(asked: Asked, inside: Bools) -> Cut:
    devices = np.flatnonzero(inside[: asked.product.topology.num_devices])
    links = asked.network.number[asked.network.leaving(inside)]
    return Cut(tuple(devices.tolist()), tuple(links.tolist()))


def _all_gather(asked: Asked, *, backwards: bool = False) -> BoundProof:
    """Every rank's share must reach every rank."""
    shares = asked.shares()
    return _or_bottleneck(asked, _from_cuts(asked, shares, asked.devices, backwards=backwards), int(shares.sum()))


def _broadcast(asked: Asked, *, backwards: bool = False) -> BoundProof:
    """The root's vector must reach every rank."""
    return _or_bottleneck(asked, _from_root(asked, backwards=backwards), 1)


def _from_root(asked: Asked, *, backwards: bool, known: Fraction = Fraction(0)) -> BoundProof:
    """The heaviest cut between the root and another rank."""
    root = asked.root_device
    weight = (np.arange(asked.network.nodes) == root).astype(np.int64)
    return _from_cuts(asked, weight, asked.devices[asked.devices != root], backwards=backwards, known=known)


def _gather(asked: Asked, *, backwards: bool = False) -> BoundProof:
    """Every rank's share must reach the root."""
    weight = asked.shares()
    weight[asked.root_device] = 0
    return _from_cuts(asked, weight, np.array([asked.root_device]), backwards=backwards)


def _all_reduce(asked: Asked) -> BoundProof:
    """Every rank's contribution must reach every rank, and every part of the devices must send and receive."""
    ways = (False,) if asked.network.is_balanced() else (False, True)
    networks = [asked.network.backwards() if backwards else asked.network for backwards in ways]
    boxes = [best_boxes(network, asked.product, asked.devices) for network in networks]
    known = max(parting.ratio for parting in boxes)
    cuts = [_from_root(asked, backwards=backwards, known=known) for backwards in ways]
    best = max(cuts, key=lambda proof: proof.fraction)
    known = max(known, best.fraction)
    parted: list[Parting] = []
    for network, start in zip(networks, boxes, strict=True):
        parted.append(heaviest_partition(network, asked.product, asked.devices, start, known))
        known = max(known, parted[-1].ratio)
    sets = [link_set for cut in cuts for link_set in cut.sets]
    for network in networks:
        boxed = (boxes_of(network, asked.product, unsplit, asked.devices) for unsplit in _families(asked))
        sets += [LinkSet(parting.ratio, network.number[parting.links]) for parting in boxed]
    if known > best.fraction:
        best = _from_partition(asked, max(parted, key=lambda parting: parting.ratio))
        sets.append(LinkSet(best.fraction, np.array(best.cut.links, np.int64)))
    exact = all(cut.exact for cut in cuts) and all(parting.exact for parting in parted)
    return _or_bottleneck(asked, replace(best, exact=exact, sets=tuple(sets)), 2)


def _or_bottleneck(asked: Asked, found: BoundProof, messages: int) -> BoundProof:
    """The same, or the bound of a bottleneck that so many messages must pass for each group of devices but one."""
    narrow = narrowest(asked.network, asked.product, asked.devices)
    if narrow is None:
        return found
    narrow = replace(narrow, ratio=narrow.ratio * messages)
    sets = (*found.sets, LinkSet(narrow.ratio, asked.network.number[narrow.links]))
    best = _from_partition(asked, narrow) if narrow.ratio > found.fraction else found
    return replace(best, sets=sets)


def _from_partition(asked: Asked, found: Parting) -> BoundProof:
    order = np.argsort(found.part, kind="stable")
    members = asked.devices[order].tolist()
    ends = [*(np.flatnonzero(np.diff(found.part[order])) + 1).tolist(), len(members)]
    parts = tuple(tuple(members[start:end]) for start, end in zip([0, *ends], ends, strict=False))
    links = tuple(asked.network.number[found.links].tolist())
    return BoundProof(found.ratio, "volume", found.exact, Cut(tuple(asked.devices.tolist()), links, parts=parts))


def _all_to_all(asked: Asked) -> BoundProof:
    """A block from every rank to every other."""
    devices = asked.product.topology.num_devices
    if asked.weights is None:
        return _from_traffic(asked, Everybody(asked.shares()[:devices]))
    src, dst = np.divmod(np.arange(len(asked.weights)), len(asked.by_rank))
    return _from_traffic(asked, Pairs(devices, asked.by_rank[src], asked.by_rank[dst], asked.weights))


def _send_recv(asked: Asked) -> BoundProof:
    """A block from every rank to the next."""
    devices, following = asked.product.topology.num_devices, np.roll(asked.by_rank, -1)
    weights = np.ones(len(asked.by_rank), np.int64) if asked.weights is None else asked.weights
    return _from_traffic(asked, Pairs(devices, asked.by_rank, following, weights))


def _from_traffic(asked: Asked, demand: Demand) -> BoundProof:
    if isinstance(demand, Pairs) and not demand.units[demand.src != demand.dst].any():
        return BoundProof()
    found, network = traffic_bound(asked.network, asked.product, demand), asked.network
    tried = traffic_cuts(network, asked.product, demand) if _families(asked) else ()
    crossed = [(cut.ratio, cut.inside) for cut in (found, *tried) if cut.inside is not None]
    sets = [LinkSet(ratio, network.number[network.leaving(inside)], True) for ratio, inside in crossed]
    if found.inside is not None:
        return BoundProof(found.ratio, "cut", found.exact, _cut(asked, found.inside), tuple(sets))
    prices = np.zeros(0, np.int64) if found.prices is None else found.prices
    links = np.flatnonzero(prices)
    sets.append(LinkSet(found.ratio, network.number[links], prices=prices[links]))
    cut = Cut((), tuple(network.number[links].tolist()), tuple(prices[links].tolist()))
    return BoundProof(found.ratio, "prices", found.exact, cut, tuple(sets))


PROOFS: dict[str, Callable[[Asked], BoundProof]] = {
    "broadcast": _broadcast,
    "reduce": partial(_broadcast, backwards=True),
    "scatter": partial(_gather, backwards=True),
    "gather": _gather,
    "all_gather": _all_gather,
    "reduce_scatter": partial(_all_gather, backwards=True),
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "barrier": lambda asked: BoundProof(),
    "send_recv": _send_recv,
}
