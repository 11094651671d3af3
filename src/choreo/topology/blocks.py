"""The building blocks of networks: graphs that join `size` ports, each with its own way of finding a path.

A block's links are numbered so that a path can be written down without searching: link numbers are given with each
kind. Bandwidth is per link and direction; through a switch a message takes two links.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from choreo.errors import NoPathError, UsageError, short
from choreo.files import check_work
from choreo.topology.graph import Bools, Floats, Ints, Links, Paths, shortest_paths
from choreo.units import bandwidth_of, rate_of, time_of

__all__ = [
    "Block",
    "check_links",
    "check_oversubscribed",
    "fully_connected",
    "graph",
    "line",
    "link_figures",
    "message_figures",
    "one_link",
    "plain_block",
    "ring",
    "switch",
]

MAX_LINKS = 1 << 26
LEAST, MOST = 1e-100, 1e100  # limits of a bandwidth or latency: products of three are still numbers
MOST_OVERSUBSCRIBED = 1e9
# The memory of a link and of a named node, intermediate arrays included.
LINK_BYTES, NODE_BYTES = 160, 400

# A module's function with some arguments bound, so that a topology can be pickled.
Router = Callable[[Ints, Ints, Ints, str], Paths]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Ports 0 to `size` - 1, switches after them, links between, and the paths from port to port.

    `route(a, b, key, routing)` gives the paths from ports a to ports b; hashed routing uses `key` to choose among equal
    paths. `reduces` marks the switches that can reduce and multicast. `medium` says what the links are (nvlink,
    network, pcie), if known. `text` is the block in the topology language.
    """

    kind: str
    size: int
    switches: int
    links: Links
    route: Router
    reduces: Bools
    text: str
    medium: str = ""
    names: tuple[str, ...] = ()

    @property
    def nodes(self) -> int:
        """Ports and switches."""
        return self.size + self.switches

    def with_overhead(self, overhead_s: float | str, message_rate: float | str | None = None) -> Block:
        """The same block with an overhead per message at sender and receiver, and a limit on messages per second.

        >>> ring(4, "50GB/s", "1us").with_overhead("500ns", "100M/s").links.gap_s.tolist()[0]
        1e-08
        """
        overhead, gap = message_figures(overhead_s, message_rate)
        count = len(self.links)
        return replace(self, links=replace(self.links, overhead_s=np.full(count, overhead), gap_s=np.full(count, gap)))


def ring(size: int, bandwidth_bytes_per_s: float | str, latency_s: float | str) -> Block:
    """A ring: link i goes from i to i + 1, link size + i from i to i - 1. Two ports have one link each way.

    >>> len(ring(4, "200GB/s", "50ns").links)
    8
    """
    bandwidth_bytes_per_s, latency_s = link_figures(size, bandwidth_bytes_per_s, latency_s)
    at = np.arange(size if size > 2 else size - 1)
    src = np.concatenate((at, at if size > 2 else at + 1))
    dst = np.concatenate(((at + 1) % size, (at - 1) % size if size > 2 else at))
    links = Links.uniform(src, dst, bandwidth_bytes_per_s, latency_s)
    return plain_block("ring", size, 0, links, partial(_around_ring, size=size, latency_s=links.latency_s))


def _around_ring(a: Ints, b: Ints, key: Ints, routing: str, *, size: int, latency_s: Floats) -> Paths:
    if size <= 2:
        return Paths.single(np.where(a == b, -1, a)[:, None], latency_s)
    up, down = (b - a) % size, (a - b) % size
    hop = np.arange(int(np.minimum(up, down).max(initial=0)))
    forward = (up <= down)[:, None]
    table = np.where(forward, (a[:, None] + hop) % size, size + (a[:, None] - hop) % size)
    table[hop >= np.minimum(up, down)[:, None]] = -1
    return Paths.single(table, latency_s)


