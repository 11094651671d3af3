"""Fat trees: levels of switches whose links get wider upwards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from choreo.errors import UsageError
from choreo.topology.blocks import Block, check_oversubscribed, link_figures, plain_block
from choreo.topology.graph import Floats, Ints, Links, Paths, hashed_index

__all__ = ["fat_tree", "fat_tree_links"]


def fat_tree(
    sizes: Sequence[int],
    bandwidth_bytes_per_s: float | str,
    latency_s: float | str,
    *,
    oversubscribed: float = 1.0,
    spines: int = 1,
) -> Block:
    """Levels of switches: sizes[0] ports per leaf, sizes[1] leaves per group, and so on.

    Above the leaves every group has `spines` switches, each linked to every switch of the groups below. A leaf's uplink
    bandwidth is that of its ports divided by `oversubscribed`; higher levels are not oversubscribed further.

    >>> fat_tree((8, 4), "50GB/s", "1us", spines=2).switches
    6
    """
    size = math.prod(sizes)
    bandwidth_bytes_per_s, latency_s = link_figures(min(sizes), bandwidth_bytes_per_s, latency_s)
    if spines < 1:
        raise UsageError(f"a fat tree has at least 1 spine, not {spines}")
    check_oversubscribed(oversubscribed)
    tree = _Tree(tuple(sizes), spines)
    link_figures(size, bandwidth_bytes_per_s, latency_s, links=tree.num_links)
    parts = [Links.uniform(*ends, bandwidth_bytes_per_s, latency_s) for ends in tree.at_ports()]
    for level in range(1, len(sizes)):
        below = math.prod(sizes[:level])
        each = below * bandwidth_bytes_per_s / oversubscribed / (tree.planes(level - 1) * spines)
        parts += [Links.uniform(*ends, each, latency_s) for ends in tree.between(level)]
    links = Links.join(parts)
    return plain_block("fat_tree", size, tree.switches, links, partial(_up_and_down, tree=tree, latency_s=latency_s))


def fat_tree_links(sizes: Sequence[int], spines: int = 1) -> int:
    """The number of links in a fat tree, without making it.

    >>> fat_tree_links((8, 4), spines=2) == len(fat_tree((8, 4), "50GB/s", "1us", spines=2).links)
    True
    """
    return _Tree(tuple(sizes), spines).num_links


def _up_and_down(a: Ints, b: Ints, key: Ints, routing: str, *, tree: _Tree, latency_s: float) -> Paths:
    table, share = tree.paths(a, b, key, routing)
    crossed = 2.0 * np.where(a == b, 0, tree.meeting(a, b) + 1)
    return Paths(table, share, crossed * latency_s)


class _Tree:
    """The numbering of a fat tree's switches and links.

    Switches are ordered by level, group and plane. Links start with those at the ports, up, then down. Then each level
    follows: by group below, plane below and plane above, first all links up and then all links down.
    """

    def __init__(self, sizes: tuple[int, ...], spines: int) -> None:
        self.sizes, self.spines = sizes, spines
        self.size = math.prod(sizes)
        self.groups = [self.size // math.prod(sizes[: level + 1]) for level in range(len(sizes))]
        counts = [groups * self.planes(level) for level, groups in enumerate(self.groups)]
        self.first_switch = [self.size + sum(counts[:level]) for level in range(len(sizes))]
        self.switches = sum(counts)
        self.first_link = [0]
        step = 2 * self.size
        for level in range(1, len(sizes)):
            self.first_link.append(step)
            step += 2 * self.lines(level)
        self.num_links = step

    def planes(self, level: int) -> int:
        """The number of switches in each group of a level."""
        return 1 if level == 0 else self.spines

    def lines(self, level: int) -> int:
        """The number of links that go up to a level's switches."""
        return self.groups[level - 1] * self.planes(level - 1) * self.spines

    def node(self, level: int, group: Ints, plane: Ints) -> Ints:
        """The number of a switch."""
        at: Ints = self.first_switch[level] + group * self.planes(level) + plane
        return at

    def at_ports(self) -> list[tuple[Ints, Ints]]:
        """The ends of the links between ports and leaves: up, then down."""
        port = np.arange(self.size)
        leaf = self.first_switch[0] + port // self.sizes[0]
        return [(port, leaf), (leaf, port)]

    def between(self, level: int) -> list[tuple[Ints, Ints]]:
        """The ends of the links between a level's switches and those below: up, then down."""
        number = np.arange(self.lines(level))
        group, rest = np.divmod(number, self.planes(level - 1) * self.spines)
        below, above = np.divmod(rest, self.spines)
        low, high = self.node(level - 1, group, below), self.node(level, group // self.sizes[level], above)
        return [(low, high), (high, low)]

    def link(self, level: int, group: Ints, below: Ints, above: Ints, *, down: bool) -> Ints:
        """The number of the link between a group's switch and one above it."""
        number = (group * self.planes(level - 1) + below) * self.spines + above
        at: Ints = self.first_link[level] + number + (self.lines(level) if down else 0)
        return at

    def meeting(self, a: Ints, b: Ints) -> Ints:
        """The level at which two ports first share a group."""
        level = np.zeros(len(a), np.int64)
        for k in range(len(self.sizes) - 1):
            level += a // math.prod(self.sizes[: k + 1]) != b // math.prod(self.sizes[: k + 1])
        return level

    def paths(self, a: Ints, b: Ints, key: Ints, routing: str) -> tuple[Ints, Floats | None]:
        """The links from ports a to ports b, up and down again, and the fraction of a message on each."""
        meeting, same = self.meeting(a, b), a == b
        spread = routing == "spread" and self.spines > 1
        up: list[tuple[Ints, float]] = [(np.where(same, -1, a), 1.0)]
        down: list[tuple[Ints, float]] = [(np.where(same, -1, self.size + b), 1.0)]
        for level in range(1, len(self.sizes)):
            below = math.prod(self.sizes[:level])
            if spread:
                pairs = [(low, high) for low in range(self.planes(level - 1)) for high in range(self.spines)]
                planes = [(np.full(len(a), low), np.full(len(a), high)) for low, high in pairs]
            else:
                lower = np.zeros(len(a), np.int64) if level == 1 else hashed_index(key, a + level - 1, self.spines)
                planes = [(lower, hashed_index(key, a + level, self.spines))]
            goes, part = meeting >= level, 1 / len(planes)
            rising = [self.link(level, a // below, low, high, down=False) for low, high in planes]
            falling = [self.link(level, b // below, low, high, down=True) for low, high in planes]
            up = up + [(np.where(goes, link, -1), part) for link in rising]
            down = [(np.where(goes, link, -1), part) for link in falling] + down
        table = np.stack([links for links, _ in up + down], axis=1)
        if not spread:
            return table, None
        return table, np.broadcast_to(np.array([part for _, part in up + down]), table.shape).copy()
