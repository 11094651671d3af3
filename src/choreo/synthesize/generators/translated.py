"""Translated trees: one device's chunks spread along trees, and every other device does the same, shifted.

On a network that looks the same from every device, an all_gather is one broadcast of a share, translated. A lane then
carries one chunk at a time for all devices at once, so the trees are grown in time: a free lane takes the chunk that
has waited longest to a device that lacks it. A slow lane first brings a chunk to a part of the network where it is
missing, as between servers; beyond that it takes only its share of the load, which follows from the bandwidths.

In reverse it is a reduce_scatter, and one after the other is an all_reduce.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from choreo.schedule import Schedule, backwards, then
from choreo.synthesize.problem import LEAST_CHUNK_BYTES, Candidate, Problem
from choreo.synthesize.symmetry import Symmetry, symmetry_of, translated_rows
from choreo.topology.graph import Floats, Ints

__all__ = ["Spread", "gathered", "spread", "translated"]

# The most chunks per share.
CHUNKS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64)
# A number of chunks is tried only if planning it takes at most this many transfers of one device's chunks.
MOST_PLANNED = 1 << 16
# A schedule with more transfers is not simulated if no two messages meet: the plan gives its time.
FEW_TRANSFERS = 1 << 20
# A number of chunks is not tried if its plan takes longer than the best by this factor.
NEAR = 1.3


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """How device 0's chunks reach all devices: which chunk goes from where to where, in order of start."""

    chunks: int
    chunk: Ints
    src: Ints
    dst: Ints
    start_s: Floats
    time_s: float