def line(size: int, bandwidth_bytes_per_s: float | str, latency_s: float | str) -> Block:
    """A line, a one-dimensional mesh: link i goes from i to i + 1, link size - 1 + i from i + 1 back to i.

    >>> len(line(4, "50GB/s", "1us").links)
    6
    """
    bandwidth_bytes_per_s, latency_s = link_figures(size, bandwidth_bytes_per_s, latency_s)
    at = np.arange(size - 1)
    links = Links.uniform(np.concatenate((at, at + 1)), np.concatenate((at + 1, at)), bandwidth_bytes_per_s, latency_s)
    return plain_block("line", size, 0, links, partial(_along_line, size=size, latency_s=links.latency_s))


def _along_line(a: Ints, b: Ints, key: Ints, routing: str, *, size: int, latency_s: Floats) -> Paths:
    hop = np.arange(int(np.abs(b - a).max(initial=0)))
    table = np.where((b > a)[:, None], a[:, None] + hop, size - 2 + a[:, None] - hop)
    table[hop >= np.abs(b - a)[:, None]] = -1
    return Paths.single(table, latency_s)


def fully_connected(size: int, bandwidth_bytes_per_s: float | str, latency_s: float | str) -> Block:
    """A link from every port to every other: those of port a are numbered from a (size - 1) on, in order of port.

    >>> len(fully_connected(4, "50GB/s", "1us").links)
    12
    """
    bandwidth_bytes_per_s, latency_s = link_figures(size, bandwidth_bytes_per_s, latency_s, links=size * (size - 1))
    src = np.repeat(np.arange(size), size - 1)
    dst = np.tile(np.arange(size - 1), size)
    dst += dst >= src
    links = Links.uniform(src, dst, bandwidth_bytes_per_s, latency_s)
    return plain_block("fully_connected", size, 0, links, partial(_directly, size=size, latency_s=links.latency_s))


def _directly(a: Ints, b: Ints, key: Ints, routing: str, *, size: int, latency_s: Floats) -> Paths:
    return Paths.single(np.where(a == b, -1, a * (size - 1) + b - (b > a))[:, None], latency_s)


def switch(
    size: int,
    bandwidth_bytes_per_s: float | str,
    latency_s: float | str,
    *,
    oversubscribed: float = 1.0,
    reduces: bool = False,
) -> Block:
    """A switch: link i goes from port i up to it, link size + i down to port i.

    An oversubscribed switch can move only the ports' bandwidth divided by `oversubscribed` from its inputs to its
    outputs. It is two nodes joined by one link, the last in number.

    >>> switch(8, "50GB/s", "1us", reduces=True).switches
    1
    """
    bandwidth_bytes_per_s, latency_s = link_figures(size, bandwidth_bytes_per_s, latency_s)
    check_oversubscribed(oversubscribed)
    if size == 1:
        return plain_block("switch", 1, 0, Links.join([]), _nowhere, reduces=reduces)
    port, narrow = np.arange(size), oversubscribed > 1
    if narrow and reduces:
        raise UsageError("an oversubscribed switch cannot reduce what passes; leave out one of the two")
    links = Links.uniform(
        np.concatenate((port, np.full(size, size + narrow))),
        np.concatenate((np.full(size, size), port)),
        bandwidth_bytes_per_s,
        latency_s,
    )
    if narrow:
        fabric = Links.uniform([size], [size + 1], size * bandwidth_bytes_per_s / oversubscribed, 0.0)
        links = Links.join([links, fabric])
    route = partial(_through_switch, size=size, narrow=narrow, latency_s=links.latency_s)
    return plain_block("switch", size, 1 + narrow, links, route, reduces=reduces)


def _through_switch(a: Ints, b: Ints, key: Ints, routing: str, *, size: int, narrow: bool, latency_s: Floats) -> Paths:
    hops = (a, np.full(len(a), 2 * size), size + b) if narrow else (a, size + b)
    return Paths.single(np.where((a == b)[:, None], -1, np.stack(hops, axis=1)), latency_s)


def graph(
    size: int,
    links: Links,
    switches: int = 0,
    *,
    reduces: Bools | None = None,
    names: tuple[str, ...] = (),
    text: str = "graph",
) -> Block:
    """Any graph of ports and switches; paths are the shortest in links."""
    route = partial(_shortest, size=size, switches=switches, links=links, names=names)
    marks = np.zeros(switches, np.bool_) if reduces is None else reduces
    return replace(plain_block("graph", size, switches, links, route), reduces=marks, names=names, text=text)


