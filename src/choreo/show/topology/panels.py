"""The panels of a network's picture: one, or for a large network the whole and then smaller and smaller groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from choreo.show.topology.place import Placed, group_name, place
from choreo.show.topology.stages import Stage, positions_of, stages_of
from choreo.topology import Topology
from choreo.topology.graph import Bools, Floats
from choreo.units import counted

__all__ = ["Panel", "must_show", "panels_of", "slow_links"]

# What fits on one page: devices or closed groups, and pixels.
UNITS, WIDTH, HEIGHT = 144, 1240.0, 900.0
# Devices that a picture of a part shows beside the first and the last.
MUST = 4


@dataclass(frozen=True, slots=True)
class Panel:
    """Some stages drawn together, with what the panel shows in words."""

    stages: tuple[Stage, ...]
    placed: Placed
    words: str


def panels_of(topology: Topology, must: Sequence[int] = ()) -> list[Panel]:
    """The whole first, then what is in a group, and so on inwards; the devices `must` are not left out."""
    stages, panels = stages_of(topology), []
    if not stages:
        return [Panel((), place(topology, (), ((0,),) * len(topology.blocks), 0), "")]
    first = 0
    while first < len(stages):
        last: int = first + 1
        panel: Panel | None = None
        while last < len(stages) and (larger := _if_it_fits(topology, stages[first : last + 1], must)) is not None:
            last, panel = last + 1, larger
        panels.append(panel or _panel(topology, stages[first:last], must))
        first = last
    return panels[::-1]


def _panel(topology: Topology, stages: Sequence[Stage], must: Sequence[int]) -> Panel:
    """Some stages drawn together; if they are not the whole, of the group that has what must be shown."""
    group = math.prod(topology.blocks[dim].size for dim in stages[-1].dims) * stages[-1].inner
    number = must[0] // group if must else 0
    words = f"inside a group of {counted(group, 'device')}, here {group_name(topology, number, group)}"
    placed = place(topology, stages, positions_of(topology, stages, must), number)
    return Panel(tuple(stages), placed, "the whole" if group == topology.num_devices else words)


def _if_it_fits(topology: Topology, stages: Sequence[Stage], must: Sequence[int]) -> Panel | None:
    if any(stage.kind == "space" for stage in stages[1:]):
        return None  # three dimensions leave no room for more than a closed group
    dims = [dim for stage in stages for dim in stage.dims]
    positions = positions_of(topology, stages)
    if math.prod(sum(position < topology.blocks[dim].size for position in positions[dim]) for dim in dims) > UNITS:
        return None
    panel = _panel(topology, stages, must)
    return panel if panel.placed.width <= WIDTH and panel.placed.height <= HEIGHT else None


def slow_links(topology: Topology) -> Bools:
    """Which links have less bandwidth than their block gives them."""
    nominal = [
        np.tile(block.links.bandwidth_bytes_per_s, topology.num_devices // block.size) for block in topology.blocks
    ]
    bandwidth = topology.links.bandwidth_bytes_per_s
    slow: Bools = (bandwidth < np.concatenate(nominal) * (1 - 1e-9)) | (bandwidth == 0)
    return slow


def must_show(topology: Topology, marked: Bools, load: Floats | None) -> list[int]:
    """Devices that a picture of a part must show: at the busiest link, at `marked` links, and slow ones."""
    links = topology.links
    picked = [] if load is None or not len(load) or not load.max() else [int(load.argmax())]
    picked += np.flatnonzero(marked)[:MUST].tolist()
    ends = [int(end) for link in picked for end in (links.src[link], links.dst[link])]
    ends += np.flatnonzero(topology.slowdown > 1)[:MUST].tolist()
    return list(dict.fromkeys(end for end in ends if end < topology.num_devices))[:MUST]
