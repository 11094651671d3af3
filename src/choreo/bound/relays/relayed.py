"""The cost of relaying data between the inside of servers and a network, in whole messages.

Let D bytes have to leave some devices, all from one of them, or come into some, all for one of them, or both: what one
device of a server has must reach one of another. At any moment z, whatever has left by then is at most what can cross
in z seconds from the start (`Side`, backwards in time), and whatever enters later is at most what can cross so long
before the end. Between the two is the least latency from the one cut to the other. So for every z

    D  <=  most bytes out in z  +  most bytes in, in T - z - latency

and the least T for which this holds is a bound. With one side only, a message's other end and its latency are added.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from choreo.bound.crossing import Crossing
from choreo.bound.proofs import Asked
from choreo.bound.relays.boxes import Box, box_of
from choreo.bound.relays.sides import Side
from choreo.topology.graph import Bools

__all__ = ["KINDS", "Relayed"]

# The number of moments tried at either end, in this many gaps, and of bisection steps.
MOMENTS, GAPS, HALVINGS = 24, 6.0, 50
# Collectives in which one device must get all that enters a server, and in which one must give all that leaves it.
ENTERING = ("all_gather", "broadcast", "all_reduce", "gather", "reduce")
LEAVING = ("reduce_scatter", "reduce", "all_reduce", "broadcast")
KINDS = tuple(dict.fromkeys(ENTERING + LEAVING))


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """The units that must cross, and the side or the two sides that they leave and enter; `lag_s` is in between."""

    units: int
    sides: tuple[Side, ...]
    lag_s: float

    def time_s(self, unit_bytes: float, known_s: float) -> float:
        """The least time in which units of `unit_bytes` can cross, or `known_s` if that is enough."""
        size = self.units * unit_bytes
        if self._most(known_s - self.lag_s) >= size:
            return known_s
        low, high = known_s, known_s + self.lag_s + sum(_long_enough(side, size) for side in self.sides)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._most(middle - self.lag_s) >= size else (middle, high)
        return low

    def _most(self, left_s: float) -> float:
        """The most bytes that can cross if there are so many seconds besides the lag."""
        if len(self.sides) == 1:
            return float(self.sides[0].most_bytes(np.array([left_s]))[0])
        leaves, enters = self.sides
        after, before = (side.starts_s + side.gap_s * np.linspace(-1.0, GAPS, MOMENTS) for side in self.sides)
        moment = np.concatenate((after, [left_s / 2], left_s - before))
        return float((leaves.most_bytes(moment) + enters.most_bytes(left_s - moment)).min())


def _long_enough(side: Side, size: float) -> float:
    """A time in which so many bytes cross for certain."""
    slowest = min(float(side.inside.sum()), float(side.capacity.sum())) or float(side.own.sum())
    waits_s = side.tail_s + side.turns_s[-1] + len(side.inside) * side.apart_s + 4 * side.gap_s
    return float(max(side.first_s.max(initial=0.0), side.own_s.max(initial=0.0)) + waits_s + size / slowest)


@dataclass(frozen=True, slots=True, eq=False)
class Relayed:
    """The sets of devices that are checked for a collective on a network."""

    entries: tuple[_Entry, ...]

    @staticmethod
    def of(asked: Asked, crossing: Crossing) -> Relayed:
        """Boxes of the inner dimensions, the last and the first of each kind."""
        topology = asked.product.topology
        known = (topology.links.overhead_s > 0) | (topology.links.gap_s > 0)
        if not known.any() or crossing.ways is None or asked.collective not in KINDS:
            return Relayed(())
        return Relayed(tuple(_entries(asked, crossing)))

    def least_s(self, unit_bytes: Fraction) -> float:
        """The greatest of the times that they prove."""
        return _least_s(self.entries, float(unit_bytes)) if unit_bytes else 0.0


@lru_cache(maxsize=256)
def _least_s(entries: tuple[_Entry, ...], unit_bytes: float) -> float:
    """Every schedule that is simulated asks for the same bound. Most entries prove no more than the first."""
    found = 0.0
    for entry in entries:
        found = entry.time_s(unit_bytes, found)
    return found


def _entries(asked: Asked, crossing: Crossing) -> Iterator[_Entry]:
    """For each size of boxes: into one, out of one, and out of one into another; and from a root to all others."""
    yield from _around_root(asked, crossing)
    size = 1
    for block in asked.product.topology.blocks[:-1]:
        size *= block.size
        if size == 1:
            continue
        enters = _first(asked, crossing, size, leaving=False) if asked.collective in ENTERING else None
        leaves = _first(asked, crossing, size, leaving=True) if asked.collective in LEAVING else None
        for found in (enters, leaves):
            if found is not None:
                sides = (*found.sides(), *found.far_sides())
                yield from (_Entry(found.units, (side,), found.other_end_s) for side in sides)
        if enters is not None and leaves is not None and (enters.here & leaves.here).sum() == 0:
            before_s = float(crossing.before_s[enters.links].min())
            for out in leaves.sides():
                for into in enters.sides():
                    yield _Entry(min(enters.units, leaves.units), (out, into), before_s)


def _around_root(asked: Asked, crossing: Crossing) -> Iterator[_Entry]:
    """Between a root and all other devices, which it has links to. The root prepares, or receives, one by one."""
    topology, root = asked.product.topology, asked.root_device
    if asked.collective not in ("broadcast", "reduce") or [
        block.kind for block in topology.blocks if block.size > 1
    ] != ["fully_connected"]:
        return
    inside = np.arange(topology.num_devices) != root
    leaving = asked.collective == "reduce"
    members = np.flatnonzero(inside & np.isin(np.arange(topology.num_devices), asked.by_rank))
    found = box_of(asked, crossing, inside, members, 1, leaving=leaving) if len(members) else None
    if found is None:
        return
    paid_s = crossing.receive_s + crossing.after_s if leaving else crossing.send_s + crossing.before_s
    links, capacity = found.links, topology.links.bandwidth_bytes_per_s
    links = links[np.argsort(-capacity[links], kind="stable")]
    apart_s = np.arange(len(links)) * float((crossing.receive_s if leaving else crossing.send_s)[links].min())
    none = np.zeros(0)
    alone = Side(capacity[links], paid_s[links].min() + apart_s, none, 0.0, 0.0, np.zeros(1), 1e-9, none, none)
    for side in found.sides():
        yield _Entry(1, (side, alone) if leaving else (alone, side), 0.0)


def _first(asked: Asked, crossing: Crossing, size: int, *, leaving: bool) -> Box | None:
    """The first or the last box of a size that data must leave, or enter; None if neither proves anything."""
    topology = asked.product.topology
    boxes = (0, topology.num_devices // size - 1)
    for number in boxes if leaving else boxes[::-1]:
        inside = np.arange(topology.num_devices) // size == number
        units = _units(asked, inside, leaving=leaving)
        members = np.flatnonzero(inside & np.isin(np.arange(topology.num_devices), asked.by_rank))
        if len(members) and units:
            found = box_of(asked, crossing, inside, members, units, leaving=leaving)
            if found is not None:
                return found
    return None


def _units(asked: Asked, inside: Bools, *, leaving: bool) -> int:
    """The units that must come in for one device inside, or leave from one, which must get or give all of it."""
    root = asked.root_device
    match asked.collective:
        case "broadcast":
            return int(inside[root] == leaving and (~inside[asked.by_rank]).any())
        case "reduce":
            return int(inside[root] != leaving and (~inside[asked.by_rank]).any())
        case "all_reduce":
            return int((~inside[asked.by_rank]).any())
        case "gather" if not inside[root]:
            return 0
    return int(asked.shares()[: len(inside)][~inside].sum())