def _shortest(
    a: Ints, b: Ints, key: Ints, routing: str, *, size: int, switches: int, links: Links, names: tuple[str, ...]
) -> Paths:
    # In a product of blocks the same pair of ports appears once for every line of devices.
    pairs, which = np.unique(a * size + b, return_inverse=True)
    paths = shortest_paths(links, size + switches, pairs // size, pairs % size, routing)
    if isinstance(paths, tuple):
        here, there = (names[node] if names else node for node in paths)
        raise NoPathError(f"there is no way from device {here} to device {there}; add a link, or leave one out")
    share = None if paths.share is None else paths.share[which]
    return Paths(paths.links[which], share, paths.latency_s[which])


def plain_block(kind: str, size: int, switches: int, links: Links, route: Router, *, reduces: bool = False) -> Block:
    """A block whose switches all reduce, or none of them."""
    return Block(kind, size, switches, links, route, np.full(switches, reduces), f"{kind}({size})")


def _nowhere(a: Ints, b: Ints, key: Ints, routing: str) -> Paths:
    return Paths(np.full((len(a), 0), -1, np.int64), None, np.zeros(len(a)))


def check_links(name: str, devices: int, links: int) -> None:
    """Refuse a network that does not fit in memory, or exceeds the limit for a text or file.

    >>> check_links("a ring", devices=8, links=16)
    """
    what = f"{short(name)} has {devices} devices and {links} links"
    if links > MAX_LINKS:
        raise UsageError(f"{what}; at most {MAX_LINKS} links can be held")
    check_work(f"{what}, which", links * LINK_BYTES)


def link_figures(
    size: int, bandwidth_bytes_per_s: float | str, latency_s: float | str, links: int = 0
) -> tuple[float, float]:
    """The bandwidth and latency of a block's links as numbers; impossible values are refused."""
    if size < 1:
        raise UsageError(f"a block joins at least 1 device, not {size}")
    if links > MAX_LINKS:
        raise UsageError(f"{size} devices have {links} links between them; at most {MAX_LINKS} can be held")
    return one_link(bandwidth_bytes_per_s, latency_s, "a link's ")


def one_link(bandwidth_bytes_per_s: float | str, latency_s: float | str, of: str = "") -> tuple[float, float]:
    """The bandwidth and latency of a link as numbers; impossible values are refused.

    >>> one_link("50GB/s", "1us")
    (50000000000.0, 1e-06)
    """
    bandwidth = float(bandwidth_of(bandwidth_bytes_per_s, f"{of}bandwidth", may_be_zero=True))
    latency = float(time_of(latency_s, f"{of}latency"))
    for name, figure in (("bandwidth", bandwidth), ("latency", latency)):
        if figure and not LEAST <= figure <= MOST:
            raise UsageError(f"{of}{name} is {figure:g}, which no link has; it is 0, or from {LEAST:g} to {MOST:g}")
    return bandwidth, latency


def check_oversubscribed(factor: float) -> None:
    """Refuse a factor by which no switch is oversubscribed."""
    if not factor >= 1:
        raise UsageError(f"a switch is oversubscribed by a factor of at least 1, not {factor:g}")
    if factor > MOST_OVERSUBSCRIBED:
        raise UsageError(f"a switch is oversubscribed by a factor of at most {MOST_OVERSUBSCRIBED:g}, not {factor:g}")


def message_figures(overhead_s: float | str, message_rate: float | str | None, of: str = "") -> tuple[float, float]:
    """The overhead of a message and the least time between two messages, in seconds.

    >>> message_figures("1us", "200M/s")
    (1e-06, 5e-09)
    """
    overhead = float(time_of(overhead_s, f"{of}overhead"))
    gap = 0.0 if message_rate is None else 1 / rate_of(message_rate, f"{of}message_rate")
    for name, figure in (("overhead", overhead), ("gap between messages", gap)):
        if figure and not LEAST <= figure <= MOST:
            raise UsageError(f"{of}{name} is {figure:g} s, which no device has; it is 0, or from {LEAST:g} to {MOST:g}")
    return overhead, gap
