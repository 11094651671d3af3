"""The parts a picture of a network is made of, and the few curves its links follow.

A picture is laid out once for each stage, as a `Template`, and placed wherever the stage repeats. Everything is in
pixels around the template's own middle; a wire knows which links of its block it stands for, so that the same drawing
can be coloured by dimension or by load.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from choreo.topology import Block

__all__ = [
    "Curve",
    "Dots",
    "Pair",
    "Point",
    "Room",
    "SwitchShape",
    "Template",
    "Wire",
    "arc",
    "arch",
    "backwards",
    "beside",
    "bounds",
    "centred",
    "extent",
    "middle",
    "moved",
    "pairs_of",
    "places_of",
    "slots_of",
    "straight",
    "wires_of",
]

Point = tuple[float, float]
# A cubic Bézier curve: both ends, and the two points between that pull it.
Curve = tuple[Point, Point, Point, Point]
# Up to this many parallel links are drawn side by side; more become one bundle.
STRANDS = 4


@dataclass(frozen=True, slots=True)
class Room:
    """What a stage joins: tiles of this size, and how much air there is between them.

    `single` says that a tile is one device and not a group, `top` that the stage is a picture by itself.
    """

    width: float
    height: float
    single: bool
    top: bool

    @property
    def gap(self) -> float:
        """The air between two tiles."""
        return (40.0 if self.top else 22.0) if self.single else 40.0

    @property
    def ellipsis(self) -> float:
        """The room for what is left out, as a part of a tile's."""
        return 0.8 if self.single else max(0.3, 30.0 / self.width)


@dataclass(frozen=True, slots=True)
class Pair:
    """The links between two nodes of a block: those from a to b, and those back."""

    a: int
    b: int
    forward: tuple[int, ...]
    backward: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wire:
    """Links of a block between two of its nodes, drawn as one line, or as two tails where they wrap around.

    `low` and `high` are the positions along the stage's dimensions before and after the block's own; `faint` wires
    stand back behind the others.
    """

    block: int
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    curves: tuple[Curve, ...]
    low: int = 0
    high: int = 0
    strand: float = 0.0
    faint: bool = False


@dataclass(frozen=True, slots=True)
class SwitchShape:
    """A switch of a block, by its number there; `also` are the block's links inside it."""

    block: int
    node: int
    at: Point
    width: float
    height: float
    note: str = ""
    also: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Dots:
    """An ellipsis: what stands between is left out; `step` leads from one dot to the next.

    The words stand below it, or `above`.
    """

    at: Point
    step: Point
    words: str = ""
    above: bool = False


@dataclass(slots=True)
class Template:
    """One stage laid out: the middle of every tile that is shown, and what is drawn between them."""

    width: float = 0.0
    height: float = 0.0
    ports: dict[int, Point] = field(default_factory=dict)
    wires: list[Wire] = field(default_factory=list)
    dotted: list[tuple[int, Curve]] = field(default_factory=list)
    switches: list[SwitchShape] = field(default_factory=list)
    dots: list[Dots] = field(default_factory=list)
    planes: list[tuple[Point, ...]] = field(default_factory=list)


def pairs_of(block: Block, nodes: Iterable[int]) -> list[Pair]:
    """The pairs of these nodes that links join, in order of node."""
    mask = np.zeros(block.nodes, np.bool_)
    mask[list(nodes)] = True
    found: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for link in np.flatnonzero(mask[block.links.src] & mask[block.links.dst]).tolist():
        src, dst = int(block.links.src[link]), int(block.links.dst[link])
        found.setdefault((min(src, dst), max(src, dst)), ([], []))[src > dst].append(link)
    return [Pair(a, b, tuple(there), tuple(back)) for (a, b), (there, back) in sorted(found.items())]


def wires_of(number: int, pair: Pair, *curves: Curve, low: int = 0, high: int = 0, faint: bool = False) -> list[Wire]:
    """A pair's links as wires along the same curves: side by side if they are few."""
    strands = max(len(pair.forward), len(pair.backward))
    if strands > STRANDS:
        return [Wire(number, pair.forward, pair.backward, curves, low, high, faint=faint)]
    return [
        Wire(
            number,
            pair.forward[strand : strand + 1],
            pair.backward[strand : strand + 1],
            curves,
            low,
            high,
            strand - (strands - 1) / 2,
            faint,
        )
        for strand in range(strands)
    ]


def slots_of(shown: tuple[int, ...]) -> list[int | None]:
    """What is shown along a dimension, in order, with None where something is left out between."""
    slots: list[int | None] = []
    for at, index in enumerate(shown):
        if at and index != shown[at - 1] + 1:
            slots.append(None)
        slots.append(index)
    return slots


def places_of(slots: list[int | None], ellipsis: float) -> list[float]:
    """How far each slot is from the middle, in tiles; what is left out gets as much room as `ellipsis` says."""
    sizes = [ellipsis if slot is None else 1.0 for slot in slots]
    total, at, places = sum(sizes), 0.0, []
    for size in sizes:
        places.append(at + size / 2 - total / 2)
        at += size
    return places


