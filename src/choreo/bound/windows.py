"""The time windows in which a link can carry useful bytes, in a schedule of a given length.

Take a cut such that every byte over it must come from all of some sources and reach all of some targets. A message over
link i begins only after its sender has prepared it, and the path from the link to a target takes time as well. So the
link is useful only in a window, which ends when the rest of the path takes all the remaining time.

The window narrows in two stages. Late, a message still reaches its device, but there is no time to forward it: it
serves one of m targets. Early, no device has yet received from another: a message comes from one of m sources. Count
the pairs of a source and a target that bytes serve. Then a link with capacity c carries for all pairs, in a time T,

    c x sum over the stages (weight of the stage) x (T - what is before the stage - what is after it)

at most, where negative terms count as zero. Together the links must carry what crosses the cut, and the least T that
allows it is a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from choreo.bound.flow_network import FlowNetwork, shortest_ways
from choreo.bound.latency import MOST_NODES, overheads
from choreo.topology import Topology
from choreo.topology.graph import Floats, Ints

__all__ = ["Stages", "Ways", "least_time"]

# Targets from this fraction of the greatest distance on count as equally far, to allow for rounding.
AS_FAR = 1 - 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """The times before or after the two stages of each link's window. The first has a `weight`, the second the rest."""

    first_s: Floats
    second_s: Floats
    weight: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Ways:
    """The least time from each node to each other: of latency, with what a last receiver pays, and of whole messages.

    `ends` are the nodes where messages may begin and end: devices, and switches that add.
    """

    ends: Ints
    latency_s: Floats
    arrival_s: Floats
    message_s: Floats

    @staticmethod
    def of_topology(topology: Topology) -> Ways | None:
        """The times of a topology; None if it is too large for all pairs."""
        if topology.num_nodes > MOST_NODES:
            return None
        network = FlowNetwork.of_topology(topology)
        latency_s, overhead_s = topology.links.latency_s[network.number], overheads(topology)[network.number]
        is_device = np.arange(topology.num_nodes) < topology.num_devices
        paying = is_device[:, None].astype(np.int64) + is_device
        least = overhead_s.min(initial=np.inf)
        away = arrival = message = np.full((topology.num_nodes,) * 2, np.inf)
        for most in np.unique(overhead_s):
            away = shortest_ways(network, np.where(overhead_s <= most, latency_s, np.inf))
            arrival = np.minimum(arrival, away + most)
            # By a switch's own link only the device at the other end pays; elsewhere both ends do.
            message = np.minimum(message, away + most * (paying if most == least else 2))
        np.fill_diagonal(arrival, 0.0)
        return Ways(np.flatnonzero(is_device | topology.reduces), away, arrival, message)

    def before(self, sent_s: Floats, src: Ints, sources: Ints) -> Stages:
        """The early stages at links that lead from src, where a message over each costs its sender something."""
        return self._stages(self.turned(), sent_s, src, sources)

    def after(self, latency_s: Floats, receive_s: Floats, dst: Ints, targets: Ints) -> Stages:
        """The late stages at links that lead to dst, where a message over each costs its receiver something."""
        found = self._stages(self, receive_s, dst, targets)
        return Stages(latency_s + found.first_s, latency_s + found.second_s, found.weight)

    def turned(self) -> Ways:
        """The ways to each node from each other."""
        return Ways(self.ends, self.latency_s.T, self.arrival_s.T, self.message_s.T)

    @staticmethod
    def _stages(ways: Ways, paid_s: Floats, at: Ints, others: Ints) -> Stages:
        """From the ends of links to others: directly to the nearest, and to the nearest through a forwarding node."""
        there = np.ix_(at, others)
        first_s: Floats = np.maximum(ways.arrival_s[there], ways.latency_s[there] + paid_s[:, None]).min(axis=1)
        if len(others) < 2:
            return Stages(first_s, first_s)
        onward = ways.message_s[np.ix_(ways.ends, others)]
        onward[ways.ends[:, None] == others] = np.inf
        nearest_s = onward.min(axis=1)  # from an end to one of the others
        there = np.ix_(at, ways.ends)
        passed_s = np.maximum(ways.arrival_s[there], ways.latency_s[there] + paid_s[:, None]) + nearest_s
        return Stages(first_s, np.maximum(first_s, passed_s.min(axis=1)), 1 / len(others))

    def some(self, at: Ints, capacity: Floats, others: Ints, *, after: bool) -> list[Ints]:
        """Targets or sources worth checking: the one farthest from the links, all that are as far, and all."""
        away = capacity @ (self.arrival_s if after else self.arrival_s.T)[np.ix_(at, others)]
        far = others[away >= AS_FAR * away.max()]
        return [far[:1], *([far] if len(far) > 1 else []), *([others] if len(others) > len(far) else [])]


def least_time(seconds: float, capacity: Floats, before: Stages, after: Stages, turns_s: Floats) -> float:
    """The least time in which links carry what takes them `seconds` at full capacity.

    `turns_s` is by how much the windows of the links are shorter, the first of them by the first, in whichever order.
    """
    sides = [((times_s.first_s, times_s.weight), (times_s.second_s, 1 - times_s.weight)) for times_s in (before, after)]
    gaps = [(start + end, capacity * (early * late)) for start, early in sides[0] for end, late in sides[1]]
    gap, weight = (np.concatenate(column) for column in zip(*gaps, strict=True))
    usable = (weight > 0) & np.isfinite(gap)
    gap, weight = gap[usable], weight[usable]
    if not len(gap):
        return seconds
    order = np.argsort(gap, kind="stable")
    # No part of the capacity carries more than all of it, so each, by its gap, gives a time that is right or too long.
    # The least is where the gap or the turn changes. No link has more than the greatest capacity.
    most = capacity.max()
    by_gap, by_turn = np.cumsum(weight[order]), most * np.arange(1, len(turns_s) + 1)
    part = np.union1d(by_gap, by_turn[by_turn < by_gap[-1]])
    lost = _up_to(part, by_gap, np.cumsum((weight * gap)[order])) + _up_to(part, by_turn, np.cumsum(most * turns_s))
    return float(((seconds * capacity.sum() + lost) / part).min())


def _up_to(part: Floats, capacity: Floats, lost: Floats) -> Floats:
    """What is lost of parts of the capacity, from what is lost up to some."""
    found: Floats = np.interp(part, np.concatenate(([0.0], capacity)), np.concatenate(([0.0], lost)))
    return found
