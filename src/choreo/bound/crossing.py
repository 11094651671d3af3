"""The cost of crossing a cut besides bandwidth: the least latency and overhead of a message that crosses.

The last byte that crosses some links is in a message. It arrives after the latency of its whole route, and then costs
its receiver an overhead. No message crosses before its sender has prepared it. So for any set of links whose bandwidth
proves a time t, a schedule takes at least

    least preparation of a message that crosses  +  t  +  least (latency + taking in) of a message that crosses

With store and forward, the latency up to the cut comes before and only the rest after. The smaller of the two sums
holds in both cases. A message begins and ends at a device, or at a switch that reduces; at a switch it costs nothing if
it uses the switch's own link.

If it is known which devices must receive all that crosses a cut, or which it must come from, each link is bounded by
itself: see `windows`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product

import numpy as np

from choreo.bound.windows import Stages, Ways, least_time
from choreo.topology import Topology
from choreo.topology.graph import Bools, Floats, Ints

__all__ = ["Crossing", "LinkSet"]

# Blocks in which a message takes one path, and is not spread over several.
ONE_WAY = ("ring", "line", "fully_connected", "switch")


def _nobody() -> Ints:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class LinkSet:
    """A time for each unit of data and GB/s, and the links whose bandwidth proves it.

    If they are all the links out of a set (`is_cut`), `sources` are devices inside from each of which all that crosses
    must come, and `targets` are devices outside each of which it must reach. None if there are no such devices. Links
    may count differently, by their `prices`.
    """

    fraction: Fraction
    links: Ints
    is_cut: bool = False
    sources: Ints = field(default_factory=_nobody)
    targets: Ints = field(default_factory=_nobody)
    prices: Ints | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Crossing:
    """For each link, over its messages: the least send overhead, latency before it, latency from it, receive overhead.

    `ways` are the times between all nodes; None in a large network. `overhead_s` is the least of any message, and
    `one_way` says that each message leaves its sender over one link and arrives over one, and that no switch adds.
    """

    topology: Topology
    send_s: Floats
    before_s: Floats
    after_s: Floats
    receive_s: Floats
    ways: Ways | None
    overhead_s: float
    one_way: bool

    @staticmethod
    def of_topology(topology: Topology) -> Crossing:
        """The figures of a topology's links."""
        links, adds = topology.links, topology.reduces
        ends = adds.copy()
        ends[: topology.num_devices] = True
        alive = links.bandwidth_bytes_per_s > 0
        before = _nearest(links.src[alive], links.dst[alive], links.latency_s[alive], ends)[links.src]
        after = _nearest(links.dst[alive], links.src[alive], links.latency_s[alive], ends)[links.dst]
        overhead_s = links.overhead_s * min(1.0, float(topology.slowdown.min()))
        send_s, receive_s = (np.where(adds[end], 0.0, overhead_s) for end in (links.src, links.dst))
        one_way = bool(alive.all()) and not adds.any() and all(block.kind in ONE_WAY for block in topology.blocks)
        least_s = float(overhead_s.min(initial=np.inf)) if len(overhead_s) else 0.0
        ways = Ways.of_topology(topology)
        return Crossing(topology, send_s, before, links.latency_s + after, receive_s, ways, least_s, one_way)

    def least_s(self, links: Ints) -> float:
        """The least time of the messages over some links, besides their bytes."""
        if not len(links):
            return 0.0
        send_s, before_s, after_s, receive_s = (
            column[links] for column in (self.send_s, self.before_s, self.after_s, self.receive_s)
        )
        cut_through = send_s.min() + (before_s + after_s + receive_s).min()
        stored = (send_s + before_s).min() + (after_s + receive_s).min()
        least = float(min(cut_through, stored))
        return least if np.isfinite(least) else 0.0

    def greatest(self, found: Iterable[LinkSet], unit_bytes: Fraction) -> tuple[float, float]:
        """The greatest time that some sets of links prove, and how much of it is not bandwidth."""
        best = 0.0, 0.0
        for link_set in found:
            bandwidth_s = float(link_set.fraction * unit_bytes / 10**9)
            if bandwidth_s > 0:
                time_s = self._time_s(link_set, bandwidth_s)
                best = max(best, (time_s, bandwidth_s))
        return best[0], best[0] - best[1]

    def _time_s(self, link_set: LinkSet, bandwidth_s: float) -> float:
        """The time that a set of links proves; `bandwidth_s` is what its bandwidth alone proves."""
        least_s = bandwidth_s + self.least_s(link_set.links)
        if self._one_link_a_message(link_set.links):
            least_s = max(least_s, self._in_turn_s(link_set, bandwidth_s))
        if self.ways is None or not link_set.is_cut:
            return least_s
        links, at = self.topology.links, link_set.links
        capacity, src, dst = links.bandwidth_bytes_per_s[at], links.src[at], links.dst[at]
        sources = self._some(src, capacity, link_set.sources, after=False)
        targets = self._some(dst, capacity, link_set.targets, after=True)
        befores = [(self._before(at, some), self._turns(src, links.src, some)) for some in sources]
        afters = [(self._after(at, some), self._turns(dst, links.dst, some)) for some in targets]
        times = (
            least_time(bandwidth_s, capacity, before, after, (early + late) * self.overhead_s)
            for (before, early), (after, late) in product(befores, afters)
        )
        return max(least_s, *times)

    def _turns(self, ends: Ints, all_ends: Ints, others: Ints | None) -> Floats:
        """How many messages come before those over the first of a cut's links, over the second, and so on.

        `ends` are the near ends of its links, or the far ones, `all_ends` those of all links, and `others` what all
        that crosses must come from, or reach. One device sends one message after another, also if the cut is elsewhere;
        then the third may instead be passed on by another device, which takes as long as two messages.
        """
        turns = np.arange(len(ends))
        if not self.one_way or not len(ends):
            return np.zeros(len(ends))
        if ends[0] < self.topology.num_devices and (ends == ends[0]).all() and (all_ends == ends[0]).sum() == len(ends):
            return turns.astype(np.float64)
        alone = others is not None and len(others) == 1
        return np.minimum(turns, 2.0) if alone else np.zeros(len(ends))

    def _one_link_a_message(self, links: Ints) -> bool:
        """Whether every message takes one link, all of these alike: then each costs the devices at its link's ends."""
        topology = self.topology
        if [block.kind for block in topology.blocks if block.size > 1] != ["fully_connected"] or not len(links):
            return False
        table = topology.links
        columns = (table.bandwidth_bytes_per_s, self.send_s, self.receive_s, self.after_s)
        ends = np.maximum(table.src[links], table.dst[links])
        alive = bool((table.bandwidth_bytes_per_s[np.maximum(table.src, table.dst) < topology.num_devices] > 0).all())
        return (
            alive
            and bool((ends < topology.num_devices).all())
            and all(np.ptp(column[links]) == 0 for column in columns)
        )

    def _in_turn_s(self, link_set: LinkSet, bandwidth_s: float) -> float:
        """The time that links prove if a device prepares one message after another, and receives one after another.

        Of its links the n-th has its first message n overheads after the start, and its last one n before the end.
        """
        table, links, first = self.topology.links, link_set.links, link_set.links[0]
        waits = [
            _nth(ends[links]) * float(cost[first])
            for ends, cost in ((table.src, self.send_s), (table.dst, self.receive_s))
        ]
        # The early ones are taken to be the late ones and the dearest too, which lets them carry the most.
        apart_s = np.sort(waits[0]) + np.sort(waits[1])
        prices = np.ones(len(links)) if link_set.prices is None else np.sort(link_set.prices)[::-1].astype(np.float64)
        gap_s = apart_s + float(self.send_s[first] + self.after_s[first] + self.receive_s[first])
        times = (bandwidth_s * prices.sum() + np.cumsum(prices * gap_s)) / np.cumsum(prices)
        return float(times.min())

    def _some(self, ends: Ints, capacity: Floats, others: Ints, *, after: bool) -> list[Ints | None]:
        """Candidate sets of targets, or sources, of all that crosses the links; None for any."""
        assert self.ways is not None
        return [*self.ways.some(ends, capacity, others, after=after)] if len(others) else [None]

    def _before(self, at: Ints, sources: Ints | None) -> Stages:
        """The times before the windows of links; all that crosses must come from `sources`, if given."""
        assert self.ways is not None
        links, sent_s = self.topology.links, self.send_s[at]
        if sources is not None:
            return self.ways.before(sent_s, links.src[at], sources)
        devices = np.arange(self.topology.num_devices)
        return Stages.single(self.ways.before(sent_s, links.src[at], devices).times_s[0])

    def _after(self, at: Ints, targets: Ints | None) -> Stages:
        """The times after the windows of links; all that crosses must reach `targets`, if given."""
        assert self.ways is not None
        links = self.topology.links
        figures = links.latency_s[at], self.receive_s[at], links.dst[at]
        if targets is not None:
            return self.ways.after(*figures, targets)
        return Stages.single(self.ways.after(*figures, np.arange(self.topology.num_devices)).times_s[0])


def _nth(ends: Ints) -> Ints:
    """The number of links with the same end that come before each."""
    order = np.argsort(ends, kind="stable")
    nth = np.empty(len(ends), np.int64)
    nth[order] = np.arange(len(ends)) - np.searchsorted(ends[order], ends[order])
    return nth


def _nearest(src: Ints, dst: Ints, latency_s: Floats, ends: Bools) -> Floats:
    """The least latency from any end to each node; zero at the ends."""
    away = np.where(ends, 0.0, np.inf)
    inner = ~ends[dst]
    src, dst, latency_s = src[inner], dst[inner], latency_s[inner]
    while True:
        nearer = away.copy()
        np.minimum.at(nearer, dst, away[src] + latency_s)
        if (nearer == away).all():
            return away
        away = nearer
