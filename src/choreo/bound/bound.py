"""Bounds on a collective's time that hold for every schedule on a topology.

Data that must leave a set of devices must cross the links out of it: that is the bandwidth bound. Data that one device
has and another needs must cross every link of some path between them: that is the latency bound. The proofs are in
docs/explanation/bound.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from choreo.bound.crossing import Crossing
from choreo.bound.flow_network import FlowNetwork, reached_from
from choreo.bound.latency import MOST_PAIRS, Distance, farthest, farthest_pair
from choreo.bound.over_time import OverTime
from choreo.bound.product import Product
from choreo.bound.proofs import PROOFS, Asked, BoundProof, Cut
from choreo.bound.relays.relayed import Relayed
from choreo.collectives import get_collective
from choreo.errors import NoPathError, UsageError, shown
from choreo.results import Result, plain, result
from choreo.topology import Topology, devices_of, get_topology
from choreo.topology.graph import Bools, Ints
from choreo.units import BEYOND_MEASURE, counted, format_bytes, format_time, size_of

__all__ = ["Bound", "Cut", "bound"]

MOST_WEIGHT = 1 << 31

# What a fraction refers to: the whole vector, or one rank's share of it.
VECTOR, SHARE = "vector", "share"
UNITS = {
    "broadcast": VECTOR,
    "reduce": VECTOR,
    "all_reduce": VECTOR,
    "send_recv": VECTOR,
    "scatter": SHARE,
    "gather": SHARE,
    "all_gather": SHARE,
    "reduce_scatter": SHARE,
    "all_to_all": SHARE,
    "barrier": SHARE,
}


@result
class Bound(Result):
    """The least time that any schedule of a collective can take on a topology.

    `bandwidth_bound_s` is `fraction_per_GBps` seconds for every GB of `of_bytes`. These are the bytes of the whole
    "vector" (`of`), which is size_bytes, or of a "share": one rank's part of it (in an all_to_all, what a rank sends to
    one other rank). `fraction_in_links` is the same for a slowest live link of bandwidth 1. If all links are alike
    (`links_alike`), that is the form usual in theory: 7/2 on a ring of eight.

    `proof` is the kind of proof: a "cut", "prices" of links, or the "volume" between parts. `exact` says that no proof
    of these kinds gives a larger bound. `farthest` are the two devices whose distance is the latency bound.
    `crossing_bound_s` is the largest, over several cuts, of the bandwidth bound plus `crossing_latency_s`, the latency
    to the cut and beyond it.
    """

    columns: ClassVar[tuple[str, ...]] = (
        "collective",
        "topology",
        "ranks",
        "size_bytes",
        "bound_s",
        "bandwidth_bound_s",
        "latency_bound_s",
        "crossing_bound_s",
        "crossing_latency_s",
        "fraction",
        "unit",
        "fraction_per_GBps",
        "fraction_in_links",
        "of",
        "of_bytes",
        "exact",
        "proof",
        "cut",
        "farthest",
    )

    collective: str
    topology: str
    ranks: int
    size_bytes: float
    of: str
    of_bytes: float
    fraction_per_GBps: Fraction  # noqa: N815 - GB/s is spelled so
    fraction_in_links: Fraction
    links_alike: bool
    bandwidth_bound_s: float
    latency_bound_s: float
    proof: str
    exact: bool
    cut: Cut
    cut_links: tuple[dict[str, Any], ...] = field(compare=False)
    farthest: tuple[int, int] | None = None
    crossing_bound_s: float = 0.0
    crossing_latency_s: float = 0.0

    @property
    def bound_s(self) -> float:
        """The greatest of the three bounds."""
        return max(self.bandwidth_bound_s, self.latency_bound_s, self.crossing_bound_s)

    @property
    def binds(self) -> str:
        """The bound that is larger: "latency", "bandwidth", or "bandwidth and latency"."""
        if self.latency_bound_s >= max(self.bandwidth_bound_s, self.crossing_bound_s):
            return "latency" if self.latency_bound_s > self.bandwidth_bound_s else "bandwidth"
        return "bandwidth and latency" if self.crossing_bound_s > self.bandwidth_bound_s else "bandwidth"

    @property
    def fraction(self) -> Fraction:
        """The fraction in `unit`: by links where all are equal, otherwise per GB/s."""
        return self.fraction_in_links if self.links_alike else self.fraction_per_GBps

    @property
    def unit(self) -> str:
        """The unit of `fraction`."""
        return "links" if self.links_alike else "per GB/s"

    def summary(self) -> str:
        """The bound, and whether bandwidth or latency sets it."""
        return (
            f"{self.collective} of {format_bytes(self.size_bytes)} over {counted(self.ranks, 'rank')} on "
            f"{shown(self.topology)}: at least {format_time(self.bound_s)}, by {self.binds}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Fractions are texts, like 7/6; the links of the cut are named by their ends."""
        cut: dict[str, Any] = {"devices": self.cut.devices, "links": self.cut_links}
        if self.cut.prices:
            cut["prices"] = self.cut.prices
        if self.cut.parts:
            cut["parts"] = self.cut.parts
        return {name: plain(cut) if name == "cut" else self._plain(name) for name in self.columns}


