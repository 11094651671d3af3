"""The network as a synthesizer sees it: hops from device to device that cross no other, and the links each one takes.

Every hop is a message of its own, so a schedule made of hops needs no routes of its own: the simulator's route from one
end of a hop to the other is the hop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from choreo.topology import Topology
from choreo.topology.graph import Floats, Ints

__all__ = ["Hops", "hops_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Hops:
    """Hops as columns: their ends, latency, and bandwidth when alone.

    `load` is a matrix with a row a link and a column a hop: the part of a message on the hop that crosses the link.
    `capacity` is the links' bandwidth. Links that no hop crosses are left out.
    """

    devices: int
    src: Ints
    dst: Ints
    latency_s: Floats
    bandwidth_bytes_per_s: Floats
    load: csr_matrix
    capacity: Floats

    def __len__(self) -> int:
        return len(self.src)

    @property
    def links(self) -> list[list[int]]:
        """The links of each hop."""
        by_hop = self.load.tocsc()
        return [by_hop.indices[by_hop.indptr[h] : by_hop.indptr[h + 1]].tolist() for h in range(len(self))]

    def turned(self) -> Hops:
        """Every hop the other way, over the same links."""
        return Hops(
            self.devices, self.dst, self.src, self.latency_s, self.bandwidth_bytes_per_s, self.load, self.capacity
        )


def hops_of(topology: Topology) -> Hops:
    """All hops of a topology."""
    src, dst = _neighbours(topology)
    routes = topology.routes(src, dst)
    hop = np.repeat(np.arange(len(src)), np.diff(routes.offsets))
    ends = np.stack((topology.links.src[routes.links], topology.links.dst[routes.links]))
    inner = (ends < topology.num_devices) & (ends != src[hop]) & (ends != dst[hop])
    around = np.zeros(len(src), np.bool_)
    around[hop[inner.any(axis=0)]] = True  # the simulator's route goes through another device
    keep = np.flatnonzero(~around)
    number = np.full(len(src), -1)
    number[keep] = np.arange(len(keep))
    there = number[hop] >= 0
    used, link = np.unique(routes.links[there], return_inverse=True)
    load = csr_matrix((routes.share[there], (link, number[hop[there]])), shape=(len(used), len(keep)))
    return Hops(
        topology.num_devices,
        src[keep],
        dst[keep],
        routes.latency_s[keep],
        routes.bandwidth_bytes_per_s[keep],
        load,
        topology.links.bandwidth_bytes_per_s[used],
    )


def _neighbours(topology: Topology) -> tuple[Ints, Ints]:
    """Pairs of devices with a live way between them through switches only."""
    links, devices = topology.links, topology.num_devices
    live = links.bandwidth_bytes_per_s > 0
    onward: list[list[int]] = [[] for _ in range(topology.num_nodes)]
    for here, there in zip(links.src[live].tolist(), links.dst[live].tolist(), strict=True):
        onward[here].append(there)
    found: list[tuple[int, int]] = []
    for device in range(devices):
        seen, reached, queue = {device}, [], list(onward[device])
        while queue:
            node = queue.pop()
            if node in seen:
                continue
            seen.add(node)
            if node < devices:
                reached.append(node)
            else:
                queue += onward[node]
        found += [(device, other) for other in sorted(reached)]
    pairs = np.array(found, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]
