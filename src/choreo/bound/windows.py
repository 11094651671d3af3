"""How long a link can carry bytes that are of use, in a schedule of some length.

Take a cut, and let every byte over it have to come from all of some sources and reach all of some targets. A message
over link i begins no sooner than its sender has prepared it, and the way from the link to a target takes time as well.
So the link is of use in a window only, which ends when the rest of the way takes all the time that is left.

The window narrows in two stages. Late, a message still reaches the device that it is for, but nobody could pass it on:
of m targets it serves one. Early, nobody has yet heard of anybody else: of m sources a message is from one. Count the
pairs of a source and a target that bytes serve. Then a link with capacity c carries for all pairs, in a time T,

    c x sum over the stages (weight of the stage) x (T - what is before the stage - what is after it)

at most, where nothing is below zero. Together the links must carry what crosses the cut, and the least T that lets them
is a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from choreo.bound.flow_network import FlowNetwork, shortest_ways
from choreo.bound.latency import MOST_NODES, overheads
from choreo.topology import Topology
from choreo.topology.graph import Floats, Ints

__all__ = ["Stages", "Ways", "least_time"]

# Targets that are as far away as the farthest, but for rounding.
AS_FAR = 1 - 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """What is before or after the two stages of each link's window; the first has a `weight`, the second the rest."""

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
        """The ways of a topology, None if it is too large to look at all."""
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

    def before(self, sent_s: Floats, sources: Ints) -> Stages:
        """The early stages at links whose messages need a time to be sent."""
        if len(sources) < 2:
            return Stages(sent_s, sent_s)
        heard = self.message_s[np.ix_(sources, self.ends)]
        heard[sources[:, None] == self.ends] = np.inf
        return Stages(sent_s, sent_s + heard.min(), 1 / len(sources))

    def after(self, latency_s: Floats, receive_s: Floats, dst: Ints, targets: Ints) -> Stages:
        """The late stages at links that lead to dst, where a message over each costs its receiver something."""
        there = np.ix_(dst, targets)
        taken_in_s = np.maximum(self.arrival_s[there], self.latency_s[there] + receive_s[:, None])
        first_s: Floats = latency_s + taken_in_s.min(axis=1)
        if len(targets) < 2:
            return Stages(first_s, first_s)
        onward = self.message_s[np.ix_(self.ends, targets)]
        onward[self.ends[:, None] == targets] = np.inf
        nearest_s = onward.min(axis=1)  # from an end to a target
        there = np.ix_(dst, self.ends)
        taken_in_s = np.maximum(self.arrival_s[there], self.latency_s[there] + receive_s[:, None])
        second_s = np.maximum(first_s, latency_s + (taken_in_s + nearest_s).min(axis=1))
        return Stages(first_s, second_s, 1 / len(targets))

    def farthest(self, dst: Ints, capacity: Floats, targets: Ints) -> list[Ints]:
        """Sets of targets worth looking at: one that is farthest from links, all that are as far, and all."""
        away = capacity @ self.arrival_s[np.ix_(dst, targets)]
        far = targets[away >= AS_FAR * away.max()]
        return [far[:1], *([far] if len(far) > 1 else []), *([targets] if len(targets) > len(far) else [])]


def least_time(seconds: float, capacity: Floats, before: Stages, after: Stages) -> float:
    """The least time in which links carry what takes them some seconds if they do nothing else."""
    sides = [((one.first_s, one.weight), (one.second_s, 1 - one.weight)) for one in (before, after)]
    gaps = [(start + end, capacity * (early * late)) for start, early in sides[0] for end, late in sides[1]]
    gap, weight = (np.concatenate(column) for column in zip(*gaps, strict=True))
    usable = (weight > 0) & np.isfinite(gap)
    gap, weight = gap[usable], weight[usable]
    order = np.argsort(gap, kind="stable")
    # Any of the stages carry no more than all of them, so each prefix gives a time that is too long or right.
    times = (seconds * capacity.sum() + np.cumsum((weight * gap)[order])) / np.cumsum(weight[order])
    return float(times.min(initial=np.inf)) if len(times) else seconds
