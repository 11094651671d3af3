"""Where the tiles of a stage stand, and the ways its links take: circles, switches, grids.

Trees, three-dimensional grids and graphs have files of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from choreo.show.topology.scene import (
    Curve,
    Dots,
    Point,
    Room,
    SwitchShape,
    Template,
    Wire,
    arc,
    arch,
    centred,
    pairs_of,
    places_of,
    slots_of,
    straight,
    wires_of,
)
from choreo.show.topology.stages import Positions, Stage
from choreo.show.topology.templates.graph import graph_template
from choreo.show.topology.templates.space import space_template
from choreo.show.topology.templates.tree import tree_template
from choreo.topology import Block, Topology

__all__ = ["template_of"]

SWITCH_HEIGHT = 22.0
# A row of tiles under a switch gets no wider than this; more stand above it too.
WIDEST = 1240.0


def template_of(topology: Topology, stage: Stage, positions: Positions, room: Room) -> Template:
    """A stage laid out for tiles of a size."""
    blocks = [(dim, topology.blocks[dim]) for dim in stage.dims]
    shown = [positions[dim] for dim in stage.dims]
    dim, block = blocks[0]
    match stage.kind:
        case "ring" | "fully_connected":
            return _circle(dim, block, shown[0], room)
        case "switch":
            return _switch(dim, block, shown[0], room)
        case "row" | "grid":
            return _grid(blocks, shown, room)
        case "space":
            return space_template(blocks, shown, room)
        case "fat_tree":
            return tree_template(dim, block, shown[0], room)
        case _:
            return graph_template(dim, block, shown[0], room)


def _circle(dim: int, block: Block, shown: tuple[int, ...], room: Room) -> Template:
    """Tiles around a circle, the first at the top and on clockwise; four stand in a square."""
    slots = slots_of(shown)
    if len(slots) <= 2:
        return _grid([(dim, block)], [shown], room)
    turn = 2 * math.pi / len(slots)
    angles = [turn * at - math.pi / 2 - (turn / 2 if len(slots) == 4 else 0) for at in range(len(slots))]
    rx, ry = _radii(angles, room, chords=block.kind == "fully_connected")
    where = {slot: angle for slot, angle in zip(slots, angles, strict=True) if slot is not None}
    template = Template(ports={port: (rx * math.cos(angle), ry * math.sin(angle)) for port, angle in where.items()})
    for pair in pairs_of(block, shown):
        way = straight(template.ports[pair.a], template.ports[pair.b])
        if block.kind == "ring" and pair.b == pair.a + 1:
            way = arc(where[pair.a], where[pair.a] + turn, rx, ry)
        elif block.kind == "ring":
            way = arc(where[pair.a], where[pair.a] - turn, rx, ry)
        template.wires += wires_of(dim, pair, way)
    for slot, angle in zip(slots, angles, strict=True):
        if slot is None:
            x, y = rx * math.cos(angle), ry * math.sin(angle)
            step = np.array([-rx * math.sin(angle), ry * math.cos(angle)])
            step *= 8 / np.linalg.norm(step)
            template.dots.append(Dots((x, y), (float(step[0]), float(step[1])), f"{block.size} in all"))
            ends = ((angle - turn, angle - turn * 0.3), (angle + turn * 0.3, angle + turn))
            template.dotted += [(dim, arc(*end, rx, ry)) for end in ends if block.kind == "ring"]
    return centred(template, room)


def _radii(angles: Sequence[float], room: Room, *, chords: bool) -> Point:
    """Half axes of an ellipse on which no two tiles meet."""
    count = len(angles)
    if room.single:
        # Devices are small and alike: a true circle, with enough room inside for chords.
        apart = room.gap + max(room.width * 0.8, room.height)
        radius = apart / (2 * math.sin(math.pi / count)) * (1.15 if chords else 1.0)
        least = (150.0 if chords else 110.0) if room.top else (48.0 if chords else 36.0)
        return max(radius, least), max(radius, least)
    unit = np.array([(math.cos(angle), math.sin(angle)) for angle in angles])
    apart_by = np.abs(unit[:, None] - unit[None])[np.triu_indices(count, 1)]
    scale = float((1 / np.maximum(apart_by, 1e-9).max(axis=1)).max())
    gap = room.gap * (1.3 if chords else 1.0)
    return scale * (room.width + gap), scale * (room.height + gap)


def _switch(dim: int, block: Block, shown: tuple[int, ...], room: Room) -> Template:
    """The switch as a bar: tiles hang below it, or, if they are many, stand above and below."""
    slots = slots_of(shown)
    pitch, drop = room.width + room.gap, (46.0 if room.top else 26.0) if room.single else 40.0
    one_row = (
        len(slots) <= (12 if room.top else 4 if room.single else 5)
        and places_of(slots, room.ellipsis)[-1] * 2 * pitch + room.width <= WIDEST
    )
    half = len(slots) if one_row else math.ceil(len(slots) / 2)
    half -= slots[half - 1] is None  # an ellipsis begins a row rather than ends one
    reach = room.height / 2 + drop + SWITCH_HEIGHT / 2
    template = Template()
    for row, y in ((slots[:half], reach if one_row else -reach), (slots[half:], reach)):
        for slot, place in zip(row, places_of(row, room.ellipsis), strict=True):
            if slot is None:
                template.dots.append(Dots((place * pitch, y), (8, 0), f"{block.size} in all"))
            else:
                template.ports[slot] = (place * pitch, y)
    inside = np.flatnonzero((block.links.src >= block.size) & (block.links.dst >= block.size))
    note = ""
    bandwidth = block.links.bandwidth_bytes_per_s
    if len(inside) and bandwidth[inside[0]]:
        note = f"oversubscribed {block.size * bandwidth[0] / bandwidth[inside[0]]:.3g} times"
    ends = [x for x, _ in template.ports.values()]
    wide = max(ends) - min(ends) + (room.width if room.single else min(room.width, 84.0))
    also = tuple(int(link) for link in inside)
    template.switches.append(
        SwitchShape(dim, block.size, ((min(ends) + max(ends)) / 2, 0.0), wide, SWITCH_HEIGHT, note, also)
    )
    pairs = pairs_of(block, (*shown, *range(block.size, block.nodes)))
    for port in shown:
        # The way up and the way down are one line, even where they end at the two halves of an oversubscribed switch.
        up, down = (
            tuple(link for pair in pairs if pair.a == port for link in (pair.backward if back else pair.forward))
            for back in (False, True)
        )
        x, y = template.ports[port]
        template.wires.append(Wire(dim, up, down, (straight((x, y), (x, 0.0)),)))
    return centred(template, room)


def _grid(blocks: list[tuple[int, Block]], shown: list[tuple[int, ...]], room: Room) -> Template:
    """Columns along the first dimension, rows along the second; a ring's ends are joined by an arch."""
    one_row = len(blocks) == 1
    gap = room.gap + (10 if room.single and not one_row else 0)
    axes: list[dict[int, float]] = []
    for positions, side in ((shown[0], room.width), ((0,) if one_row else shown[1], room.height)):
        slots = slots_of(positions)
        places = places_of(slots, room.ellipsis)
        axes.append({slot: place * (side + gap) for slot, place in zip(slots, places, strict=True) if slot is not None})
    columns, rows = axes
    template = Template(ports={x + blocks[0][1].size * y: (columns[x], rows[y]) for y in rows for x in columns})
    for axis, (dim, block) in enumerate(blocks):
        for pair in pairs_of(block, shown[axis]):
            for other, across in axes[1 - axis].items():
                ends = [_turned((axes[axis][end], across), axis) for end in (pair.a, pair.b)]
                way = straight(*ends) if pair.b == pair.a + 1 else _wrap(ends, axis, room, gap)
                low, high = (0, other) if axis == 0 else (other, 0)
                template.wires += wires_of(dim, pair, way, low=low, high=high)
        for before, after in pairwise(shown[axis]):
            if after == before + 1:
                continue
            for across in axes[1 - axis].values():
                ends = [_turned((axes[axis][end], across), axis) for end in (before, after)]
                template.dotted.append((dim, straight(*ends)))
            lines = list(axes[1 - axis].values())
            half = (axes[axis][before] + axes[axis][after]) / 2
            template.dots.append(Dots(_turned((half, lines[0]), axis), _turned((8.0, 0.0), axis)))
    if template.dots:
        first, sizes = template.dots[0], " x ".join(str(block.size) for _, block in blocks)
        template.dots[0] = Dots(first.at, first.step, f"{sizes} in all")
    return centred(template, room)


def _turned(along_across: Point, axis: int) -> Point:
    """What is along and across an axis, as x and y."""
    return along_across if axis == 0 else (along_across[1], along_across[0])


def _wrap(ends: list[Point], axis: int, room: Room, gap: float) -> Curve:
    """The way of a link from one end of a row to the other: over its devices, or from edge to edge of its groups."""
    side = room.height if axis == 0 else room.width
    if room.single:
        return arch(ends[0], ends[1], _turned((0.0, -side / 2 - gap * 0.36), axis))
    x, y = _turned((0.0, -side / 2 + 2), axis)
    first, last = ((at[0] + x, at[1] + y) for at in ends)
    return arch(first, last, _turned((0.0, -gap * 0.55), axis))