def translated(problem: Problem) -> Iterator[Candidate]:
    """All_gather, reduce_scatter and all_reduce on a symmetric network."""
    if problem.collective not in ("all_gather", "reduce_scatter", "all_reduce") or problem.weights is not None:
        return
    if not problem.in_order:
        return
    symmetry = symmetry_of(problem.topology)
    if symmetry is None or symmetry.devices < 2:
        return
    share_bytes = problem.size_bytes / problem.ranks
    most = min(MOST_PLANNED // symmetry.devices, problem.most_transfers // symmetry.devices**2)
    most = max(1, min(most, int(share_bytes // LEAST_CHUNK_BYTES)))
    spreads = [spread(symmetry, share_bytes, chunks) for chunks in CHUNKS if chunks <= most]
    least_s = [max(found.time_s, _busy_s(symmetry, found)) for found in spreads]
    order = np.argsort(least_s, kind="stable").tolist()
    spreads = [spreads[index] for index in order if least_s[index] <= NEAR * min(least_s)]
    if not (problem.topology.links.overhead_s.any() or problem.topology.links.gap_s.any()):
        found = spreads[0]
        exact = problem.collective != "all_reduce" and len(found.chunk) * symmetry.devices > FEW_TRANSFERS
        schedule = _schedule(problem.collective, symmetry, found)
        yield Candidate("translated", schedule, found.time_s if exact else None)
        return
    # Trees grow as if messages cost their ranks nothing. Where they do cost something, coarser chunks may win, and
    # messages that arrive at other times than planned must not overtake each other at a receiver.
    for found in spreads:
        schedule = _schedule(problem.collective, symmetry, found)
        yield Candidate("translated", replace(schedule, receive_in_order=True))
        yield Candidate("translated", schedule)


def _busy_s(symmetry: Symmetry, plan: Spread) -> float:
    """How long a device spends on preparing messages: it sends one for every message of the plan."""
    sizes = [symmetry.stride(dimension) for dimension in range(len(symmetry.sizes))]
    costs_s = np.zeros(len(sizes))
    for lane in symmetry.lanes:
        costs_s[lane.dimension] = max(lane.overhead_s, lane.gap_s)
    # A hop changes one coordinate: that of the outermost dimension whose stride is not above its length.
    return float(costs_s[np.searchsorted(sizes, np.abs(plan.dst - plan.src), side="right") - 1].sum())


def _schedule(collective: str, symmetry: Symmetry, plan: Spread) -> Schedule:
    gather = gathered(symmetry, plan)
    if collective == "all_gather":
        return gather
    if collective == "reduce_scatter":
        return backwards(gather)
    # The chunk whose sum is complete first is passed on first.
    return then(backwards(gather), gathered(symmetry, plan, reverse=True))


def spread(symmetry: Symmetry, share_bytes: float, chunks: int) -> Spread:
    """Grow the trees of device 0's chunks in time."""
    return _Growth(symmetry, share_bytes / chunks, chunks).run()


class _Growth:
    """The state of the growing trees: who has which chunk, which lanes are free, and what waits for each lane."""

    def __init__(self, symmetry: Symmetry, chunk_bytes: float, chunks: int) -> None:
        devices, lanes = symmetry.devices, symmetry.lanes
        self.chunks = chunks
        self.takes_s = [chunk_bytes / lane.bandwidth_bytes_per_s for lane in lanes]
        self.latency_s = [lane.latency_s for lane in lanes]
        self.has = [[False] * devices for _ in range(chunks)]
        self.lacking = chunks * (devices - 1)
        at = np.arange(devices)
        self.targets: list[list[list[int]]] = []  # by lane and device: where the lane leads
        self.box: list[list[int]] = []  # by lane and device: the part of the network that faster lanes reach
        fastest = max(lane.bandwidth_bytes_per_s for lane in lanes)
        boxes: dict[float, list[int]] = {}
        for lane in lanes:
            stride, size = symmetry.stride(lane.dimension), symmetry.sizes[lane.dimension]
            here = symmetry.coordinates(lane.dimension)
            to = [at + ((here + offset) % size - here) * stride for offset in lane.offsets]
            self.targets.append(np.stack(to, axis=1).tolist())
            bandwidth = lane.bandwidth_bytes_per_s
            if bandwidth not in boxes:
                slower = {one.dimension for one in lanes if one.bandwidth_bytes_per_s <= bandwidth}
                name = sum((symmetry.coordinates(d) * symmetry.stride(d) for d in slower), np.zeros(devices, np.int64))
                boxes[bandwidth] = name.tolist()
            self.box.append(boxes[bandwidth])
        self.reached = [[{0} for _ in range(chunks)] for _ in lanes]  # by lane and chunk: the parts that have it
        part = _parts(symmetry)
        self.spare = [
            math.inf if lane.bandwidth_bytes_per_s == fastest else math.floor(chunks * (part[n][0] - part[n][1]) + 1e-9)
            for n, lane in enumerate(lanes)
        ]
        # What may be sent along a lane: (since when, chunk, source), first into new parts of the network, then
        # anywhere.
        self.fresh: list[list[tuple[float, int, int]]] = [[] for _ in lanes]
        self.other: list[list[tuple[float, int, int]]] = [[] for _ in lanes]
        self.idle = set(range(len(lanes)))
        self.rows: list[tuple[float, int, int, int]] = []

    def run(self) -> Spread:
        events: list[tuple[float, int, int, int]] = []  # time, then a free lane (-1, -1), or chunk and device
        for chunk in range(self.chunks):
            self.has[chunk][0] = True
            self._offer(0.0, chunk, 0)
        now = last = 0.0
        while self.lacking:
            for lane in sorted(self.idle):
                found = self._next(lane)
                if found is None:
                    continue
                self.idle.discard(lane)
                chunk, src, dst = found
                self.rows.append((now, chunk, src, dst))
                out = now + self.takes_s[lane]
                last = max(last, out + self.latency_s[lane])
                heapq.heappush(events, (out, lane, -1, -1))
                heapq.heappush(events, (out + self.latency_s[lane], lane, chunk, dst))
            if not events:  # what is left is for lanes that have had their share
                self.spare = [math.inf] * len(self.spare)
                continue
            now = events[0][0]
            while events and events[0][0] == now:
                _, lane, chunk, dst = heapq.heappop(events)
                if chunk < 0:
                    self.idle.add(lane)
                else:
                    self._offer(now, chunk, dst)
        table = np.array([row[1:] for row in self.rows], np.int64)
        start_s = np.array([row[0] for row in self.rows])
        return Spread(self.chunks, table[:, 0], table[:, 1], table[:, 2], start_s, last)

    def _offer(self, now: float, chunk: int, device: int) -> None:
        """A device has a chunk: every lane may take it from there."""
        for waiting in self.fresh:
            heapq.heappush(waiting, (now, chunk, device))

    def _next(self, lane: int) -> tuple[int, int, int] | None:
        """What the lane takes now: chunk, source and target."""
        fresh, other, box, reached = self.fresh[lane], self.other[lane], self.box[lane], self.reached[lane]
        while fresh:
            entry = fresh[0]
            _, chunk, src = entry
            there = reached[chunk]
            for dst in self.targets[lane][src]:
                if box[dst] not in there:
                    return self._take(chunk, src, dst)
            heapq.heappush(other, heapq.heappop(fresh))
        while other and self.spare[lane] > 0:
            _, chunk, src = other[0]
            has = self.has[chunk]
            for dst in self.targets[lane][src]:
                if not has[dst]:
                    self.spare[lane] -= 1
                    return self._take(chunk, src, dst)
            heapq.heappop(other)
        return None

    def _take(self, chunk: int, src: int, dst: int) -> tuple[int, int, int]:
        self.has[chunk][dst] = True
        self.lacking -= 1
        for box, reached in zip(self.box, self.reached, strict=True):
            reached[chunk].add(box[dst])
        return chunk, src, dst


def _parts(symmetry: Symmetry) -> list[tuple[float, float]]:
    """How many of a tree's arcs each lane carries if all finish together, and how many of them it must carry.

    In a tree over all devices, any set of dimensions must carry as many arcs as there are boxes of the others, minus
    one. The set that takes longest for that gets exactly this, and the other lanes share the rest.
    """
    sizes, lanes = symmetry.sizes, symmetry.lanes
    bandwidth = [sum(one.bandwidth_bytes_per_s for one in lanes if one.dimension == d) for d in range(len(sizes))]
    rest = [d for d in range(len(sizes)) if sizes[d] > 1]
    arcs = dict.fromkeys(rest, 0.0)
    boxes = 1  # the product of the dimensions handled so far

    def arcs_a_bandwidth(subset: tuple[int, ...]) -> float:
        return (math.prod(sizes[d] for d in subset) - 1) / sum(bandwidth[d] for d in subset)

    while rest:
        sets = [subset for length in range(1, len(rest) + 1) for subset in combinations(rest, length)]
        slowest = max(sets, key=arcs_a_bandwidth)
        for d in slowest:
            arcs[d] = boxes * arcs_a_bandwidth(slowest) * bandwidth[d]
        boxes *= math.prod(sizes[d] for d in slowest)
        rest = [d for d in rest if d not in slowest]
    found = []
    for lane in lanes:
        slower = {one.dimension for one in lanes if one.bandwidth_bytes_per_s < lane.bandwidth_bytes_per_s}
        same = {one.dimension for one in lanes if one.bandwidth_bytes_per_s == lane.bandwidth_bytes_per_s}
        outer = math.prod(sizes[d] for d in slower)
        must = outer * (math.prod(sizes[d] for d in same) - 1)
        share = lane.bandwidth_bytes_per_s / sum(bandwidth[d] for d in same)
        found.append((arcs[lane.dimension] * lane.bandwidth_bytes_per_s / bandwidth[lane.dimension], must * share))
    return found


def gathered(symmetry: Symmetry, plan: Spread, *, reverse: bool = False) -> Schedule:
    """The plan of device 0, translated to every device; with `reverse` its chunks are numbered backwards."""
    origin = np.arange(symmetry.devices)
    chunk = plan.chunks - 1 - plan.chunk if reverse else plan.chunk

    def chunk_of(chunk: Ints) -> Ints:
        return origin * plan.chunks + chunk

    steps = translated_rows(
        symmetry,
        plan.start_s,
        src=plan.src,
        dst=plan.dst,
        chunk=chunk,
        chunk_of=chunk_of,
        num_chunks=symmetry.devices * plan.chunks,
    )
    return Schedule("all_gather", steps)
