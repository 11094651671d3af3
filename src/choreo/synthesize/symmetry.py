"""A network that looks the same from every device: a product of rings, fully connected blocks and switches.

The devices are then the elements of a group, added coordinate by coordinate, and whatever one device does, every other
does shifted. A *lane* is the orbit of a port: all devices send along it at the same time, each to the device at the
same offset, so no two of their messages meet.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from choreo.schedule import Steps, Transfers
from choreo.synthesize.network import Hops
from choreo.topology import Topology
from choreo.topology.blocks import Block
from choreo.topology.graph import Bools, Floats, Ints

__all__ = ["Lane", "Symmetry", "symmetry_of", "translated_rows"]


@dataclass(frozen=True, slots=True)
class Lane:
    """A port of every device: its dimension, the offsets along it that the port leads to, and its links' figures."""

    dimension: int
    offsets: tuple[int, ...]
    bandwidth_bytes_per_s: float
    latency_s: float
    overhead_s: float = 0.0
    gap_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Symmetry:
    """The sizes of the dimensions, innermost first, and the lanes."""

    sizes: tuple[int, ...]
    lanes: tuple[Lane, ...]

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return math.prod(self.sizes)

    def stride(self, dimension: int) -> int:
        """The difference in device number between neighbours along a dimension."""
        return math.prod(self.sizes[:dimension])

    def coordinates(self, dimension: int) -> Ints:
        """The coordinate of each device along a dimension."""
        return np.arange(self.devices) // self.stride(dimension) % self.sizes[dimension]

    def shifted(self, devices: Ints, by: Ints) -> Ints:
        """The devices shifted by others' coordinates; the two arrays broadcast."""
        total = np.zeros(np.broadcast_shapes(devices.shape, by.shape), np.int64)
        for dimension, size in enumerate(self.sizes):
            stride = self.stride(dimension)
            total += (devices // stride % size + by // stride % size) % size * stride
        return total

    def hops(self) -> Hops:
        """The hops of all devices; every hop along a lane uses that lane, because all devices do the same at once."""
        at = np.arange(self.devices)
        src, dst, lane_of = [], [], []
        for number, lane in enumerate(self.lanes):
            here, stride, size = (
                self.coordinates(lane.dimension),
                self.stride(lane.dimension),
                self.sizes[lane.dimension],
            )
            for offset in lane.offsets:
                src.append(at)
                dst.append(at + ((here + offset) % size - here) * stride)
                lane_of.append(np.full(self.devices, number))
        takes = np.concatenate(lane_of)
        load = csr_matrix((np.ones(len(takes)), (takes, np.arange(len(takes)))), shape=(len(self.lanes), len(takes)))
        capacity = np.array([one.bandwidth_bytes_per_s for one in self.lanes])
        latency, overhead, gap = (
            np.array([getattr(one, name) for one in self.lanes])[takes] for name in ("latency_s", "overhead_s", "gap_s")
        )
        everybody = np.zeros(len(takes), np.int64)
        ends = np.concatenate(src), np.concatenate(dst)
        costs = (overhead, np.maximum(overhead, gap)) * 2
        figures = latency, capacity[takes]
        return Hops(self.devices, 0, self.devices, *ends, *figures, load, capacity, everybody, everybody, *costs)


def translated_rows(
    symmetry: Symmetry,
    start_s: Floats,
    *,
    src: Ints,
    dst: Ints,
    chunk: Ints,
    chunk_of: Callable[[Ints], Ints],
    num_chunks: int,
    reduce: Bools | None = None,
) -> Steps:
    """What device 0 does at these starts, translated to every device.

    `chunk_of` maps a column of device 0's chunks to rows: the chunk's number for every device. `reduce` says what is
    added to what is there: nothing by default.
    """
    devices = symmetry.devices
    moments, step = np.unique(start_s, return_inverse=True)
    order = np.argsort(step, kind="stable")
    step, src, dst, chunk = step[order].astype(np.int64), src[order], dst[order], chunk[order]
    first = np.searchsorted(step, np.arange(len(moments) + 1))
    adds = np.zeros(len(step), np.bool_) if reduce is None else reduce[order]
    origin = np.arange(devices)

    def rows(low: int, high: int) -> Transfers:
        these = slice(int(first[low]), int(first[high]))
        count = (these.stop - these.start) * devices
        return Transfers(
            np.repeat(step[these], devices),
            symmetry.shifted(src[these][:, None], origin).reshape(-1),
            symmetry.shifted(dst[these][:, None], origin).reshape(-1),
            chunk_of(chunk[these][:, None]).reshape(-1),
            np.ones(count, np.int64),
            np.repeat(adds[these], devices),
            np.zeros(count, np.bool_),
        )

    return Steps(devices, num_chunks, len(moments), rows)


def symmetry_of(topology: Topology) -> Symmetry | None:
    """The symmetry of a topology; None if it has a block of another kind or a modified link."""
    lanes: list[Lane] = []
    given = np.concatenate(
        [np.tile(b.links.bandwidth_bytes_per_s, topology.num_devices // b.size) for b in topology.blocks]
    )
    if not np.array_equal(given, topology.links.bandwidth_bytes_per_s):
        return None
    for dimension, block in enumerate(topology.blocks):
        found = _lanes(dimension, block)
        if found is None:
            return None
        lanes += found
    return Symmetry(topology.sizes, tuple(lanes))


def _lanes(dimension: int, block: Block) -> list[Lane] | None:
    size = block.size
    if size == 1:
        return []
    links = block.links
    bandwidth, latency = float(links.bandwidth_bytes_per_s[0]), float(links.latency_s[0])
    costs = float(links.overhead_s[0]), float(links.gap_s[0])
    if not bandwidth:
        return None
    match block.kind:
        case "ring":
            return [Lane(dimension, (offset,), bandwidth, latency, *costs) for offset in sorted({1, size - 1})]
        case "fully_connected":
            return [Lane(dimension, (offset,), bandwidth, latency, *costs) for offset in range(1, size)]
        case "switch":
            # When all ports send, each of them has its share of an oversubscribed switch.
            fabric = float(links.bandwidth_bytes_per_s[-1]) / size if block.switches > 1 else bandwidth
            return [Lane(dimension, tuple(range(1, size)), fabric, 2 * latency, *costs)]
    return None
