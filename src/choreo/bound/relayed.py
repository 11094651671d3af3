"""The cost of forwarding data that came over a network, if a device receives whole messages, one at a time.

Let S be some devices, like those of a server, into which D bytes must come, all of which one device v of S must get. A
byte reaches v over v's own links from outside, or another device r of S receives it and forwards it over v's links
inside S. Let F(w) be the bytes that devices other than v have received by time w. The rest goes through v's links
inside, which have the capacity C, after w and before the end T:

    D - (what v gets by its own links from outside) - F(w)  <=  C x (T - w - least time of a message inside)

A device receives one message at a time, so two are at least g apart, the overhead or the gap between messages. A device
with links of capacity b from outside has received at most b x (w - p) by time w, if p is the least time of a message;
but only at the moment when a message is complete. Averaged over w from a to a + g it is at most b x (a - p), where a
steady stream would make it b x (a - p + g / 2). If a - p is below g it is at most b x (a - p + g)^2 / (4 g). The
inequality also holds on average, for every a, and so gives a bound.

Messages from outside must end where they enter S, as with one NIC for each GPU. A switch of S that reduces may receive
messages too, over any of the links. With k receivers on a link, steps come k times as often, and the average is at most
b x (a - p + g (k - 1) / (2 k)).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from choreo.bound.crossing import Crossing
from choreo.bound.proofs import Asked
from choreo.topology import Topology
from choreo.topology.graph import Bools, Floats, Ints

__all__ = ["Relayed"]

# Networks with more routes between S and the rest are skipped.
MOST_ROUTES = 1 << 16
# The number of moments tried, and of bisection steps.
MOMENTS, HALVINGS = 64, 60
KINDS = ("all_gather", "broadcast", "all_reduce", "gather")


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """A set of devices of which one must get all that comes in: how much, in units, and over which links.

    `direct` and `inside` are the capacities into that device. `tail_s` is the least time of a message inside. The
    columns are by relay, and each relay's links have `takers` receivers.
    """

    units: int
    direct: float
    direct_s: float
    inside: float
    tail_s: float
    gap_s: float
    capacity: Floats
    least_s: Floats
    takers: int

    def time_s(self, unit_bytes: float) -> float:
        """The least time in which units of `unit_bytes` can be forwarded."""
        size, gap = self.units * unit_bytes, self.gap_s
        first = float(self.least_s.min()) - gap
        last = first + 2 * gap + size / float(self.capacity.sum())
        moment = np.linspace(first, last, MOMENTS)
        taken_in = self._taken_in(moment)
        low, high = np.zeros(MOMENTS), np.full(MOMENTS, last + self.tail_s + gap + size / self.inside)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            missing = size - self.direct * np.maximum(middle - self.direct_s, 0.0) - taken_in
            left = middle - self.tail_s - moment
            average = np.where(left >= gap, left - gap / 2, np.maximum(left, 0.0) ** 2 / (2 * gap))
            enough = missing <= self.inside * average
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return float(low.max())

    def _taken_in(self, moment: Floats) -> Floats:
        """The most that relays have received, averaged over one gap from each moment on."""
        since, gap = moment[:, None] - self.least_s, self.gap_s
        early = np.maximum(since + gap, 0.0) ** 2 / (4 * gap)
        if self.takers > 1:  # as much as a steady stream
            early = np.where(since >= 0, since + gap / 2, 2 * early)
        steps = np.where(since >= gap, since + gap * (self.takers - 1) / (2 * self.takers), early)
        found: Floats = (self.capacity * steps).sum(axis=1)
        return found


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
        return max((one.time_s(float(unit_bytes)) for one in self.entries), default=0.0) if unit_bytes else 0.0


def _entries(asked: Asked, crossing: Crossing) -> Iterator[_Entry]:
    topology = asked.product.topology
    device = np.arange(topology.num_devices)
    ranked = np.isin(device, asked.by_rank)
    size = 1
    for block in topology.blocks[:-1]:
        size *= block.size
        for box in (topology.num_devices // size - 1, 0):
            inside = device // size == box
            members = np.flatnonzero(inside & ranked)
            units = _units(asked, inside)
            if len(members) and units and size > 1:
                target = asked.root_device if asked.collective == "gather" else int(members[0])
                found = _entry(asked, crossing, inside, target, units)
                if found is not None:
                    yield found
                    break


def _units(asked: Asked, inside: Bools) -> int:
    """How much must come in for one device inside, which must get all of it."""
    root = asked.root_device
    match asked.collective:
        case "broadcast":
            return 0 if inside[root] else 1
        case "all_reduce":
            return int((~inside[asked.by_rank]).any())
        case "gather" if not inside[root]:
            return 0
    return int(asked.shares()[: len(inside)][~inside].sum())


def _entry(asked: Asked, crossing: Crossing, inside: Bools, target: int, units: int) -> _Entry | None:
    """What comes into some devices for one of them; None if this gives no bound."""
    topology = asked.product.topology
    links = topology.links
    here = _with_own_switches(topology, inside)
    alive = links.bandwidth_bytes_per_s > 0
    enters = alive & ~here[links.src] & here[links.dst]
    if (links.dst[enters] >= topology.num_devices).any() or not _end_where_they_enter(topology, here):
        return None
    inner = np.flatnonzero(alive & here[links.src] & (links.dst == target))
    at = {device: np.flatnonzero(enters & (links.dst == device)) for device in np.flatnonzero(inside).tolist()}
    direct = at.pop(target)
    at = {device: those for device, those in at.items() if len(those)}
    if not len(inner) or not at:
        return None
    gap_s = np.maximum(links.overhead_s, links.gap_s) * min(1.0, float(topology.slowdown.min()))
    gap = min(float(gap_s[those].min()) for those in at.values())
    if gap <= 0:
        return None
    capacity = links.bandwidth_bytes_per_s
    return _Entry(
        units,
        float(capacity[direct].sum()),
        _least_s(asked, crossing, here, direct, target),
        float(capacity[inner].sum()),
        crossing.least_s(inner),
        gap,
        np.array([capacity[those].sum() for those in at.values()]),
        np.array([_least_s(asked, crossing, here, those, device) for device, those in at.items()]),
        1 + int((here & topology.reduces).sum()),
    )


def _least_s(asked: Asked, crossing: Crossing, here: Bools, links: Ints, device: int) -> float:
    """The least time of a message over some links into a device, from anywhere or from the only source."""
    least = crossing.least_s(links)
    if asked.collective not in ("broadcast", "all_reduce") or not len(links) or crossing.ways is None:
        return least
    source = asked.root_device if asked.root is not None else int(asked.by_rank[~here[asked.by_rank]][0])
    paid = crossing.receive_s[links].min()
    return max(least, float(crossing.ways.arrival_s[source, device] + paid))


def _with_own_switches(topology: Topology, inside: Bools) -> Bools:
    """Some devices, and the switches that are linked only with them."""
    here = np.concatenate((inside, np.ones(topology.num_switches, np.bool_)))
    while True:
        leaks = np.zeros(len(here), np.bool_)
        np.logical_or.at(leaks, topology.links.src, ~here[topology.links.dst])
        np.logical_or.at(leaks, topology.links.dst, ~here[topology.links.src])
        leaks[: topology.num_devices] = False
        if not (here & leaks).any():
            return here
        here &= ~leaks


def _end_where_they_enter(topology: Topology, here: Bools) -> bool:
    """Whether no message from outside to a device inside crosses a link inside."""
    far = np.flatnonzero(~here & (topology.reduces | (np.arange(topology.num_nodes) < topology.num_devices)))
    near = np.flatnonzero(here[: topology.num_devices])
    if len(near) * len(far) > MOST_ROUTES:
        return False
    crossed = topology.routes(np.repeat(far, len(near)), np.tile(near, len(far))).links
    return not (here[topology.links.src[crossed]] & here[topology.links.dst[crossed]]).any()
