"""The kinds of links a network has: what the legend lists, each with its colour."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from choreo.show.drawing import ADD, COPY, WHOLE
from choreo.show.schedule.words import printable
from choreo.show.topology.stages import Stage
from choreo.topology import Block, Topology
from choreo.topology.graph import Floats
from choreo.units import format_bandwidth, format_time

__all__ = ["LinkKind", "bandwidth_words", "kinds_of", "latency_words", "width_of"]

# One colour for each dimension, innermost first; safe for colour-blind readers.
COLORS = (COPY, ADD, "#0a7d6b", "#7b4aa6", "#8a6a00", WHOLE)
# A graph's links have a kind for each pair of figures, unless there are more pairs than this.
SEPARATE = 6


Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class LinkKind:
    """Links of one dimension with the same figures, or with figures from the lowest to the highest."""

    dim: int
    bandwidth: Range
    latency: Range
    overhead: Range
    color: str
    words: str


def kinds_of(topology: Topology, stages: list[Stage]) -> list[LinkKind]:
    """Every kind of link, innermost dimension first and the fastest first."""
    kinds: list[LinkKind] = []
    for stage in stages:
        for dim in stage.dims:
            block, used = topology.blocks[dim], len({kind.color for kind in kinds})
            figures = _figures(block)
            # A graph names one medium, but one with switches and links of several kinds usually has several.
            medium = block.medium if len(figures) == 1 or not (block.kind == "graph" and block.switches) else ""
            for at, (bandwidth, latency, overhead) in enumerate(figures):
                color = COLORS[(used + (at if block.kind == "graph" else 0)) % len(COLORS)]
                bundle = f"{stage.inner} × " if stage.inner > 1 else ""
                parts = [f"{bundle}{bandwidth_words(*bandwidth)}", latency_words(*latency)]
                parts += [f"{latency_words(*overhead)} a message" if overhead[1] else "", printable(medium)]
                words = f"{_joins(block, stage, dim)}: {', '.join(word for word in parts if word)}"
                kinds.append(LinkKind(dim, bandwidth, latency, overhead, color, words))
    return kinds


def _figures(block: Block) -> list[tuple[Range, Range, Range]]:
    """The bandwidths, latencies and overheads of a block: one by one, or if there are many, as a range."""
    links = block.links
    if not len(links):
        return []
    # A link inside an oversubscribed switch is described at the switch.
    outside = slice(-1) if block.kind == "switch" and block.switches == 2 else slice(None)
    columns = links.bandwidth_bytes_per_s, links.latency_s, links.overhead_s
    figures = np.stack([column[outside] for column in columns], axis=1)
    alike = bool((figures == figures[0]).all())
    distinct = [figures[0]] if alike else np.unique(figures, axis=0)[::-1]
    if len(distinct) <= SEPARATE:
        return [_ranges(row, row) for row in distinct]
    return [_ranges(figures.min(axis=0), figures.max(axis=0))]


def _ranges(low: Floats, high: Floats) -> tuple[Range, Range, Range]:
    bandwidth, latency, overhead = zip(low.tolist(), high.tolist(), strict=True)
    return bandwidth, latency, overhead


def _joins(block: Block, stage: Stage, dim: int) -> str:
    """What a dimension joins, in words."""
    what = f" groups of {stage.inner}" if stage.inner > 1 else ""
    if block.kind == "graph":
        return f"links between{what}" if what else "links"
    name = {"fully_connected": "all to all", "fat_tree": "fat tree"}.get(block.kind, block.kind)
    sides = {"grid": ("across", "down"), "space": ("across", "away", "up")}.get(stage.kind, ("",))
    return f"{name} of {block.size}{what} {sides[stage.dims.index(dim)]}".rstrip()


def bandwidth_words(low: float, high: float) -> str:
    """A bandwidth, or from the lowest to the highest."""
    if low == high:
        return format_bandwidth(low) if low else "down"
    return f"{format_bandwidth(low) if low else '0'} to {format_bandwidth(high)}"


def latency_words(low: float, high: float) -> str:
    """A latency, or from the lowest to the highest; nothing where there is none."""
    if low == high:
        return format_time(low) if low else ""
    return f"{format_time(low) if low else '0'} to {format_time(high)}"


def width_of(bandwidth: float, least: float, most: float) -> float:
    """How thick a link is drawn: by the logarithm of its bandwidth, between the lowest and the highest."""
    if bandwidth <= 0:
        return 1.0
    if least == most:
        return 1.8 if bandwidth >= least else 1.2
    share = math.log(max(bandwidth, least) / least) / math.log(most / least)
    return 1.4 + share * min(3.0, 0.7 * math.log2(most / least))
