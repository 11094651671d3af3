"""Devices, switches and the directed links between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import numpy.typing as npt

from choreo.errors import NoPathError, UsageError, shown
from choreo.results import drawn
from choreo.topology.blocks import Block
from choreo.topology.graph import ROUTINGS, Bools, Floats, Ints, Links, Paths, shortest_paths
from choreo.units import counted

__all__ = ["MAX_DEVICES", "Routes", "Topology", "compose"]

MAX_DEVICES = 1 << 22
# Pairs whose paths are looked up together, so that a table padded to the longest path stays small.
PAIRS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """The links that each of n messages crosses: those of message i are links[offsets[i] : offsets[i + 1]].

    `share` is the fraction of the message on each link. `latency_s` is the latency of the slowest path.
    `bandwidth_bytes_per_s` is what a message gets if it has all of its links to itself. `overhead_s` and `gap_s` are
    the largest of any link on the route.
    """

    offsets: Ints
    links: npt.NDArray[np.int32]
    share: Floats
    latency_s: Floats
    bandwidth_bytes_per_s: Floats
    overhead_s: Floats
    gap_s: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """A network: a graph of devices and switches with directed links.

    Nodes are numbered, devices first. A topology is composed of blocks, one per dimension, the first innermost: device
    d has the coordinates d % size[0], d // size[0] % size[1], ... and its own ports in each dimension. A graph that is
    not regular is one block. `links` lists the copies of the first block's links, then those of the second, and so on.

    `slowdown` is the factor by which each device is slower than normal. `device` names the accelerator, if known.
    """

    name: str
    blocks: tuple[Block, ...]
    links: Links
    slowdown: Floats
    device: str = ""
    routing: str = "spread"

    def _repr_html_(self) -> str:
        return drawn(self)

    def __post_init__(self) -> None:
        if self.routing not in ROUTINGS:
            raise UsageError(f"routing must be {' or '.join(ROUTINGS)}, not {self.routing!r}")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of devices along each dimension, innermost first."""
        return tuple(block.size for block in self.blocks)

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return math.prod(self.sizes)

    @property
    def num_switches(self) -> int:
        """The number of switches."""
        return sum(self.num_devices // block.size * block.switches for block in self.blocks)

    @property
    def num_nodes(self) -> int:
        """Devices and switches."""
        return self.num_devices + self.num_switches

    @property
    def reduces(self) -> Bools:
        """A mask of the nodes that are switches that can reduce and multicast."""
        marks = [np.zeros(self.num_devices, np.bool_)]
        marks += [np.tile(block.reduces, self.num_devices // block.size) for block in self.blocks]
        return np.concatenate(marks)

    def dimension_of_links(self) -> Ints:
        """The block that each link belongs to."""
        counts = [self.num_devices // block.size * len(block.links) for block in self.blocks]
        return np.repeat(np.arange(len(self.blocks)), counts)

    def node_name(self, node: int) -> str:
        """The name of a node: from its file, or its number."""
        if len(self.blocks) == 1 and self.blocks[0].names:
            return self.blocks[0].names[node]
        devices = len(self.slowdown)
        return str(node) if node < devices else f"switch{node - devices}"

    def device_of(self, name: str) -> int:
        """The number of the device that is called `name`; a switch is refused.

        >>> from choreo import get_topology
        >>> get_topology("ring(4, 50GB/s, 1us)").device_of("3")
        3
        """
        node = self.find_node(name)
        if node >= self.num_devices:
            raise UsageError(f"{self.name}: {name!r} is a switch, not a device; devices are {self._listed_devices()}")
        return node

    def find_node(self, name: str) -> int:
        """The node of a name."""
        names = self.blocks[0].names if len(self.blocks) == 1 else ()
        if name in names:
            return names.index(name)
        number = name.removeprefix("switch")
        if number.isdecimal() and len(number) < 10:
            node = int(number) + (self.num_devices if name != number else 0)
            if node < (self.num_nodes if name != number else self.num_devices):
                return node
        switches = ""
        if self.num_switches and not names:
            last = self.num_switches - 1
            switches = f", switches are switch0 to switch{last}" if last else ", the switch is switch0"
        raise UsageError(f"{self.name} has no node {name!r}; devices are {self._listed_devices()}{switches}")

    def _listed_devices(self) -> str:
        if len(self.blocks) == 1 and self.blocks[0].names:
            return ", ".join(self.blocks[0].names[: min(8, self.num_devices)]) + (
                ", ..." if self.num_devices > 8 else ""
            )
        return f"0 to {self.num_devices - 1}"

    def routes(self, src: Ints, dst: Ints) -> Routes:
        """The routes from devices src to devices dst: dimension by dimension in order, shortest in each.

        If such a route would cross a link of zero bandwidth, the shortest detour is taken; having none is an error. A
        route from or to a switch is the shortest: the link between the two, if there is one.
        """
        starts = range(0, len(src), PAIRS_AT_ONCE)
        parts = [self._routes(src[at : at + PAIRS_AT_ONCE], dst[at : at + PAIRS_AT_ONCE]) for at in starts]
        offsets = np.concatenate([np.zeros(1, np.int64), *(np.diff(part.offsets) for part in parts)]).cumsum()
        return Routes(
            offsets,
            np.concatenate([np.zeros(0, np.int32), *(part.links for part in parts)]),
            np.concatenate([np.zeros(0), *(part.share for part in parts)]),
            np.concatenate([np.zeros(0), *(part.latency_s for part in parts)]),
            np.concatenate([np.zeros(0), *(part.bandwidth_bytes_per_s for part in parts)]),
            np.concatenate([np.zeros(0), *(part.overhead_s for part in parts)]),
            np.concatenate([np.zeros(0), *(part.gap_s for part in parts)]),
        )

    def with_slow_link(self, src: int, dst: int, factor: float) -> Topology:
        """The same with the links from src to dst at `factor` times their bandwidth; 0 is a link that is down."""
        _check_factor(factor)
        chosen = (self.links.src == src) & (self.links.dst == dst)
        if not chosen.any():
            near = np.unique(self.links.dst[self.links.src == src]).tolist()
            names = ", ".join(shown(self.node_name(node)) for node in near[:6]) + (", ..." if len(near) > 6 else "")
            here = self.node_name(src)
            raise UsageError(
                f"{self.name} has no link from {here} to {self.node_name(dst)}; {here} has links to {names or 'none'}"
            )
        return self._scaled(chosen, factor)

    def with_slow_device(self, device: int, times: float) -> Topology:
        """The same with a device that is `times` slower: its links in and out, and its reductions."""
        if not (math.isfinite(times) and times > 0):
            raise UsageError(f"a device is slower by a factor of more than 0, not {times:g}")
        if not 0 <= device < self.num_devices:
            raise UsageError(f"{self.name} has no device {device}; they are 0 to {self.num_devices - 1}")
        slowdown = self.slowdown.copy()
        slowdown[device] *= times
        chosen = (self.links.src == device) | (self.links.dst == device)
        return replace(self._scaled(chosen, 1 / times), slowdown=slowdown)

    def with_plain_switches(self) -> Topology:
        """The same with switches that only forward."""
        plain = tuple(replace(block, reduces=np.zeros_like(block.reduces)) for block in self.blocks)
        return replace(self, blocks=plain)

    def with_routing(self, routing: str) -> Topology:
        """The same with equal paths `spread` or `hashed`."""
        return replace(self, routing=routing)

    def __repr__(self) -> str:
        return (
            f"<Topology {self.name}: {counted(self.num_devices, 'device')}, "
            f"{counted(self.num_switches, 'switch', 'switches')}, {counted(len(self.links), 'link')}>"
        )

    def _scaled(self, chosen: Bools, factor: float) -> Topology:
        bandwidth = np.where(chosen, self.links.bandwidth_bytes_per_s * factor, self.links.bandwidth_bytes_per_s)
        return replace(self, links=replace(self.links, bandwidth_bytes_per_s=bandwidth))

    def _routes(self, src: Ints, dst: Ints) -> Routes:
        """The routes of a few pairs at once."""
        at_switch = np.maximum(src, dst) >= self.num_devices
        if at_switch.any():
            # First the paths between devices, with empty paths for pairs that have a switch; then those pairs.
            paths = self._by_dimension(np.where(at_switch, 0, src), np.where(at_switch, 0, dst))
            paths = _replaced(paths, at_switch, self._at_switches(src[at_switch], dst[at_switch]))
        elif self._is_changed_graph:
            paths = self._shortest(src, dst)
        else:
            paths = self._by_dimension(src, dst)
        there = paths.links >= 0
        dead = np.zeros(len(src), np.bool_)
        if not (self.links.bandwidth_bytes_per_s > 0).all():
            dead = (there & (self.links.bandwidth_bytes_per_s[paths.links] == 0)).any(axis=1)
        if dead.any():
            paths = _replaced(paths, dead, self._shortest(src[dead], dst[dead]))
            there = paths.links >= 0
        links = paths.links[there].astype(np.int32)
        share = np.ones(len(links)) if paths.share is None else paths.share[there]
        offsets = np.concatenate((np.zeros(1, np.int64), there.sum(axis=1))).cumsum()
        rate = np.full(paths.links.shape, np.inf)
        rate[there] = self.links.bandwidth_bytes_per_s[links] / share
        alone = rate.min(axis=1, initial=np.inf)
        costs = (_greatest(paths.links, there, column) for column in (self.links.overhead_s, self.links.gap_s))
        return Routes(offsets, links, share, paths.latency_s, alone, *costs)

    @property
    def _is_changed_graph(self) -> bool:
        """Whether this is one graph whose links were changed: messages are then divided by the new bandwidths."""
        block = self.blocks[0]
        if len(self.blocks) > 1 or block.kind != "graph":
            return False
        return not np.array_equal(block.links.bandwidth_bytes_per_s, self.links.bandwidth_bytes_per_s)

    def _at_switches(self, src: Ints, dst: Ints) -> Paths:
        """Paths with a switch at one end or both: the one live link between the two, or else the shortest."""
        live = np.flatnonzero(self.links.bandwidth_bytes_per_s > 0)
        ends = self.links.src[live] * self.num_nodes + self.links.dst[live]
        order = np.argsort(ends, kind="stable")
        ends, wanted = ends[order], src * self.num_nodes + dst
        first, last = np.searchsorted(ends, wanted), np.searchsorted(ends, wanted, side="right")
        linked = last - first == 1
        table = np.full((len(src), 1), -1, np.int64)
        table[linked, 0] = live[order[first[linked]]]
        paths = Paths.single(table, self.links.latency_s)
        if linked.all():
            return paths
        return _replaced(paths, ~linked, self._shortest(src[~linked], dst[~linked]))

    def _shortest(self, src: Ints, dst: Ints) -> Paths:
        """The shortest live paths through the whole graph, ignoring its dimensions."""
        paths = shortest_paths(self.links, self.num_nodes, src, dst, self.routing)
        if isinstance(paths, tuple):
            here, away = (f"device {self.node_name(n)}" if n < self.num_devices else self.node_name(n) for n in paths)
            raise NoPathError(
                f"there is no way from {here} to {away} of {self.name}: every path crosses a link of no bandwidth; "
                "give it some, or place the ranks elsewhere"
            )
        return paths

    def _by_dimension(self, src: Ints, dst: Ints) -> Paths:
        """Paths that settle one coordinate after another."""
        key, at = src * self.num_devices + dst, src
        tables: list[Ints] = []
        shares: list[Floats | None] = []
        latency, first_link, stride = np.zeros(len(src)), 0, 1
        for block in self.blocks:
            size, lines = block.size, self.num_devices // block.size
            here, there = at // stride % size, dst // stride % size
            paths = block.route(here, there, key, self.routing)
            line = at // (stride * size) * stride + at % stride
            tables.append(np.where(paths.links >= 0, first_link + line[:, None] * len(block.links) + paths.links, -1))
            shares.append(paths.share)
            latency = latency + paths.latency_s
            at = at + (there - here) * stride
            first_link += lines * len(block.links)
            stride *= size
        share = None
        if any(part is not None for part in shares):
            share = np.concatenate(
                [np.ones(t.shape) if s is None else s for t, s in zip(tables, shares, strict=True)], 1
            )
        return Paths(np.concatenate(tables, axis=1), share, latency)


def compose(name: str, blocks: Sequence[Block], *, device: str = "", routing: str = "spread") -> Topology:
    """The topology whose dimensions are the blocks, innermost first.

    >>> from choreo.topology import ring, switch
    >>> compose("mine", [ring(4, "200GB/s", "50ns"), switch(8, "50GB/s", "1us")]).num_devices
    32
    """
    if not blocks:
        raise UsageError("a topology needs at least one block, like ring(8, 50GB/s, 500ns)")
    devices = reduce(lambda total, block: min(total * block.size, MAX_DEVICES + 1), blocks, 1)
    if devices > MAX_DEVICES:
        raise UsageError(f"{name} has more than {MAX_DEVICES} devices; use fewer")
    parts: list[Links] = []
    first_switch, stride = devices, 1
    for block in blocks:
        line = np.arange(devices // block.size)
        first_port = line // stride * stride * block.size + line % stride
        local = np.arange(block.nodes)
        number = np.where(
            local < block.size,
            first_port[:, None] + np.minimum(local, block.size - 1) * stride,
            first_switch + line[:, None] * block.switches + (local - block.size),
        )
        copies = len(line)
        parts.append(
            Links(
                number[:, block.links.src].reshape(-1),
                number[:, block.links.dst].reshape(-1),
                np.tile(block.links.bandwidth_bytes_per_s, copies),
                np.tile(block.links.latency_s, copies),
                np.tile(block.links.overhead_s, copies),
                np.tile(block.links.gap_s, copies),
            )
        )
        first_switch += copies * block.switches
        stride *= block.size
    return Topology(name, tuple(blocks), Links.join(parts), np.ones(devices), device, routing)


def _replaced(paths: Paths, rows: Bools, others: Paths) -> Paths:
    """The paths with some rows replaced."""
    width = max(paths.links.shape[1], others.links.shape[1])

    def wide(values: npt.NDArray[np.generic], fill: float) -> npt.NDArray[np.generic]:
        return np.pad(values, ((0, 0), (0, width - values.shape[1])), constant_values=fill)

    table, latency = wide(paths.links, -1).astype(np.int64), paths.latency_s.copy()
    table[rows], latency[rows] = wide(others.links, -1), others.latency_s
    share = None
    if paths.share is not None or others.share is not None:
        share = np.ones(table.shape) if paths.share is None else wide(paths.share, 0.0).astype(np.float64)
        share[rows] = 1.0 if others.share is None else wide(others.share, 0.0)
    return Paths(table, share, latency)


def _greatest(links: Ints, there: Bools, column: Floats) -> Floats:
    """The greatest figure among the links of each row."""
    if not column.any():
        return np.zeros(len(links))
    most: Floats = np.where(there, column[links], 0.0).max(axis=1, initial=0.0)
    return most


def _check_factor(factor: float) -> None:
    if not (math.isfinite(factor) and factor >= 0):
        raise UsageError(f"a link's bandwidth is multiplied by a number of at least 0, not {factor:g}")
