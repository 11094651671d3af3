"""Trees grown in time: how the chunks of device 0 reach all others, on a network that looks the same from all of them.

A lane then carries one chunk at a time for all devices at once, so a free lane takes the chunk that has waited longest
to a device that lacks it. A slow lane first brings a chunk to a part of the network where it is missing, as between
servers; beyond that it takes only its share of the load, which follows from the bandwidths. Where messages cost their
ranks something, a device prepares one after another, each a little before its lane is free.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from choreo.synthesize.symmetry import Symmetry
from choreo.topology.graph import Floats, Ints

__all__ = ["Spread", "spread"]

# What happens in a growing tree, in the order in which simultaneous events are handled: a lane may take its next chunk,
# the device may prepare a message, a chunk arrives, a chunk is written.
FREE, SENT, ARRIVED, WRITTEN = range(4)
# Sizes of chunks add up to a little more or less than the whole.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """How device 0's chunks reach all devices: which chunk goes from where to where, in order of start."""

    chunks: int
    chunk: Ints
    src: Ints
    dst: Ints
    start_s: Floats
    time_s: float


def spread(symmetry: Symmetry, chunk_bytes: Sequence[float]) -> Spread:
    """Grow the trees of device 0's chunks, of these sizes, in time."""
    return _Growth(symmetry, chunk_bytes).run()


class _Growth:
    """The state of the growing trees: who has which chunk, which lanes are free, and what waits for each lane."""

    def __init__(self, symmetry: Symmetry, chunk_bytes: Sequence[float]) -> None:
        devices, lanes, chunks = symmetry.devices, symmetry.lanes, len(chunk_bytes)
        whole = sum(chunk_bytes) or 1.0
        self.part = [size / whole for size in chunk_bytes]
        self.takes_s = [[size / lane.bandwidth_bytes_per_s for size in chunk_bytes] for lane in lanes]
        self.latency_s = [lane.latency_s for lane in lanes]
        self.overhead_s = [lane.overhead_s for lane in lanes]
        self.busy_s = [max(lane.overhead_s, lane.gap_s) for lane in lanes]
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
        self.spare = [
            math.inf if lane.bandwidth_bytes_per_s == fastest else may - must + ROUNDING
            for lane, (may, must) in zip(lanes, _parts(symmetry), strict=True)
        ]
        # What may be sent along a lane: (since when, chunk, source), first into new parts of the network, then
        # anywhere.
        self.fresh: list[list[tuple[float, int, int]]] = [[] for _ in lanes]
        self.other: list[list[tuple[float, int, int]]] = [[] for _ in lanes]
        self.idle = set(range(len(lanes)))
        self.free_s = [0.0] * len(lanes)
        # Messages are prepared so much before their lane is free: the device may have to prepare those of others first.
        self.ahead_s = sum(self.overhead_s)
        self.sender_s = self.receiver_s = self.now = self.last_s = 0.0
        self.events: list[tuple[float, int, int, int, int]] = []  # time, what happens, lane, chunk, device
        self.rows: list[tuple[float, int, int, int]] = []

    def run(self) -> Spread:
        for chunk in range(len(self.part)):
            self.has[chunk][0] = True
            self._offer(chunk, 0)
        while True:
            self._begin()
            if not self.events:
                if not self.lacking:
                    break
                self.spare = [math.inf] * len(self.spare)  # what is left is for lanes that have had their share
                continue
            self.now = self.events[0][0]
            while self.events and self.events[0][0] == self.now:
                _, what, lane, chunk, dst = heapq.heappop(self.events)
                if what == FREE:
                    self.idle.add(lane)
                elif what == ARRIVED:
                    self._receive(lane, chunk, dst)
                elif what == WRITTEN:
                    self._offer(chunk, dst)
        table = np.array([row[1:] for row in self.rows], np.int64)
        start_s = np.array([row[0] for row in self.rows])
        return Spread(len(self.part), table[:, 0], table[:, 1], table[:, 2], start_s, self.last_s)

    def _begin(self) -> None:
        """Prepare messages, first for the lane that is free first."""
        if not self.lacking or self.sender_s > self.now:
            return
        for lane in sorted(self.idle, key=self.free_s.__getitem__):
            found = self._next(lane)
            if found is None:
                continue
            self.idle.discard(lane)
            chunk, src, dst = found
            self.rows.append((self.now, chunk, src, dst))
            start_s = max(self.now + self.overhead_s[lane], self.free_s[lane])
            self.free_s[lane] = out_s = start_s + self.takes_s[lane][chunk]
            heapq.heappush(self.events, (max(start_s, out_s - self.ahead_s), FREE, lane, chunk, dst))
            heapq.heappush(self.events, (out_s + self.latency_s[lane], ARRIVED, lane, chunk, dst))
            if self.busy_s[lane]:
                self.sender_s = self.now + self.busy_s[lane]
                heapq.heappush(self.events, (self.sender_s, SENT, lane, chunk, dst))
                return

    def _receive(self, lane: int, chunk: int, dst: int) -> None:
        """A device takes in one message after another."""
        begin_s = max(self.now, self.receiver_s)
        self.receiver_s = begin_s + self.busy_s[lane]
        self.last_s = begin_s + self.overhead_s[lane]
        if self.last_s > self.now:
            heapq.heappush(self.events, (self.last_s, WRITTEN, lane, chunk, dst))
        else:
            self._offer(chunk, dst)

    def _offer(self, chunk: int, device: int) -> None:
        """A device has a chunk: every lane may take it from there."""
        for waiting in self.fresh:
            heapq.heappush(waiting, (self.now, chunk, device))

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
        while other and self.spare[lane] >= self.part[other[0][1]]:
            _, chunk, src = other[0]
            has = self.has[chunk]
            for dst in self.targets[lane][src]:
                if not has[dst]:
                    self.spare[lane] -= self.part[chunk]
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
