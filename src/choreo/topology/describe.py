"""Describe a network: its dimensions, its links, and the source of each figure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from choreo.topology import Topology, get_topology, list_topologies
from choreo.topology.catalogue import SUFFIXES
from choreo.topology.files import TopologyFile, read_file
from choreo.topology.graph import UNREACHABLE, Floats, distances_to

if TYPE_CHECKING:
    from choreo.topology import Block

__all__ = [
    "DescribedTopology",
    "Dimension",
    "Ends",
    "LinksAlike",
    "cut_off",
    "diameter",
    "dimensions",
    "document",
    "ends",
    "find",
    "kinds",
    "listed",
    "one_line",
    "rate_of_gap",
]

# The diameter of a graph takes a search from every device; with more nodes than this that is slow.
MAX_SEARCHED = 1024
# At most this many different links of a dimension are listed one by one.
MAX_KINDS = 6

# The lowest and the highest of some figures.
Ends = tuple[float, float]


@dataclass(frozen=True, slots=True)
class DescribedTopology:
    """A topology and the files that describe it: its own, or those of the machines in its text."""

    topology: Topology
    files: tuple[TopologyFile, ...]

    @property
    def description(self) -> str:
        """The description in the network's file."""
        return " ".join(one_line(file.description) for file in self.files if file.description)


class Dimension(NamedTuple):
    """One dimension of a network; figures that differ between its links are from the lowest to the highest."""

    kind: str
    size: int
    switches: int
    groups_of: int
    bandwidth: Ends
    latency: Ends
    overhead: Ends
    gap: Ends
    medium: str
    links: int


class LinksAlike(NamedTuple):
    """Links with the same figures, or with figures from the lowest to the highest."""

    links: int
    bandwidth: Ends
    latency: Ends
    overhead: Ends
    gap: Ends


def find(text: str) -> DescribedTopology:
    """The network that the user typed."""
    topology = get_topology(text)
    suffix = Path(text).suffix.lower()
    if suffix in SUFFIXES and suffix != ".xml":
        return DescribedTopology(topology, (read_file(Path(text)),))
    machines = {name: machine for machine in list_topologies() for name in (machine.name, *machine.names)}
    parts = [] if suffix == ".xml" else re.split(r"\sx\s", text)
    names = [part.strip().partition(":")[0].lower() for part in parts]
    return DescribedTopology(topology, tuple(machines[name] for name in dict.fromkeys(names) if name in machines))


def dimensions(topology: Topology) -> list[Dimension]:
    """The dimensions that join anything, innermost first."""
    found, inner = [], 1
    for block in topology.blocks:
        copies = topology.num_devices // block.size
        if len(block.links):
            found.append(
                Dimension(
                    kind=block.kind,
                    size=block.size,
                    switches=copies * block.switches,
                    groups_of=inner,
                    bandwidth=ends(block.links.bandwidth_bytes_per_s),
                    latency=ends(block.links.latency_s),
                    overhead=ends(block.links.overhead_s),
                    gap=ends(block.links.gap_s),
                    medium=block.medium,
                    links=copies * len(block.links),
                )
            )
        inner *= block.size
    return found


def kinds(topology: Topology) -> list[list[LinksAlike]]:
    """The links of each dimension, grouped by their figures, with how many there are of each.

    If there are too many different ones to list, each dimension is one group with ranges. Dimensions without links are
    left out.
    """
    paths = []
    for block in (block for block in topology.blocks if len(block.links)):
        copies = topology.num_devices // block.size
        links = block.links
        figures = np.stack((links.bandwidth_bytes_per_s, links.latency_s, links.overhead_s, links.gap_s), axis=1)
        distinct, count = figures[:1], np.array([len(figures)])
        if not (figures == figures[0]).all():
            distinct, count = _distinct(figures)
        rows = [
            LinksAlike(int(n) * copies, *(ends(row[[at]]) for at in range(4)))
            for n, row in zip(count, distinct, strict=True)
        ]
        if len(rows) > MAX_KINDS:
            rows = [LinksAlike(len(figures) * copies, *(ends(column) for column in figures.T))]
        paths.append(rows[::-1])
    return paths


