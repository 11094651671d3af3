"""When each message of a simulation was on each link, and how busy that made the links over time.

The simulator keeps when a message set out and when it was out, not the rate in between, so a message's bytes are taken
as spread evenly over its time on a link. Where links are shared by messages of different length that is an average:
sums are right, and no link is shown as busier than it can be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from choreo.simulate import Simulation
from choreo.topology.graph import Bools, Floats, Ints

__all__ = [
    "BINS",
    "Crossings",
    "Series",
    "crossings_of",
    "load_over_time",
    "sent_by_line",
    "sent_over_time",
    "throughput",
]

# The parts that a page divides the time into.
BINS = 200
# Loads are computed for this many links at a time, to bound the memory.
LINKS_AT_ONCE = 4096


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
    crossed = messages.bytes[message] * _shares(simulation)[where]
    if simulation.store_and_forward:
        begin, end = _one_by_one(simulation, message, link, nth)
    else:
        begin, end = messages.start_s[message], messages.out_s[message]
    return Crossings(message, link, crossed, begin, end).take(np.argsort(link, kind="stable"))


def _shares(simulation: Simulation) -> Floats:
    """The part of a message on each link of each route; a route is looked up once, for one of its messages."""
    messages, topology = simulation.messages, simulation.topology
    share = np.ones(len(messages.links))
    if not len(messages) or topology.routing == "hashed":
        return share
    used, first = np.unique(messages.route, return_index=True)
    ends = [_nodes(simulation, first, side[first].astype(np.int64)) for side in (messages.src, messages.dst)]
    routes = topology.routes(*ends)
    counts = np.diff(routes.offsets)
    at = np.repeat(messages.offsets[used] - routes.offsets[:-1], counts) + np.arange(len(routes.links))
    share[at] = routes.share
    return share


def _nodes(simulation: Simulation, message: Ints, rank: Ints) -> Ints:
    """The nodes of ranks of the jobs that messages belong to."""
    first = np.cumsum([0, *(len(job.node) for job in simulation.jobs)])
    nodes = np.concatenate([job.node for job in simulation.jobs])
    found: Ints = nodes[first[simulation.messages.job[message]] + rank]
    return found


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
    took = np.where(later, there * part, (messages.out_s - messages.start_s)[message])
    done = np.cumsum(took + latency)
    before = done - took - latency
    first = np.concatenate((np.zeros(1, np.int64), np.flatnonzero(nth == 0)))[np.cumsum(nth == 0)]
    begin = messages.start_s[message] + before - before[first]
    return begin, begin + took


def load_over_time(simulation: Simulation, crossings: Crossings, links: Ints, bins: int) -> Floats:
    """How busy each of some links was, from 0 to 1: a row for each link, in `bins` equal parts of the time."""
    rows = []
    for start in range(0, len(links), LINKS_AT_ONCE):
        some = links[start : start + LINKS_AT_ONCE]
        spread = _spread(*crossings.on(some), len(some), simulation.time_s, bins)
        most = simulation.topology.links.bandwidth_bytes_per_s[some] * simulation.time_s / bins
        load = np.divide(spread, most[:, None], out=np.zeros_like(spread), where=most[:, None] > 0)
        rows.append(np.clip(load, 0.0, 1.0))
    return np.concatenate(rows) if rows else np.zeros((0, bins))


def sent_over_time(simulation: Simulation, bins: int) -> Floats:
    """The bytes a second that all messages together put onto the network, in `bins` equal parts of the time."""
    sent: Floats = sent_by_line(simulation, np.zeros(len(simulation.messages), np.int64), 1, bins)[0]
    return sent


def sent_by_line(simulation: Simulation, line: Ints, lines: int, bins: int) -> Floats:
    """The same for each of some lines; `line` says by message which one it belongs to."""
    messages = simulation.messages
    every = np.arange(len(messages))
    sent = Crossings(every, every, messages.bytes, messages.start_s, messages.out_s)
    spread = _spread(sent, line, lines, simulation.time_s, bins)
    width = simulation.time_s / bins
    rate: Floats = spread / width if width > 0 else spread
    return rate


def _spread(crossings: Crossings, row: Ints, rows: int, time_s: float, bins: int) -> Floats:
    """The bytes that fall into each of the bins of each row."""
    width = time_s / bins
    lasts = crossings.end_s > crossings.begin_s
    if width <= 0 or not lasts.any():
        return np.zeros((rows, bins))
    row, size = row[lasts], crossings.bytes[lasts]
    begin, end = crossings.begin_s[lasts] / width, crossings.end_s[lasts] / width
    rate = size / (end - begin)  # bytes a bin
    first = np.clip(begin.astype(np.int64), 0, bins - 1)
    last = np.clip(end.astype(np.int64), 0, bins - 1)
    whole = first == last
    at_first = np.where(whole, size, rate * (first + 1 - begin))
    at_last = np.where(whole, 0.0, rate * (end - last))
    between = np.where(whole, 0.0, rate)
    wide = bins + 1  # one more, for what ends with the last bin

    def summed(column: Ints, values: Floats) -> Floats:
        made: Floats = np.bincount(row * wide + column, values, rows * wide).astype(np.float64)
        return made.reshape(rows, wide)

    steps = summed(first + 1, between) - summed(last, between)
    level = steps.cumsum(axis=1)
    # Adding and subtracting the same numbers leaves rounding errors.
    level[np.abs(level) < 1e-9 * rate.max()] = 0.0
    total: Floats = (level + summed(first, at_first) + summed(last, at_last))[:, :bins]
    return total


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


class Series:
    """Loads over time in percent. Equal ones are kept once, as many links of a run have the same load."""

    def __init__(self, simulation: Simulation, crossings: Crossings) -> None:
        self.simulation, self.crossings = simulation, crossings
        self.rows: list[list[int]] = []
        self.known: dict[bytes, int] = {}
        self.carried: Bools = simulation.loads.link_bytes > 0
        self.of(np.zeros(0, np.int64))  # the first is the one of links that carry nothing

    def of(self, links: Ints) -> int:
        """The number of the series of some links together: at each moment, the load of the busiest."""
        busy = links[self.carried[links]]
        return self._kept(load_over_time(self.simulation, self.crossings, busy, BINS).max(axis=0, initial=0.0))

    def each(self, links: Ints) -> list[int]:
        """The numbers of the series of some links, one by one."""
        return [self._kept(load) for load in load_over_time(self.simulation, self.crossings, links, BINS)]

    def _kept(self, load: Floats) -> int:
        percent = np.where(load > 0, np.maximum(1, np.rint(load * 100)), 0).astype(np.int8)
        key = percent.tobytes()
        if key not in self.known:
            self.known[key] = len(self.rows)
            self.rows.append(percent.tolist())
        return self.known[key]
