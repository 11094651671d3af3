"""The most bytes that can get from some devices to others in a given time, as a flow over time.

A byte that arrives by T has taken a path, and has spent at least the path's time on it: its latencies and overheads. A
flow that carries so much over a link in every second cannot load it beyond its bandwidth. So the bytes that can arrive
are at most (Ford and Fulkerson 1958)

    the most, over all flows f, of  the sum over its paths of  f(path) x (T - time of the path)

and the least T for which this is all that must arrive is a bound. Other than the windows of a single cut, it knows of
links in a row: what comes late through the one cannot use the other before.

The time of a path is counted link by link. The first sender and the last receiver pay the least overhead there is. What
leaves a box, such as a server, has cost both ends of that message as much as its links do: links out of the box count
that too, and links into it give it back, so that a path pays once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from choreo.bound.latency import MOST_NODES, Distance, overheads
from choreo.bound.proofs import Asked
from choreo.topology.graph import Bools, Floats, Ints

__all__ = ["OverTime"]

# Collectives in which one device's vector must get to another, and in which one device needs a share of all others, or
# all others need a share of one.
ONE_TO_ONE = ("broadcast", "reduce", "all_reduce")
TO_ONE, FROM_ONE = ("all_gather", "gather"), ("reduce_scatter", "scatter")
# What the solver's rounding leaves of a bound, and the most flows that are solved for one.
ROUNDED, MOST_SOLVED = 1 - 1e-6, 40


@dataclass(slots=True, eq=False)
class _Line:
    """A flow of `rate` bytes per second that loses `lost` bytes to its paths, and is best between two times."""

    rate: float
    lost: float
    from_s: float
    to_s: float

    def is_like(self, other: _Line) -> bool:
        """Whether both say the same."""
        return bool(np.allclose((self.rate, self.lost), (other.rate, other.lost), rtol=1e-9))


@dataclass(frozen=True, slots=True, eq=False)
class _Paths:
    """The links from some devices to others, and what a path takes over each; `ends_s` is what it takes besides.

    So many `units` must get from the ones to the others.
    """

    asked: Asked
    sources: Ints
    targets: Ints
    units: int
    takes_s: Floats
    ends_s: float
    lines: list[_Line] = field(default_factory=list)

    def least_s(self, unit_bytes: float, known_s: float) -> float:
        """The least time in which all units arrive, or `known_s` if that is enough."""
        size, time_s = self.units * unit_bytes, known_s
        for _ in range(MOST_SOLVED):
            line = self._best(time_s)
            if line.rate <= 0 or (time_s == known_s and line.rate * time_s - line.lost >= size):
                return known_s
            before_s, time_s = time_s, (size + line.lost) / line.rate
            if abs(time_s - before_s) <= (1 - ROUNDED) * time_s:
                return max(known_s, time_s * ROUNDED)
        return known_s

    def _best(self, time_s: float) -> _Line:
        """The flow that brings the most in this time."""
        for line in self.lines:
            if line.from_s <= time_s <= line.to_s:
                return line
        solved = self._solved(time_s)
        for line in self.lines:
            if line.is_like(solved):
                line.from_s, line.to_s = min(line.from_s, time_s), max(line.to_s, time_s)
                return line
        self.lines.append(solved)
        return solved

    def _solved(self, time_s: float) -> _Line:
        from scipy.optimize import linprog
        from scipy.sparse import csr_array

        network = self.asked.network
        links = len(network.src)
        capacity = self.asked.product.topology.links.bandwidth_bytes_per_s[network.number]
        at = np.concatenate((network.src, network.dst)), np.tile(np.arange(links), 2)
        leaving = csr_array((np.repeat([1.0, -1.0], links), at), shape=(network.nodes, links))
        between = np.setdiff1d(np.arange(network.nodes), np.concatenate((self.sources, self.targets)))
        out = np.asarray(leaving[self.sources].sum(axis=0)).reshape(-1)
        gain = (1 - self.ends_s / time_s) * out - self.takes_s / time_s
        limits = np.stack((np.zeros(links), capacity / capacity.max()), axis=1)
        found = linprog(-gain, A_eq=leaving[between], b_eq=np.zeros(len(between)), bounds=limits, method="highs-ds")  # type: ignore[call-overload]  # the stubs have no sparse matrices
        flow = found.x * capacity.max() if found.status == 0 else np.zeros(links)
        rate = float(out @ flow)
        return _Line(rate, float(self.takes_s @ flow) + self.ends_s * rate, time_s, time_s)


@dataclass(frozen=True, slots=True, eq=False)
class OverTime:
    """What must get out of boxes of devices, or into them, in networks of several dimensions."""

    paths: tuple[_Paths, ...]

    @staticmethod
    def of(asked: Asked, distance: Distance) -> OverTime:
        """Of the devices that are farthest apart, the first is in the box or the second is, and the other is not."""
        product, src, dst = asked.product, distance.src, distance.dst
        several = len(product.dimensions) > 1 and product.topology.num_nodes <= MOST_NODES
        if not several or src is None or dst is None:
            return OverTime(())
        found = []
        for group in map(product.boxes, product.unsplit()):
            if asked.collective in ONE_TO_ONE and group[src] != group[dst]:
                found.append(_out_of(asked, group == group[src], np.array([src]), np.array([dst]), 1))
            elif asked.collective in TO_ONE:
                found += _of_shares(asked, group != group[dst], dst)
            elif asked.collective in FROM_ONE:
                found += _of_shares(asked, group == group[src], src)
        return OverTime(tuple(found))

    def least_s(self, unit_bytes: float, known_s: float) -> float:
        """The least time in which everything gets where it must, or `known_s` if that is enough."""
        for paths in self.paths if unit_bytes > 0 else ():
            known_s = paths.least_s(unit_bytes, known_s)
        return known_s


def _of_shares(asked: Asked, inside: Bools, one: int) -> Iterator[_Paths]:
    """The shares of all devices on the other side of a box than one."""
    shares = np.where(inside != inside[one], asked.shares(), 0)
    others, device = np.flatnonzero(shares), np.array([one])
    if len(others):
        sources, targets = (device, others) if inside[one] else (others, device)
        yield _out_of(asked, inside, sources, targets, int(shares.sum()))


def _out_of(asked: Asked, inside: Bools, sources: Ints, targets: Ints, units: int) -> _Paths:
    """The times of paths that leave a box."""
    topology, number = asked.product.topology, asked.network.number
    links, overhead_s = topology.links, overheads(topology)[number]
    from_inside, to_inside = inside[links.src[number]], inside[links.dst[number]]
    out, back = from_inside & ~to_inside, to_inside & ~from_inside
    least_s = float(overhead_s.min())
    more_s = 2 * (float(overhead_s[out].min()) - least_s)
    takes_s = links.latency_s[number] + more_s * (out.astype(np.float64) - back)
    return _Paths(asked, sources, targets, units, takes_s, 2 * least_s)