def _distinct(rows: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """The rows that differ, in order, and how many there are of each.

    Column by column: `numpy.unique` of whole rows takes seconds for a million of them.

    >>> _distinct(np.array([[1.0, 3.0], [1.0, 2.0], [1.0, 3.0]]))[1].tolist()
    [1, 2]
    """
    code = np.zeros(len(rows), np.int64)
    for column in rows.T:
        values, place = np.unique(column, return_inverse=True)
        _, code = np.unique(code * len(values) + np.ravel(place), return_inverse=True)
    _, first, count = np.unique(code, return_index=True, return_counts=True)
    return rows[first], count


def document(network: DescribedTopology) -> dict[str, object]:
    """The document that `show --json` prints."""
    topology = network.topology
    return {
        "name": topology.name,
        "description": network.description,
        "device": topology.device,
        "devices": topology.num_devices,
        "switches": topology.num_switches,
        "links": len(topology.links),
        "diameter_links": diameter(topology),
        "dimensions": [
            {
                "kind": dimension.kind,
                "size": dimension.size,
                "bandwidth_bytes_per_s": _one_or_both(dimension.bandwidth),
                "latency_s": _one_or_both(dimension.latency),
                "overhead_s": _one_or_both(dimension.overhead),
                "message_rate_per_s": rate_of_gap(dimension.gap[1]),
                "medium": dimension.medium,
                "links": dimension.links,
            }
            for dimension in dimensions(topology)
        ],
        "sources": [
            {"figure": source.figure, "source": one_line(source.source)}
            for file in network.files
            for source in file.sources
        ],
    }


def listed() -> list[dict[str, object]]:
    """The document that `list --json` prints."""
    return [
        {
            "name": machine.name,
            "description": one_line(machine.description),
            "device": machine.device,
            "devices": get_topology(machine.name).num_devices,
            "topology": _text(machine),
        }
        for machine in list_topologies()
    ]


def diameter(topology: Topology) -> int | None:
    """The number of links between the two devices that are farthest apart; None if finding out is expensive."""
    parts = [_block_diameter(block) for block in topology.blocks]
    return None if None in parts else sum(part for part in parts if part is not None)


def _block_diameter(block: Block) -> int | None:
    known = {
        "ring": block.size // 2,
        "line": block.size - 1,
        "fully_connected": 1,
        "switch": 1 + block.switches,
    }
    if block.kind in known or block.size == 1:
        return known[block.kind] if block.size > 1 else 0
    if block.kind == "fat_tree":  # the first port is as far from the last as any two are
        return int(distances_to(block.links, block.nodes, np.array([block.size - 1]))[0, 0])
    if block.nodes > MAX_SEARCHED:
        return None
    far = int(_distances(block).max())
    return None if far == UNREACHABLE else far


def _distances(block: Block) -> npt.NDArray[np.int32]:
    """How many links each device of a graph, a row, is from each other, a column."""
    return distances_to(block.links, block.nodes, np.arange(block.size))[: block.size]


def cut_off(topology: Topology) -> tuple[int, int] | None:
    """Two devices with no way from the first to the second; None if there are none, or finding out is expensive.

    >>> from choreo.topology import Links, compose, graph
    >>> one_way = graph(2, Links.uniform([0], [1], 1e9, 0.0))
    >>> cut_off(compose("one way", [one_way])), cut_off(get_topology("ring(4)"))
    ((1, 0), None)
    """
    stride = 1
    for block in topology.blocks:
        if block.kind == "graph" and block.nodes <= MAX_SEARCHED:
            pairs = np.argwhere(_distances(block) == UNREACHABLE)
            if len(pairs):
                return int(pairs[0, 0]) * stride, int(pairs[0, 1]) * stride
        stride *= block.size
    return None


def _text(machine: TopologyFile) -> str:
    """A machine in the language of blocks; its own graph is written "graph"."""
    if machine.topology is not None:
        return one_line(machine.topology)
    return "graph" if machine.across is None else f"graph x {one_line(machine.across)}"


def _one_or_both(figures: Ends) -> float | list[float]:
    return figures[0] if figures[0] == figures[1] else list(figures)


def rate_of_gap(gap_s: float) -> float | None:
    """Messages per second; None if there is no limit."""
    return 1 / gap_s if gap_s else None


def ends(column: Floats) -> Ends:
    """The lowest and the highest value of a column; zeros if it is empty."""
    return (float(column.min()), float(column.max())) if len(column) else (0.0, 0.0)


def one_line(text: str) -> str:
    """A text from a user's file without line breaks and without terminal control characters."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(text.split()))
