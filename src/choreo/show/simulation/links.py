"""The time that each message of a simulation spent on each link.

The simulator stores when a message started and when it was completely sent, but not the rate in between. So its bytes
are spread evenly over its time on a link. If messages of different lengths share links, this is an average: the sums
are right, and no link is shown with more than its bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from choreo.simulate import Simulation
from choreo.topology.graph import Floats, Ints

__all__ = ["Crossings", "crossings_of", "throughput"]


@dataclass(frozen=True, slots=True, eq=False)
class Crossings:
    """One row for each message and link it crossed: how many of its bytes did, from when to when.

    In order of link, and of message where they crossed the same.
    """

    message: Ints
    link: Ints
    bytes: Floats
    begin_s: Floats
    end_s: Floats

    def __len__(self) -> int:
        return len(self.message)

    def take(self, rows: Ints) -> Crossings:
        """Some of the rows."""
        return Crossings(self.message[rows], self.link[rows], self.bytes[rows], self.begin_s[rows], self.end_s[rows])

    def on(self, links: Ints) -> tuple[Crossings, Ints]:
        """Only these links, one after another, and which of them each row is about."""
        first, last = (np.searchsorted(self.link, links, side) for side in ("left", "right"))
        count = last - first
        nth = np.arange(count.sum()) - np.repeat(count.cumsum() - count, count)
        return self.take(np.repeat(first, count) + nth), np.repeat(np.arange(len(links)), count)


def crossings_of(simulation: Simulation) -> Crossings:
    """Every crossing of every message.

    A message that cuts through is on all its links from its start until it is out. One that is stored and forwarded is
    on one after another: on the first until it is out, and on the others for the parts of the rest of the time that it
    would need if it met nobody.
    """
    messages = simulation.messages
    hops = np.diff(messages.offsets)[messages.route]
    message = np.repeat(np.arange(len(messages)), hops)
    nth = np.arange(len(message)) - np.repeat(hops.cumsum() - hops, hops)
    where = messages.offsets[messages.route[message]] + nth
    link = messages.links[where].astype(np.int64)
    crossed = messages.bytes[message] * messages.share[where]
    if simulation.store_and_forward:
        begin, end = _one_by_one(simulation, message, link, nth)
    else:
        begin, end = messages.start_s[message], messages.out_s[message]
    return Crossings(message, link, crossed, begin, end).take(np.argsort(link, kind="stable"))


def _one_by_one(simulation: Simulation, message: Ints, link: Ints, nth: Ints) -> tuple[Floats, Floats]:
    """When a stored and forwarded message was on each of its links."""
    messages, links = simulation.messages, simulation.topology.links
    latency = links.latency_s[link]
    later = nth > 0
    need = np.where(later, np.divide(messages.bytes[message], links.bandwidth_bytes_per_s[link]), 0.0)

    def by_message(values: Floats) -> Floats:
        """The sum over each message, at every one of its rows."""
        sums: Floats = np.bincount(message, values, len(messages)).astype(np.float64)
        return sums[message]

    there = messages.arrived_s[message] - messages.out_s[message] - by_message(latency)
    part = np.divide(need, by_message(need), out=np.zeros_like(need), where=by_message(need) > 0)
    crossing_s = np.where(later, there * part, (messages.out_s - messages.start_s)[message])
    done = np.cumsum(crossing_s + latency)
    before = done - crossing_s - latency
    first = np.concatenate((np.zeros(1, np.int64), np.flatnonzero(nth == 0)))[np.cumsum(nth == 0)]
    begin = messages.start_s[message] + before - before[first]
    return begin, begin + crossing_s


def throughput(simulation: Simulation, crossings: Crossings, link: int) -> tuple[Floats, Floats]:
    """The moments at which a link's throughput changed, and the bytes a second from each of them on."""
    here, _ = crossings.on(np.array([link]))
    lasts = here.end_s > here.begin_s
    begin, end = here.begin_s[lasts], here.end_s[lasts]
    rate = here.bytes[lasts] / (end - begin)
    times, at = np.unique(np.concatenate((begin, end)), return_inverse=True)
    level = np.bincount(at, np.concatenate((rate, -rate)), len(times)).cumsum()
    level[np.abs(level) < 1e-9 * rate.max(initial=0.0)] = 0.0
    return times, np.clip(level, 0.0, simulation.topology.links.bandwidth_bytes_per_s[link])
