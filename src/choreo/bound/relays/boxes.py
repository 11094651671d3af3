"""Boxes of devices, like servers, out of which or into which data must cross, and how much can (see `sides`).

Messages from outside must end where they enter, as with one NIC for each GPU. Those to the outside may come from any
device, through another's NIC, but a device prepares one at a time: so a single source has its own link from its first
message on, and one more from every next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from choreo.bound.crossing import Crossing
from choreo.bound.proofs import Asked
from choreo.bound.relays.sides import Side, turns
from choreo.topology import Topology
from choreo.topology.graph import Bools, Floats, Ints

__all__ = ["Box", "box_of"]

# Networks with more routes between a box and the rest are skipped.
MOST_ROUTES = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """Some devices with their own switches (`here`), out of which or into which some units must cross over `links`.

    `member` is the device that must get or give all of it; `all_alike` says that every device here must, and that all
    are alike.
    """

    asked: Asked
    crossing: Crossing
    leaving: bool
    here: Bools
    units: int
    links: Ints
    member: int
    all_alike: bool
    inner: Ints
    at: dict[int, Ints]

    @property
    def other_end_s(self) -> float:
        """The least time of a message before it enters, or after it left."""
        crossing = self.crossing
        ends_s = crossing.after_s + crossing.receive_s if self.leaving else crossing.send_s + crossing.before_s
        return float(ends_s[self.links].min())

    def sides(self) -> Iterator[Side]:
        """On average over all devices, if all are alike, and otherwise for the one."""
        crossing, topology = self.crossing, self.asked.product.topology
        capacity = topology.links.bandwidth_bytes_per_s
        near_s, far_s = (crossing.send_s, crossing.receive_s)[:: 1 if self.leaving else -1]
        crosses_s = near_s + (crossing.before_s if self.leaving else crossing.after_s)
        own, relays = self.at[self.member], self._relays()
        gap = min(float(_gap_s(topology)[those].min()) for those in relays.values())
        own_s = crosses_s[own]
        if self.leaving and not self.all_alike:  # it may also send through the others' links, one message after another
            own = np.concatenate([own, *relays.values()])
            own_s = crosses_s[own] + gap * np.maximum(np.arange(len(own)) - len(own_s) + 1, 0)
        unit_s = float(far_s[self.inner].min())
        tail_s = crossing.least_s(self.inner) - unit_s
        side = Side(
            capacity[own],
            own_s,
            capacity[self.inner],
            float(near_s[self.inner].min()) if _keep_to_one_path(topology) else 0.0,
            tail_s,
            turns(unit_s, unit_s + tail_s, len(relays) if self.all_alike else 1),
            gap,
            np.array([capacity[those].sum() for those in relays.values()]),
            np.array([crosses_s[those].min() for those in relays.values()]),
        )
        switches = int((self.here & topology.reduces).sum())
        yield replace(side, takers=1 + switches)
        if switches:
            yield self._beside(side, switches)

    def _beside(self, side: Side, switches: int) -> Side:
        """The relays as if they alone received, and how much more switches that reduce can add to that.

        Up to `few` messages of a switch are not as late as a relay's must be, by `sooner_s`. Each uses one link; so do
        all its other messages together, for half a gap. Out of S a relay may use any link, which costs another half.
        """
        ways, there = self.crossing.ways, list(self._relays())
        assert ways is not None
        between = ways.message_s if not self.leaving else ways.message_s.T
        unit_s = float(self._overheads()[self.inner].min())
        whole_s = float(between[there, self.member].min())
        gap, sooner_s = side.gap_s, max(0.0, whole_s - side.tail_s - float(side.turns_s[0]))
        few = int(np.ceil(sooner_s / gap)) + 1
        seconds = few * (sooner_s + (gap if self.leaving else gap / 2)) + gap / 2
        beyond = switches * seconds * float(side.capacity.max())
        return replace(side, turns_s=np.array([unit_s]), tail_s=whole_s - unit_s, beyond=beyond)

    def _overheads(self) -> Floats:
        """The least overhead of a message over each link, at a device."""
        topology = self.asked.product.topology
        return topology.links.overhead_s * min(1.0, float(topology.slowdown.min()))

    def _relays(self) -> dict[int, Ints]:
        """The links of the other devices."""
        return {device: those for device, those in self.at.items() if device != self.member and len(those)}

    def far_sides(self) -> Iterator[Side]:
        """Into this box if all must come from one device far away."""
        if self.leaving or self.asked.collective not in ("broadcast", "all_reduce"):
            return
        asked, ways = self.asked, self.crossing.ways
        assert ways is not None
        source = asked.root_device if asked.root is not None else int(asked.by_rank[~self.here[asked.by_rank]][0])

        def since_start(device: int) -> float:
            paid = float(self.crossing.receive_s[self.at[device]].min())
            return float(ways.arrival_s[source, device]) + paid - self.other_end_s

        for side in self.sides():
            first_s = np.maximum(side.first_s, [since_start(device) for device in self._relays()])
            own_s = np.maximum(side.own_s, since_start(self.member)) if len(side.own) else side.own_s
            yield replace(side, first_s=first_s, own_s=own_s)


def box_of(asked: Asked, crossing: Crossing, inside: Bools, members: Ints, units: int, *, leaving: bool) -> Box | None:
    """A box and its links; None if this gives no bound."""
    topology = asked.product.topology
    links = topology.links
    here = _with_own_switches(topology, inside)
    near, far = (links.src, links.dst) if leaving else (links.dst, links.src)
    alive = links.bandwidth_bytes_per_s > 0
    crosses = alive & here[near] & ~here[far]
    if (near[crosses] >= topology.num_devices).any() or not _end_where_they_enter(topology, here):
        return None
    rooted = asked.root is not None and inside[asked.root_device]
    member = asked.root_device if rooted else int(members[0])
    inner = np.flatnonzero(alive & here[far] & (near == member))
    at = {device: np.flatnonzero(crosses & (near == device)) for device in np.flatnonzero(inside).tolist()}
    some = [link for device, those in at.items() if device != member for link in those.tolist()]
    if not len(inner) or not some or _gap_s(topology)[some].min() <= 0:
        return None
    ranked = np.isin(np.flatnonzero(inside), asked.by_rank).all() and len(asked.by_rank) == len(asked.devices)
    alike = not rooted and bool(ranked) and _are_alike(topology, inside, alive & here[far] & here[near], near, at)
    every = np.concatenate(list(at.values()))
    return Box(asked, crossing, leaving, here, units, every, member, alike, inner, at)


def _are_alike(topology: Topology, inside: Bools, inner: Bools, near: Ints, at: dict[int, Ints]) -> bool:
    """Whether all devices have as much capacity inside and outside, with the same costs."""
    links = topology.links
    columns = (links.bandwidth_bytes_per_s, links.latency_s, links.overhead_s, links.gap_s)

    def same(sets: list[Ints]) -> bool:
        figures = [[np.sort(column[those]) for column in columns] for those in sets]
        return all(np.array_equal(a, b) for figure in figures for a, b in zip(figures[0], figure, strict=True))

    devices = np.flatnonzero(inside)
    return same([np.flatnonzero(inner & (near == device)) for device in devices]) and same(list(at.values()))


def _keep_to_one_path(topology: Topology) -> bool:
    """Whether every message takes one path, and so one link at either end."""
    return all(block.kind in ("ring", "line", "fully_connected", "switch") for block in topology.blocks)


def _gap_s(topology: Topology) -> Floats:
    """The least time between two messages over each link."""
    found: Floats = np.maximum(topology.links.overhead_s, topology.links.gap_s) * min(
        1.0, float(topology.slowdown.min())
    )
    return found


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
