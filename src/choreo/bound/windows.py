"""The time windows in which a link can carry useful bytes, in a schedule of a given length.

Take a cut such that every byte over it must come from all of some sources and reach all of some targets. A message over
link i begins only after its sender has prepared it, and the path from the link to a target takes time as well. So the
link is useful only in a window, which ends when the rest of the path takes all the remaining time.

The window narrows in stages. At the very end a message still reaches its device, but there is no time to forward it: it
serves one of m targets. Before that it can be forwarded to a second target, to a third, and so on. At the start, no
device has yet received from another: a message comes from one of m sources. Count the pairs of a source and a target
that bytes serve. Then a link with capacity c carries for all pairs, in a time T,

    c x sum over the stages (weight of the stage) x (T - what is before the stage - what is after it)

at most, where negative terms count as zero. Together the links must carry what crosses the cut, and the least T that
allows it is a bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from choreo.bound.flow_network import FlowNetwork, shortest_ways
from choreo.bound.latency import MOST_NODES, overheads
from choreo.topology import Topology
from choreo.topology.graph import Floats, Ints

__all__ = ["Stages", "Ways", "least_time"]

# Targets from this fraction of the greatest distance on count as equally far, to allow for rounding.
AS_FAR = 1 - 1e-9
# The most stages of a window.
MOST_STAGES = 5
# Of how many distances targets that are so far apart are tried.
MOST_APART = 6


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """The times before or after the stages of each link's window: a row for each stage, and the `weight` of each."""

    times_s: Floats
    weight: Floats

    @staticmethod
    def single(times_s: Floats) -> Stages:
        """One stage: what crosses serves everything."""
        return Stages(times_s[None], np.ones(1))


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
        return Stages(latency_s + found.times_s, found.weight)

    def turned(self) -> Ways:
        """The ways to each node from each other."""
        return Ways(self.ends, self.latency_s.T, self.arrival_s.T, self.message_s.T)

    @staticmethod
    def _stages(ways: Ways, paid_s: Floats, at: Ints, others: Ints) -> Stages:
        """From the ends of links to others: directly to the nearest, and through a forwarding node to more and more."""
        there = np.ix_(at, others)
        first_s: Floats = np.maximum(ways.arrival_s[there], ways.latency_s[there] + paid_s[:, None]).min(axis=1)
        if len(others) < 2:
            return Stages.single(first_s)
        onward = ways.message_s[np.ix_(ways.ends, others)]
        onward[ways.ends[:, None] == others] = 0.0
        onward = np.sort(onward, axis=1)
        there = np.ix_(at, ways.ends)
        arrival_s = np.maximum(ways.arrival_s[there], ways.latency_s[there] + paid_s[:, None])
        # A stage begins with the n-th of the others; all until the next stage count as reached together with it.
        nth = np.concatenate(([0], _jumps(np.nan_to_num(onward, posinf=0.0).mean(axis=0), MOST_STAGES - 1)))
        passed_s = [np.maximum(first_s, (arrival_s + onward[:, n]).min(axis=1)) for n in nth[1:].tolist()]
        return Stages(np.stack([first_s, *passed_s]), np.diff(nth, append=len(others)) / len(others))

    def some(self, at: Ints, capacity: Floats, others: Ints, *, after: bool) -> list[Ints]:
        """Targets or sources worth checking: the one farthest from the links, all as far, all, and some far apart."""
        ways = self if after else self.turned()
        away = capacity @ ways.arrival_s[np.ix_(at, others)]
        far = others[away >= AS_FAR * away.max()]
        some = [far[:1], far, others, *ways._far_apart(others[np.argsort(-away, kind="stable")])]
        return list({chosen.tobytes(): chosen for chosen in some}.values())

    def _far_apart(self, others: Ints) -> Iterator[Ints]:
        """As many as are at least so far from each other, the first first, for the greatest distances there are."""
        between = self.message_s[np.ix_(others, others)]
        between = np.minimum(between, between.T)
        distances = np.unique(between[~np.eye(len(others), dtype=np.bool_)])
        for least in distances[::-1][:MOST_APART]:
            left = np.ones(len(others), np.bool_)
            chosen = []
            while left.any():
                chosen.append(int(left.argmax()))
                left &= between[chosen[-1]] >= least * AS_FAR
                left[chosen[-1]] = False
            yield np.sort(others[chosen])


def least_time(seconds: float, capacity: Floats, before: Stages, after: Stages, turns_s: Floats) -> float:
    """The least time in which links carry what takes them `seconds` at full capacity.

    `turns_s` is by how much the windows of the links are shorter, the first of them by the first, in whichever order.
    """
    gap = np.concatenate([start + end for start in before.times_s for end in after.times_s])
    weight = np.concatenate([capacity * (early * late) for early in before.weight for late in after.weight])
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


def _jumps(times_s: Floats, most: int) -> Ints:
    """Where increasing times rise the most, besides at their start, in order; the second is always among them."""
    rises = np.diff(times_s)
    rises[0] = np.inf
    return np.sort(np.argsort(-rises, kind="stable")[:most]) + 1


def _up_to(part: Floats, capacity: Floats, lost: Floats) -> Floats:
    """What is lost of parts of the capacity, from what is lost up to some."""
    found: Floats = np.interp(part, np.concatenate(([0.0], capacity)), np.concatenate(([0.0], lost)))
    return found