def bound(
    collective: str,
    topology: Topology | str | Path,
    size_bytes: float | str,
    *,
    root: int | None = None,
    devices: Sequence[int | str] | Ints | None = None,
    weights: Sequence[int] | Ints | None = None,
) -> Bound:
    """Compute the least time that any schedule of a collective of `size_bytes` can take on a topology.

    `devices` are the devices of ranks 0, 1, ...: all of them by default. Several ranks may share one. `weights` are the
    relative sizes of the contract's blocks, as whole numbers, if they are not all equal.

    >>> found = bound("all_reduce", "ring(8, 50GB/s, 1us)", "1MiB")
    >>> f"{found.bound_s * 1e6:.1f} us"
    '19.4 us'
    """
    contract = get_collective(collective)
    size_bytes = float(size_of(size_bytes))
    topology = get_topology(topology)
    by_rank = np.arange(topology.num_devices) if devices is None else devices_of(topology, devices)
    root = contract.check_root(root, len(by_rank))
    blocks = contract.blocks(len(by_rank))
    given = None if weights is None else _checked_weights(collective, weights, blocks)
    places = np.asarray(by_rank, np.int64).tobytes()
    found = _searched(collective, topology, places, root, None if given is None else given.tobytes())
    network, proof, distance = found.network, found.proof, found.distance
    unit = UNITS[collective]
    fraction = proof.fraction * (1 if given is None or blocks == 1 else Fraction(blocks, int(given.sum())))
    unit_bytes = Fraction(0 if contract.size_per == "nothing" else size_bytes)
    if unit == SHARE:
        unit_bytes /= len(by_rank)
    bandwidth_bound_s = fraction * unit_bytes / 10**9
    if not (bandwidth_bound_s <= BEYOND_MEASURE and distance.latency_s <= BEYOND_MEASURE):
        raise UsageError(f"{collective} takes longer than can be counted on {topology.name}; use numbers of this world")
    scale = fraction / proof.fraction if proof.fraction else Fraction(1)
    crossing = found.crossing.greatest(proof.sets, scale * unit_bytes)
    relayed_s = found.relayed.least_s(scale * unit_bytes)
    known_s = max(crossing[0], relayed_s, distance.latency_s, float(bandwidth_bound_s))
    over_time_s = found.over_time.least_s(float(scale * unit_bytes), known_s)
    for time_s in (relayed_s, over_time_s if over_time_s > known_s else 0.0):
        if time_s > crossing[0]:
            crossing = time_s, time_s - float(bandwidth_bound_s)
    return Bound(
        collective=collective,
        topology=topology.name,
        ranks=len(by_rank),
        size_bytes=size_bytes,
        of=unit,
        of_bytes=float(unit_bytes),
        fraction_per_GBps=fraction,
        fraction_in_links=fraction * _slowest(network),
        links_alike=len(set(network.values)) == 1,
        bandwidth_bound_s=float(bandwidth_bound_s),
        latency_bound_s=distance.latency_s,
        proof=proof.kind,
        exact=proof.exact,
        cut=proof.cut,
        cut_links=found.cut_links,
        farthest=None if distance.src is None or distance.dst is None else (distance.src, distance.dst),
        crossing_bound_s=crossing[0],
        crossing_latency_s=crossing[1],
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Searched:
    """The parts of a bound that do not depend on the size: the proof, the greatest distance, and their links."""

    network: FlowNetwork
    proof: BoundProof
    distance: Distance
    crossing: Crossing
    relayed: Relayed
    over_time: OverTime
    cut_links: tuple[dict[str, Any], ...]


@lru_cache(maxsize=8)
def _searched(
    collective: str, topology: Topology, by_rank: bytes, root: int | None, weights: bytes | None
) -> _Searched:
    """Cached, because callers often need several sizes."""
    network = FlowNetwork.of_topology(topology)
    given = None if weights is None else np.frombuffer(weights, np.int64)
    product = Product.of_topology(topology)
    asked = Asked(collective, network, product, np.frombuffer(by_rank, np.int64), root, given)
    proof, distance, relayed, over_time = BoundProof(), Distance(), Relayed(()), OverTime(())
    crossing = Crossing.of_topology(topology)
    if len(asked.devices) > 1:
        _check_ways(asked, topology)
        proof, distance = PROOFS[collective](asked), _distance(asked)
        relayed, over_time = Relayed.of(asked, crossing), OverTime.of(asked, distance)
    return _Searched(network, proof, distance, crossing, relayed, over_time, _named(topology, proof.cut.links))


def _named(topology: Topology, links: tuple[int, ...]) -> tuple[dict[str, Any], ...]:
    """The ends and the bandwidth of links, by the names of their nodes."""
    table, name = topology.links, topology.node_name
    return tuple(
        {
            "from": name(int(table.src[link])),
            "to": name(int(table.dst[link])),
            "bandwidth_bytes_per_s": float(table.bandwidth_bytes_per_s[link]),
        }
        for link in links
    )


def _checked_weights(collective: str, weights: Sequence[int] | Ints, blocks: int) -> Ints:
    given = _whole_numbers(weights)
    if given is None or len(given) != blocks or given.min() < 0 or not given.any():
        raise UsageError(
            f"weights must be {counted(blocks, 'whole number')} of at least 0, some above, one for each block of "
            f"{collective}, not {weights!r:.60}"
        )
    if float(given.sum(dtype=np.float64)) > MOST_WEIGHT:
        raise UsageError(f"weights must add up to at most {MOST_WEIGHT}; use smaller ones")
    return given


def _whole_numbers(given: object) -> Ints | None:
    """A list of whole numbers as an array; None if it is anything else."""
    try:
        numbers = np.asarray(given)
    except ValueError:  # lists of different lengths
        return None
    return numbers.astype(np.int64) if numbers.ndim == 1 and numbers.dtype.kind in "iu" else None


def _slowest(network: FlowNetwork) -> Fraction:
    return min(network.values, default=0) * network.unit


def _check_ways(asked: Asked, topology: Topology) -> None:
    """Refuse a collective whose data cannot reach its destinations."""
    if asked.product.is_connected:
        return
    here = asked.root_device
    ways = {"out": asked.network, "in": asked.network.backwards()}
    if asked.root is not None:
        del ways["in" if asked.collective in ("broadcast", "scatter") else "out"]
    for way, network in ways.items():
        missing = asked.by_rank[~reached_from(network, here)[asked.by_rank]]
        if len(missing):
            ends = (here, int(missing[0])) if way == "out" else (int(missing[0]), here)
            first, last = map(topology.node_name, ends)
            raise NoPathError(
                f"there is no way from device {first} to device {last} of {topology.name} over links that have "
                "bandwidth; give them some, or place the ranks elsewhere"
            )


def _distance(asked: Asked) -> Distance:
    """The greatest distance that any data must travel; empty blocks travel nowhere."""
    ranks, root = asked.by_rank, np.full(len(asked.by_rank), asked.root_device)
    full = np.ones(len(ranks), np.bool_) if asked.weights is None else asked.weights > 0
    match asked.collective:
        case "broadcast":
            src, dst = root, ranks
        case "reduce":
            src, dst = ranks, root
        case "scatter":
            src, dst = root[full], ranks[full]
        case "gather":
            src, dst = ranks[full], root[full]
        case "send_recv":
            src, dst = ranks[full], np.roll(ranks, -1)[full]
        case "all_to_all" | "all_gather" | "reduce_scatter" if asked.weights is not None:
            src, dst = _pairs(asked, full)
        case _:
            return farthest(asked.network, asked.product, asked.devices)
    return farthest_pair(asked.network, asked.product, src, dst) if len(src) else Distance()


def _pairs(asked: Asked, full: Bools) -> tuple[Ints, Ints]:
    """The pairs of devices between which non-empty blocks travel; only the first if there are very many."""
    ranks = asked.by_rank
    if asked.collective == "all_to_all":
        src, dst = np.divmod(np.flatnonzero(full)[:MOST_PAIRS], len(ranks))
        return ranks[src], ranks[dst]
    those = ranks[full][: max(1, MOST_PAIRS // len(ranks))]
    ends = np.repeat(those, len(ranks)), np.tile(ranks, len(those))
    return ends if asked.collective == "all_gather" else ends[::-1]
