"""The network as a synthesizer sees it: direct hops between members, and the links that each hop uses.

No hop passes through another member, and every hop is a message of its own. So a schedule made of hops needs no routes
of its own: the simulator's route between the ends of a hop is the hop. Members are the devices of the ranks, possibly
relays, and on request the switches that add and multicast.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.sparse import csr_matrix

from choreo.simulate.flows.engine import costs_of
from choreo.topology import Topology
from choreo.topology.graph import Bools, Floats, Ints

__all__ = ["Hops", "along_switches", "around", "hops_between", "hops_of"]

# A message that takes less than this fraction of a link leaves room on it.
FULL = 0.99


@dataclass(frozen=True, eq=False)
class Hops:
    """Hops as columns: their ends, latency, and bandwidth when alone.

    Of the `members` the first `devices` are those of the ranks, then come `relays`, then switches. `load` is a matrix
    of links by hops: the fraction of a message on the hop that crosses the link. `capacity` is the links' bandwidth.
    Links that no hop crosses are left out. A message costs its sender `send_s` until it is sent and `send_busy_s` until
    the next may be sent; likewise its receiver. `sender` and `receiver` are the members that pay these costs.
    """

    devices: int
    relays: int
    members: int
    src: Ints
    dst: Ints
    latency_s: Floats
    bandwidth_bytes_per_s: Floats
    load: csr_matrix
    capacity: Floats
    sender: Ints
    receiver: Ints
    send_s: Floats
    send_busy_s: Floats
    receive_s: Floats
    receive_busy_s: Floats

    def __len__(self) -> int:
        return len(self.src)

    @cached_property
    def leave_room(self) -> bool:
        """Whether some message leaves room on a link, as behind a switch with ports of different speed."""
        return bool((self.taken < FULL).any())

    @cached_property
    def taken(self) -> Floats:
        """The part of a link that a message takes while it crosses it, for each entry of `load` by hops."""
        load = self.load.tocsc()
        hop = np.repeat(np.arange(len(self)), np.diff(load.indptr))
        found: Floats = load.data * self.bandwidth_bytes_per_s[hop] / self.capacity[load.indices]
        return found

    @cached_property
    def is_port(self) -> Bools:
        """The links by which only one member's messages leave, or only one member's arrive: there they take turns."""
        load = self.load.tocoo()
        found = np.zeros(len(self.capacity), np.bool_)
        for end in (self.src, self.dst):
            first, last = np.full(len(found), self.members), np.full(len(found), -1)
            np.minimum.at(first, load.row, end[load.col])
            np.maximum.at(last, load.row, end[load.col])
            found |= first == last
        return found

    def with_busy_ports(self) -> Hops:
        """The same hops, for a linear program: a message loads its ports for as long as it is under way.

        A wide port is not free for another message while one goes through it that a narrow link slows down.
        """
        load = self.load.tocsc(copy=True)
        load.data = np.where(self.is_port[load.indices], load.data / self.taken, load.data)
        return replace(self, load=load.tocsr())

    def keeping(self, kept: Bools) -> Hops:
        """Some of the hops."""
        load = self.load[:, np.flatnonzero(kept)].tocsr()
        crossed = np.diff(load.indptr) > 0
        ends = ("src", "dst", "latency_s", "bandwidth_bytes_per_s")
        costs = ("sender", "receiver", "send_s", "send_busy_s", "receive_s", "receive_busy_s")
        some = {name: getattr(self, name)[kept] for name in ends + costs}
        return replace(self, load=load[crossed], capacity=self.capacity[crossed], **some)

    def turned(self) -> Hops:
        """Every hop reversed, over the same links."""
        return replace(
            self,
            src=self.dst,
            dst=self.src,
            sender=self.receiver,
            receiver=self.sender,
            send_s=self.receive_s,
            send_busy_s=self.receive_busy_s,
            receive_s=self.send_s,
            receive_busy_s=self.send_busy_s,
        )


def hops_of(
    topology: Topology, *, through_switches: bool = False, devices: Ints | None = None, relays: Ints | None = None
) -> Hops:
    """All hops of a topology, or those among the `devices` of ranks and `relays`, which are then the members.

    With `through_switches` the switches that add and multicast are members, and devices linked to the same one of them
    have no direct hop.
    """
    switches = np.flatnonzero(topology.reduces) if through_switches else np.zeros(0, np.int64)
    ranks = np.arange(topology.num_devices) if devices is None else devices
    others = np.zeros(0, np.int64) if relays is None else relays
    nodes = np.concatenate((ranks, others, switches))
    member = np.full(topology.num_nodes, -1)
    member[nodes] = np.arange(len(nodes))
    start, end = _neighbours(topology, switches)
    inside = (member[start] >= 0) & (member[end] >= 0)
    start, end = start[inside], end[inside]
    routes = topology.routes(start, end)
    hop = np.repeat(np.arange(len(start)), np.diff(routes.offsets))
    ends = np.stack((topology.links.src[routes.links], topology.links.dst[routes.links]))
    inner = (ends < topology.num_devices) & (ends != start[hop]) & (ends != end[hop])
    around = np.zeros(len(start), np.bool_)
    around[hop[inner.any(axis=0)]] = True  # the simulator's route goes through another device
    keep = np.flatnonzero(~around)
    number = np.full(len(start), -1)
    number[keep] = np.arange(len(keep))
    there = number[hop] >= 0
    used, link = np.unique(routes.links[there], return_inverse=True)
    load = csr_matrix((routes.share[there], (link, number[hop[there]])), shape=(len(used), len(keep)))
    src, dst = member[start[keep]], member[end[keep]]
    return Hops(
        len(ranks),
        len(others),
        len(nodes),
        src,
        dst,
        routes.latency_s[keep],
        routes.bandwidth_bytes_per_s[keep],
        load,
        topology.links.bandwidth_bytes_per_s[used],
        src,
        dst,
        *(column[keep] for column in costs_of(topology, start, end)),
    )


def hops_between(topology: Topology, nodes: Ints, src: Ints, dst: Ints) -> tuple[Hops, Ints]:
    """Hops between pairs of members at these nodes, by the simulator's routes, also past other members.

    Returns each pair's hop beside them.
    """
    pairs, hop = np.unique(np.stack((src, dst)), axis=1, return_inverse=True)
    start, end = nodes[pairs[0]], nodes[pairs[1]]
    routes = topology.routes(start, end)
    of = np.repeat(np.arange(len(start)), np.diff(routes.offsets))
    used, link = np.unique(routes.links, return_inverse=True)
    devices = int((nodes < topology.num_devices).sum())
    hops = Hops(
        devices,
        0,
        len(nodes),
        pairs[0],
        pairs[1],
        routes.latency_s,
        routes.bandwidth_bytes_per_s,
        csr_matrix((routes.share, (link, of)), shape=(len(used), len(start))),
        topology.links.bandwidth_bytes_per_s[used],
        pairs[0],
        pairs[1],
        *costs_of(topology, start, end),
    )
    return hops, hop.reshape(-1)


def along_switches(topology: Topology, src: Ints, dst: Ints) -> Bools:
    """Which hops lead to the next port of a switch, or cross none: then each port receives from one other only.

    Messages that arrive from several ports at once wait for each other; in a chain nothing ever waits.
    """
    kept = np.ones(len(src), np.bool_)
    inside = (src < topology.num_devices) & (dst < topology.num_devices)
    stride = 1
    for block in topology.blocks:
        here, there = src // stride % block.size, dst // stride % block.size
        if block.kind == "switch":
            kept &= ~inside | (here == there) | ((here + 1) % block.size == there)
        stride *= block.size
    return kept


def around(hops: Hops) -> Bools:
    """Which hops are over one link, or lead to the next member of a ring, in which neighbours have few links between.

    Behind switches each member then receives from one other, and links between switches carry little.
    """
    links = np.diff(hops.load.tocsc().indptr)
    away = np.full((hops.members, hops.members), np.inf)
    away[hops.src, hops.dst] = links
    ring = [0]
    away[:, 0] = np.inf
    while len(ring) < hops.members:
        ring.append(int(away[ring[-1]].argmin()))
        away[:, ring[-1]] = np.inf
    after = np.empty(hops.members, np.int64)
    after[ring] = np.roll(ring, -1)
    kept: Bools = (links == 1) | (after[hops.src] == hops.dst)
    return kept


def _neighbours(topology: Topology, switches: Ints) -> tuple[Ints, Ints]:
    """Pairs of nodes with a live path between them through switches only.

    The nodes are devices, and the given switches, through which there is then no path from device to device.
    """
    links, devices = topology.links, topology.num_devices
    live = links.bandwidth_bytes_per_s > 0
    onward: list[list[int]] = [[] for _ in range(topology.num_nodes)]
    for here, there in zip(links.src[live].tolist(), links.dst[live].tolist(), strict=True):
        onward[here].append(there)
    found: list[tuple[int, int]] = []
    ends = {*range(devices), *switches.tolist()}
    for member in sorted(ends):
        seen, reached, queue = {member}, set(), list(onward[member])
        while queue:
            node = queue.pop()
            if node in seen:
                continue
            seen.add(node)
            if node in ends:
                reached.add(node)
            elif member < devices:
                queue += onward[node]
        near = {node for node in reached if max(node, member) < devices or node in onward[member]}
        found += [(member, other) for other in sorted(near)]
    pairs = np.array(found, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]
