"""Messages between any two devices of a network that looks the same from all of them, past devices in between.

Whatever one device sends to the device at an offset, every other sends too, at the same time. So a way is an offset,
and what it needs of a *lane*, the links that are each other's images: if its route has two links of a ring, every link
of that ring in this direction carries two such messages at once, and each takes twice as long.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from choreo.simulate.flows.engine import costs_of
from choreo.synthesize.symmetry import Symmetry
from choreo.topology import Topology
from choreo.topology.graph import Floats, Ints

__all__ = ["Ways", "lanes_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Ways:
    """The ways from device 0 to every other, as columns: the one to device d is number d - 1.

    `lanes` of way w are lanes[offsets[w] : offsets[w + 1]]. `costs_s` has four rows: until a message is sent, until the
    next may be, and the same for receiving. `offset_of` is a table: the offset from one device (columns) to another.
    """

    bandwidth_bytes_per_s: Floats
    latency_s: Floats
    costs_s: Floats
    offsets: Ints
    lanes: Ints
    num_lanes: int
    offset_of: Ints

    def nearest(self, count: int) -> list[Ints]:
        """For each device the nearest others: so many, and those as near."""
        most_s = np.sort(self.latency_s)[: min(count, len(self.latency_s))][-1]
        near = np.flatnonzero(self.latency_s <= most_s) + 1
        return [np.flatnonzero(np.isin(offsets, near)) for offsets in self.offset_of]

    @staticmethod
    def of(topology: Topology, symmetry: Symmetry) -> Ways:
        """The ways of a topology that has this symmetry."""
        devices = np.arange(topology.num_devices)
        here = np.zeros(len(devices) - 1, np.int64)
        routes = topology.routes(here, devices[1:])
        lane_of, width = lanes_of(topology, symmetry)
        # Every link of a lane carries as much as all devices' messages put on the lane together, divided by its links.
        way = np.repeat(np.arange(len(here)), np.diff(routes.offsets))
        load = np.zeros((len(here), len(width)))
        np.add.at(load, (way, lane_of[routes.links]), routes.share)
        load *= len(devices) / np.bincount(lane_of)
        with np.errstate(divide="ignore"):
            bandwidth = np.where(load > 0, width / load, np.inf).min(axis=1)
        costs_s = np.stack(costs_of(topology, here, devices[1:]))
        costs_s[1::2] = np.maximum(costs_s[1::2], costs_s[::2])
        used, lanes = np.nonzero(load)
        back = np.zeros(len(devices), np.int64)
        for dimension, size in enumerate(symmetry.sizes):
            back += -symmetry.coordinates(dimension) % size * symmetry.stride(dimension)
        return Ways(
            bandwidth,
            np.ascontiguousarray(routes.latency_s),
            costs_s,
            np.searchsorted(used, np.arange(len(devices))),
            lanes,
            len(width),
            symmetry.shifted(devices[:, None], back[None, :]),
        )


def lanes_of(topology: Topology, symmetry: Symmetry) -> tuple[Ints, Floats]:
    """The lane of each link, and each lane's bandwidth: links of a dimension that lead equally far are images."""
    links, dimension = topology.links, topology.dimension_of_links()
    inside = np.maximum(links.src, links.dst) < topology.num_devices
    kind = np.where(links.src < topology.num_devices, -1, -2)  # up to a switch, down from it or within it
    kind[(links.src >= topology.num_devices) & (links.dst >= topology.num_devices)] = -3
    for number, size in enumerate(symmetry.sizes):
        mine, stride = inside & (dimension == number), symmetry.stride(number)
        kind[mine] = ((links.dst[mine] - links.src[mine]) // stride) % size
    _, first, lane = np.unique(np.stack((dimension, kind)), axis=1, return_index=True, return_inverse=True)
    return lane.reshape(-1), links.bandwidth_bytes_per_s[first]
