"""The load of links and ranks over time: the bytes of messages in equal intervals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from choreo.compiled import import_compiled, prefers_python
from choreo.show.simulation.links import crossings_of
from choreo.simulate import Simulation
from choreo.topology.graph import Floats, Ints

__all__ = ["BINS", "Sent", "Series", "load_over_time", "sent_by_line", "sent_over_time", "spread_in_python"]

# The parts that a page divides the time into.
BINS = 200
# Loads are computed for this many links at a time, to bound the memory.
LINKS_AT_ONCE = 4096

Int32s = npt.NDArray[np.int32]


class Sent(NamedTuple):
    """Messages, and the rows that each adds to.

    Message i has the route w = way[i] and adds to rows[offsets[w] : offsets[w + 1]], to each a share of its bytes. A
    negative row is ignored.
    """

    start: Floats
    out: Floats
    bytes: Floats
    way: Int32s
    offsets: Ints
    rows: Int32s
    share: Floats

    def over_time(self, num_rows: int, time_s: float, bins: int) -> Floats:
        """The bytes in each bin of each row, by the compiled loop where there is one."""
        width = time_s / bins
        if width <= 0 or not num_rows:
            return np.zeros((num_rows, bins))
        core = None if prefers_python() else import_compiled("choreo.show.simulation._bins")
        filled = (
            spread_in_python(self, num_rows, bins, width) if core is None else core.spread(*self, num_rows, bins, width)
        )
        return np.frombuffer(filled, np.float64).reshape(num_rows, bins)


def spread_in_python(sent: Sent, num_rows: int, bins: int, width: float) -> bytes:
    """The twin of the compiled `spread`: the bytes in each bin of each row, as doubles. `width` is that of a bin."""
    way, offsets = sent.way, sent.offsets
    hops = np.diff(offsets)[way]
    message = np.repeat(np.arange(len(way)), hops)
    where = offsets[way[message]] + np.arange(len(message)) - np.repeat(hops.cumsum() - hops, hops)
    counts = (sent.rows[where] >= 0) & (sent.out > sent.start)[message]
    message, where = message[counts], where[counts]
    row, part = sent.rows[where].astype(np.int64), sent.bytes[message] * sent.share[where]
    begin, end = sent.start[message] * (1 / width), sent.out[message] * (1 / width)
    rate = part / (end - begin)  # bytes a bin
    first = np.clip(begin.astype(np.int64), 0, bins - 1)
    last = np.clip(end.astype(np.int64), 0, bins - 1)
    whole = first == last
    wide = bins + 1  # one more, for what ends with the last bin

    def summed(column: Ints, values: Floats) -> Floats:
        sums: Floats = np.bincount(row * wide + column, values, num_rows * wide).astype(np.float64)
        return sums.reshape(num_rows, wide)

    between = np.where(whole, 0.0, rate)
    level = (summed(first + 1, between) - summed(last, between)).cumsum(axis=1)
    # Adding and subtracting the same numbers leaves rounding errors.
    level[np.abs(level) < 1e-9 * between.max(initial=0.0)] = 0.0
    level += summed(first, np.where(whole, part, rate * (first + 1 - begin)))
    level += summed(last, np.where(whole, 0.0, rate * (end - last)))
    return level[:, :bins].tobytes()


def load_over_time(simulation: Simulation, links: Ints, bins: int) -> Floats:
    """How busy each of some links was, from 0 to 1: a row for each link, in `bins` equal parts of the time."""
    messages, table = simulation.messages, simulation.topology.links
    times = messages.start_s, messages.out_s, messages.bytes
    sent = Sent(*times, messages.route, messages.offsets, messages.links, messages.share)
    if simulation.store_and_forward:  # it is on one link after another
        crossings = crossings_of(simulation)
        every, link = np.arange(len(crossings) + 1), crossings.link.astype(np.int32)
        times = crossings.begin_s, crossings.end_s, crossings.bytes
        sent = Sent(*times, every[:-1].astype(np.int32), every, link, np.ones(len(crossings)))
    rows = []
    for first in range(0, len(links), LINKS_AT_ONCE):
        batch = links[first : first + LINKS_AT_ONCE]
        row_of = np.full(len(table), -1, np.int32)
        row_of[batch] = np.arange(len(batch))
        carried = sent._replace(rows=row_of[sent.rows]).over_time(len(batch), simulation.time_s, bins)
        most = table.bandwidth_bytes_per_s[batch] * simulation.time_s / bins
        scale = np.divide(1.0, most, out=np.zeros_like(most), where=most > 0)
        load = carried * scale[:, None]
        rows.append(np.clip(load, 0.0, 1.0, out=load))
    return rows[0] if len(rows) == 1 else np.concatenate([np.zeros((0, bins)), *rows])


def sent_over_time(simulation: Simulation, bins: int) -> Floats:
    """The bytes a second that all messages together put onto the network, in `bins` equal parts of the time."""
    line = np.zeros(1, np.int64)
    sent: Floats = sent_by_line(simulation, np.zeros(len(simulation.messages), np.int32), line, 1, bins)[0]
    return sent


def sent_by_line(simulation: Simulation, kind: Ints | Int32s, line: Ints, lines: int, bins: int) -> Floats:
    """The same for each of some lines; `kind` is that of each message, and `line` the line of each kind."""
    messages, every = simulation.messages, np.arange(len(line) + 1)
    times, to = (messages.start_s, messages.out_s, messages.bytes), line.astype(np.int32)
    found = Sent(*times, kind.astype(np.int32, copy=False), every, to, np.ones(len(line)))
    sent = found.over_time(lines, simulation.time_s, bins)
    width = simulation.time_s / bins
    rate: Floats = sent / width if width > 0 else sent
    return rate


class Series:
    """Loads over time in percent. Equal ones are kept once, as many links of a run have the same load."""

    def __init__(self, simulation: Simulation) -> None:
        links = np.flatnonzero(simulation.loads.link_bytes > 0)
        load = load_over_time(simulation, links, BINS)
        carries = load > 0  # though it may be less than half a percent
        np.rint(np.multiply(load, 100, out=load), out=load)
        # The last row is the one of links that carry nothing.
        self.percent = np.zeros((len(links) + 1, BINS), np.int8)
        np.maximum(load, carries, out=self.percent[:-1], casting="unsafe")
        self.row_of = np.full(len(simulation.topology.links), len(links), np.int64)
        self.row_of[links] = np.arange(len(links))
        self.rows: list[list[int]] = []
        self.known: dict[bytes, int] = {}
        self._kept(self.percent[-1])  # the first is the one of links that carry nothing

    def of(self, links: Ints) -> int:
        """The number of the series of some links together: at each moment, the load of the busiest."""
        return self._kept(self.percent[self.row_of[links]].max(axis=0, initial=0))

    def each(self, links: Ints) -> list[int]:
        """The numbers of the series of some links, one by one."""
        return [self._kept(percent) for percent in self.percent[self.row_of[links]]]

    def _kept(self, percent: npt.NDArray[np.int8]) -> int:
        key = percent.tobytes()
        if key not in self.known:
            self.known[key] = len(self.rows)
            self.rows.append(percent.tolist())
        return self.known[key]
