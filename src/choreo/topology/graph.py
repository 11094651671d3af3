"""A directed graph as NumPy columns, and shortest paths through it.

Ports come first (nodes 0 to `ports` - 1), switches after them. A link of zero bandwidth is down: no path uses it. If
several paths are equally short the load is either *spread* or *hashed*. Spread: every node divides what it forwards
among its next links on shortest paths, in proportion to the capacity behind them. Hashed: each pair of ends uses one
path, chosen by a hash of the pair.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["ROUTINGS", "Bools", "Floats", "Ints", "Links", "Paths", "hashed_index", "shortest_paths"]

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]

ROUTINGS = ("spread", "hashed")
UNREACHABLE = np.iinfo(np.int32).max
# Distances in memory at once, so that a large network is searched for a few targets at a time.
MAX_DISTANCES = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """Directed links, one NumPy column per field: node numbers, bytes per second, seconds.

    `overhead_s` is the time that a message over the link costs its sender, and its receiver. `gap_s` is the least time
    between two such messages, 1 / the message rate. Both default to zero.
    """

    src: Ints
    dst: Ints
    bandwidth_bytes_per_s: Floats
    latency_s: Floats
    overhead_s: Floats = field(default_factory=lambda: np.zeros(0))
    gap_s: Floats = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        for name in ("overhead_s", "gap_s"):
            if not len(getattr(self, name)):
                object.__setattr__(self, name, np.zeros(len(self.src)))

    def __len__(self) -> int:
        return len(self.src)

    @staticmethod
    def uniform(src: npt.ArrayLike, dst: npt.ArrayLike, bandwidth_bytes_per_s: float, latency_s: float) -> Links:
        """Links that all have the same bandwidth and latency."""
        ends = np.asarray(src, np.int64), np.asarray(dst, np.int64)
        figures = (np.full(len(ends[0]), float(figure)) for figure in (bandwidth_bytes_per_s, latency_s))
        return Links(*ends, *figures)

    @staticmethod
    def join(parts: list[Links]) -> Links:
        """The links of several tables one after another."""
        if not parts:
            return Links.uniform([], [], 0.0, 0.0)
        return Links(
            np.concatenate([part.src for part in parts]),
            np.concatenate([part.dst for part in parts]),
            np.concatenate([part.bandwidth_bytes_per_s for part in parts]),
            np.concatenate([part.latency_s for part in parts]),
            np.concatenate([part.overhead_s for part in parts]),
            np.concatenate([part.gap_s for part in parts]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Paths:
    """The links that each of n messages crosses: a row per message, padded with -1, in the order they are crossed.

    `share` is the fraction of the message that crosses each link, None if it is always the whole message. `latency_s`
    is the latency of the slowest path.
    """

    links: Ints
    share: Floats | None
    latency_s: Floats

    @staticmethod
    def single(links: Ints, latency_s: Floats) -> Paths:
        """One path per message; `latency_s` has the latency of each link."""
        if not len(latency_s):
            return Paths(links, None, np.zeros(len(links)))
        return Paths(links, None, np.where(links >= 0, latency_s[links], 0.0).sum(axis=1))


def hashed_index(src: Ints, dst: Ints, choices: npt.ArrayLike) -> Ints:
    """A number below `choices` for each pair, the same on every machine and in every run."""
    mixed = src.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + dst.astype(np.uint64) + np.uint64(1)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return ((mixed ^ (mixed >> np.uint64(31))) % np.asarray(choices, np.uint64)).astype(np.int64)


def distances_to(links: Links, nodes: int, targets: Ints) -> npt.NDArray[np.int32]:
    """The distance in links from every node (rows) to each target (columns), by one breadth-first search."""
    alive = np.flatnonzero(links.bandwidth_bytes_per_s > 0)
    alive = alive[np.argsort(links.dst[alive], kind="stable")]
    before = links.src[alive]
    first = np.searchsorted(links.dst[alive], np.arange(nodes + 1))
    away = np.full((nodes, len(targets)), UNREACHABLE, np.int32)
    node, target = targets, np.arange(len(targets))
    hops = 0
    while len(node):
        away[node, target] = hops
        hops += 1
        arriving = first[node + 1] - first[node]
        nth = np.arange(arriving.sum()) - np.repeat(arriving.cumsum() - arriving, arriving)
        found = before[np.repeat(first[node], arriving) + nth] * len(targets) + np.repeat(target, arriving)
        found = np.unique(found[away.reshape(-1)[found] == UNREACHABLE])
        node, target = np.divmod(found, len(targets))
    return away


def shortest_paths(links: Links, nodes: int, src: Ints, dst: Ints, routing: str) -> Paths | tuple[int, int]:
    """The shortest paths between pairs of nodes, or the first pair that has none."""
    leaving = _leaving(links, nodes)
    targets, column = np.unique(dst, return_inverse=True)
    ways: dict[int, tuple[list[int], list[float], float]] = {}
    missing: list[int] = []
    at_once = max(1, MAX_DISTANCES // nodes)
    for start in range(0, len(targets), at_once):
        away = distances_to(links, nodes, targets[start : start + at_once])
        for row in np.flatnonzero(column // at_once == start // at_once).tolist():
            ends, toward = (int(src[row]), int(dst[row])), away[:, column[row] - start]
            if toward[ends[0]] == UNREACHABLE:
                missing.append(row)
            else:
                ways[row] = _walk(links, leaving, toward, ends, routing)
    if missing:
        return int(src[min(missing)]), int(dst[min(missing)])
    table = np.full((len(src), max((len(path) for path, _, _ in ways.values()), default=0)), -1, np.int64)
    share, latency = np.zeros(table.shape), np.zeros(len(src))
    for row, (path, parts, latest) in ways.items():
        table[row, : len(path)] = path
        share[row, : len(parts)] = parts
        latency[row] = latest
    return Paths(table, None if (share[table >= 0] == 1.0).all() else share, latency)


def _leaving(links: Links, nodes: int) -> list[list[int]]:
    """The live links that leave each node."""
    leaving: list[list[int]] = [[] for _ in range(nodes)]
    for link in np.flatnonzero(links.bandwidth_bytes_per_s > 0).tolist():
        leaving[int(links.src[link])].append(link)
    return leaving


def _walk(
    links: Links, leaving: list[list[int]], away: npt.NDArray[np.int32], ends: tuple[int, int], routing: str
) -> tuple[list[int], list[float], float]:
    """The links from one end to the other, the fraction of the load on each, and the latency of the slowest path."""
    src, dst = ends
    carries = _capacities(links, leaving, away, ends) if routing == "spread" else {}
    load, late = {src: 1.0}, {src: 0.0}
    path: list[int] = []
    parts: list[float] = []
    for hops in range(int(away[src]), 0, -1):
        after: dict[int, float] = {}
        for node in sorted(load):
            onward = [link for link in leaving[node] if away[links.dst[link]] == hops - 1]
            if routing == "hashed":
                drawn = hashed_index(np.array([src]), np.array([dst + (hops << 32)]), len(onward))
                onward = [onward[int(drawn[0])]]
            weights = _weights(links, onward, carries)
            for link, weight in zip(onward, weights, strict=True):
                part = load[node] * weight
                head = int(links.dst[link])
                path.append(link)
                parts.append(part)
                after[head] = after.get(head, 0.0) + part
                late[head] = max(late.get(head, 0.0), late[node] + float(links.latency_s[link]))
        load = after
    return path, parts, late[dst]


def _capacities(
    links: Links, leaving: list[list[int]], away: npt.NDArray[np.int32], ends: tuple[int, int]
) -> dict[int, float]:
    """The most that can be carried from each node to the far end by shortest paths."""
    src, dst = ends
    layers = [{src}]
    for hops in range(int(away[src]), 0, -1):
        layers.append({int(links.dst[e]) for n in layers[-1] for e in leaving[n] if away[links.dst[e]] == hops - 1})
    carries = {dst: np.inf}
    for hops, layer in enumerate(reversed(layers[:-1])):
        for node in layer:
            onward = [link for link in leaving[node] if away[links.dst[link]] == hops]
            carries[node] = sum(_by_head(links, onward, carries).values())
    return carries


def _by_head(links: Links, onward: list[int], carries: dict[int, float]) -> dict[int, float]:
    """The capacity through each next node: the lesser of what the links to it carry and what it can forward."""
    wide: dict[int, float] = {}
    for link in onward:
        head = int(links.dst[link])
        wide[head] = wide.get(head, 0.0) + float(links.bandwidth_bytes_per_s[link])
    return {head: min(width, carries[head]) for head, width in wide.items()}


def _weights(links: Links, onward: list[int], carries: dict[int, float]) -> list[float]:
    """The fraction of the load on each next link; links to the same node share by their bandwidth."""
    if len(onward) == 1:
        return [1.0]
    ways = _by_head(links, onward, carries)
    total = sum(ways.values())
    beside: dict[int, float] = {}
    for link in onward:
        head = int(links.dst[link])
        beside[head] = beside.get(head, 0.0) + float(links.bandwidth_bytes_per_s[link])
    heads = [int(links.dst[link]) for link in onward]
    widths = [float(links.bandwidth_bytes_per_s[link]) for link in onward]
    return [ways[head] / total * (width / beside[head]) for head, width in zip(heads, widths, strict=True)]