def straight(a: Point, b: Point) -> Curve:
    """A straight line."""
    x, y = (b[0] - a[0]) / 3, (b[1] - a[1]) / 3
    return a, (a[0] + x, a[1] + y), (b[0] - x, b[1] - y), b


def arch(a: Point, b: Point, rise: Point) -> Curve:
    """A flat arch from a to b that leaves both along `rise`, and has risen by just that in its middle."""
    x, y = rise[0] * 4 / 3, rise[1] * 4 / 3
    return a, (a[0] + x, a[1] + y), (b[0] + x, b[1] + y), b


def arc(first: float, last: float, rx: float, ry: float) -> Curve:
    """Along an ellipse around the middle, from one angle to another; right for a third of a turn or less."""
    pull = 4 / 3 * math.tan((last - first) / 4)
    (c1, s1), (c2, s2) = (math.cos(first), math.sin(first)), (math.cos(last), math.sin(last))
    points = ((c1, s1), (c1 - pull * s1, s1 + pull * c1), (c2 + pull * s2, s2 - pull * c2), (c2, s2))
    return tuple((rx * x, ry * y) for x, y in points)  # type: ignore[return-value] # four in, four out


def moved(curve: Curve, x: float, y: float) -> Curve:
    """The curve somewhere else."""
    a, b, c, d = curve
    return (a[0] + x, a[1] + y), (b[0] + x, b[1] + y), (c[0] + x, c[1] + y), (d[0] + x, d[1] + y)


def backwards(curve: Curve) -> Curve:
    """The curve from its end to its start."""
    a, b, c, d = curve
    return d, c, b, a


def beside(curve: Curve, distance: float) -> Curve:
    """The curve moved to its right, as one travels along it."""
    a, b, c, d = curve
    (ax, ay), (dx, dy) = _normal(a, b), _normal(c, d)
    return (
        (a[0] + ax * distance, a[1] + ay * distance),
        (b[0] + ax * distance, b[1] + ay * distance),
        (c[0] + dx * distance, c[1] + dy * distance),
        (d[0] + dx * distance, d[1] + dy * distance),
    )


def middle(curve: Curve) -> tuple[Point, Point]:
    """The point half way along, and the direction there, of length one."""
    a, b, c, d = curve
    at = ((a[0] + 3 * b[0] + 3 * c[0] + d[0]) / 8, (a[1] + 3 * b[1] + 3 * c[1] + d[1]) / 8)
    along = (d[0] + c[0] - b[0] - a[0], d[1] + c[1] - b[1] - a[1])
    length = math.hypot(*along) or 1.0
    return at, (along[0] / length, along[1] / length)


def bounds(points: Iterable[Point]) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of some points."""
    xs, ys = zip(*points, strict=True)
    return min(xs), min(ys), max(xs), max(ys)


def extent(template: Template, room: Room) -> tuple[float, float, float, float]:
    """The edges of everything in a template: tiles, switches and the ways of its links."""
    points = [
        point for wire in template.wires for curve in wire.curves for point in (curve[0], middle(curve)[0], curve[3])
    ]
    points += [point for _, curve in template.dotted for point in (curve[0], middle(curve)[0], curve[3])]
    points += [corner for plane in template.planes for corner in plane]
    shapes = [(at, room.width, room.height) for at in template.ports.values()]
    shapes += [(dots.at, 24.0, 8.0) for dots in template.dots]
    shapes += [(shape.at, shape.width, shape.height) for shape in template.switches]
    for (x, y), width, height in shapes:
        points += [(x - width / 2, y - height / 2), (x + width / 2, y + height / 2)]
    return bounds(points)


def centred(template: Template, room: Room) -> Template:
    """The template moved so that its edges lie evenly around its middle, and as large as they are apart."""
    left, top, right, bottom = extent(template, room)
    x, y = -(left + right) / 2, -(top + bottom) / 2
    return Template(
        right - left,
        bottom - top,
        {port: (at[0] + x, at[1] + y) for port, at in template.ports.items()},
        [replace(wire, curves=tuple(moved(curve, x, y) for curve in wire.curves)) for wire in template.wires],
        [(dim, moved(curve, x, y)) for dim, curve in template.dotted],
        [replace(shape, at=(shape.at[0] + x, shape.at[1] + y)) for shape in template.switches],
        [replace(dots, at=(dots.at[0] + x, dots.at[1] + y)) for dots in template.dots],
        [tuple((px + x, py + y) for px, py in plane) for plane in template.planes],
    )


def _normal(a: Point, b: Point) -> Point:
    """To the right of the way from a to b, of length one; y runs down."""
    length = math.hypot(b[0] - a[0], b[1] - a[1]) or 1.0
    return -(b[1] - a[1]) / length, (b[0] - a[0]) / length
