"""Which dimensions of a network are drawn together, and how much of each is shown.

A stage is one arrangement on the page: two or three rings or lines in a row make a grid, everything else stands for
itself. What is too large is shown in part: the first few positions along a dimension and the last, with an ellipsis
between, so that a picture of a million devices is as easy to read as one of eight.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from choreo.topology import Block, Topology

__all__ = ["Positions", "Stage", "level_sizes", "positions_of", "stages_of"]

# Which positions are drawn along each dimension of the network.
Positions = tuple[tuple[int, ...], ...]


class _Limit(NamedTuple):
    """How many positions are shown, and how many are kept where there are more."""

    most: int
    kept: int


# For each kind of stage: of devices, of groups drawn closed, and of groups drawn with what is in them. A graph counts
# all its nodes, a tree all its ports.
LIMITS = {
    "ring": (_Limit(16, 8), _Limit(16, 8), _Limit(8, 5)),
    "fully_connected": (_Limit(16, 6), _Limit(12, 6), _Limit(8, 5)),
    "switch": (_Limit(16, 8), _Limit(16, 8), _Limit(8, 4)),
    "row": (_Limit(12, 6), _Limit(8, 6), _Limit(4, 4)),
    "grid": (_Limit(10, 4), _Limit(8, 4), _Limit(4, 4)),
    "space": (_Limit(5, 4), _Limit(5, 4), _Limit(5, 4)),
    "fat_tree": (_Limit(32, 12), _Limit(12, 8), _Limit(6, 6)),
    "graph": (_Limit(96, 48), _Limit(48, 32), _Limit(24, 16)),
}


@dataclass(frozen=True, slots=True)
class Stage:
    """Blocks that are drawn as one arrangement of tiles, each of which holds `inner` devices."""

    kind: str
    dims: tuple[int, ...]
    inner: int


def stages_of(topology: Topology) -> list[Stage]:
    """The stages, innermost first; dimensions of one device are not drawn."""
    stages: list[Stage] = []
    waiting: list[int] = []
    inner = 1

    def close() -> None:
        nonlocal inner
        while waiting:
            taken = waiting[: _together(len(waiting))]
            del waiting[: len(taken)]
            kind = ("row", "grid", "space")[len(taken) - 1]
            if kind == "row" and topology.blocks[taken[0]].kind == "ring":
                kind = "ring"
            stages.append(Stage(kind, tuple(taken), inner))
            inner *= math.prod(topology.blocks[dim].size for dim in taken)

    for dim, block in enumerate(topology.blocks):
        if block.nodes == 1:
            continue
        if block.kind in ("ring", "line"):
            waiting.append(dim)
            continue
        close()
        stages.append(Stage(block.kind if block.kind in LIMITS else "graph", (dim,), inner))
        inner *= block.size
    close()
    return stages


def _together(waiting: int) -> int:
    """How many of the rings and lines in a row the next arrangement takes."""
    return 3 if waiting in (3, 5, 6) else min(2, waiting)


def positions_of(topology: Topology, stages: Iterable[Stage], must: Iterable[int] = ()) -> Positions:
    """What is drawn of some stages, the first of them innermost; `must` are devices that are not left out."""
    wanted = list(must)
    positions: list[tuple[int, ...]] = [(0,)] * len(topology.blocks)
    for number, stage in enumerate(stages):
        for dim in stage.dims:
            block, stride = topology.blocks[dim], math.prod(topology.sizes[:dim])
            limit = LIMITS[stage.kind][2 if number else 0 if stage.inner == 1 else 1]
            largest = max(topology.blocks[other].size for other in stage.dims)
            count = block.nodes if stage.kind == "graph" else largest
            extra = sorted({device // stride % block.size for device in wanted})
            positions[dim] = _positions(block, stage.kind, limit.most if count <= limit.most else limit.kept, extra)
    return tuple(positions)


def _positions(block: Block, kind: str, keep: int, extra: list[int]) -> tuple[int, ...]:
    if kind == "graph":
        return _nearest(block, keep)
    if kind == "fat_tree":
        return _of_tree(block, keep, extra)
    return _first_and_last(block.size, keep, extra)


def _first_and_last(size: int, keep: int, extra: Iterable[int]) -> tuple[int, ...]:
    if size <= keep:
        return tuple(range(size))
    return tuple(sorted({*range(keep - 1), size - 1, *extra}))


def _of_tree(block: Block, keep: int, extra: list[int]) -> tuple[int, ...]:
    """The first and last of each level's groups, as many as fit."""
    sizes = level_sizes(block)
    kept = list(sizes)
    while math.prod(kept) > keep and max(kept) > 2:
        widest = kept.index(max(kept))
        kept[widest] = min(kept[widest] - 1, max(2, keep // 4))
    shown, stride = np.zeros(1, np.int64), 1
    for level, (size, count) in enumerate(zip(sizes, kept, strict=True)):
        below = math.prod(sizes[:level])
        chosen = _first_and_last(size, count, {port // below % size for port in extra})
        shown = (shown + np.array(chosen)[:, None] * stride).reshape(-1)
        stride *= size
    return tuple(sorted(shown.tolist()))


def level_sizes(block: Block) -> tuple[int, ...]:
    """The sizes of a fat tree's levels, read from its links: ports a leaf, leaves a group, and so on."""
    links, level = block.links, np.full(block.nodes, -1)
    level[: block.size] = 0
    sizes: list[int] = []
    below, planes = 1, 1
    while True:
        here = len(sizes)
        up = (level[links.src] == here) & (level[links.dst] == -1)
        if not up.any():
            break
        switches, reached = np.unique(links.dst[up], return_counts=True)
        level[switches] = here + 1
        sizes.append(int(reached[0]) // planes)
        below *= sizes[-1]
        planes = len(switches) * below // block.size
    return tuple(sizes) if math.prod(sizes) == block.size else (block.size,)


def _nearest(block: Block, keep: int) -> tuple[int, ...]:
    """The nodes of a graph that are nearest to its first device, in order of number."""
    if block.nodes <= keep:
        return tuple(range(block.nodes))
    reached = np.zeros(block.nodes, np.bool_)
    order = [0]
    reached[0] = True
    while len(order) < keep:
        edge = reached[block.links.src] & ~reached[block.links.dst]
        fresh = np.unique(block.links.dst[edge])
        if not len(fresh):
            fresh = np.flatnonzero(~reached)[:1]
        fresh = fresh[: keep - len(order)]
        reached[fresh] = True
        order += fresh.tolist()
    return tuple(sorted(order))
