"""Three dimensions on paper: planes above each other, seen from the side.

The first dimension runs to the right, the second away from the reader, the third up. Links that wrap around leave the
picture as short tails at both ends: arches would cross everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from choreo.show.topology.scene import (
    Curve,
    Dots,
    Point,
    Room,
    Template,
    centred,
    pairs_of,
    places_of,
    slots_of,
    straight,
    wires_of,
)
from choreo.topology import Block

__all__ = ["space_template"]

# How far a tail goes along each axis, as a part of the way to the next device.
TAIL = (0.3, 0.7, 0.2)
# The room for what is left out, in steps along each axis.
ELLIPSIS = (0.7, 0.8, 0.5)


@dataclass(frozen=True, slots=True)
class _Space:
    """Where the positions that are shown are along each axis, and what a step along it is on paper."""

    axes: tuple[dict[int, float], ...]
    steps: tuple[Point, Point, Point]

    def at(self, x: float, y: float, z: float) -> Point:
        """A place on paper."""
        (ax, ay), (bx, by), (cx, cy) = self.steps
        return x * ax + y * bx + z * cx, x * ay + y * by + z * cy

    def lines(self, axis: int) -> Iterator[tuple[int, int]]:
        """The lines along an axis: positions on the two other axes."""
        first, second = (which for which in range(3) if which != axis)
        for high in self.axes[second]:
            for low in self.axes[first]:
                yield low, high

    def on(self, axis: int, along: float, across: tuple[int, int]) -> Point:
        """A place on a line along an axis."""
        first, second = (which for which in range(3) if which != axis)
        places = [self.axes[first][across[0]], self.axes[second][across[1]]]
        places.insert(axis, along)
        return self.at(*places)


def space_template(blocks: list[tuple[int, Block]], shown: list[tuple[int, ...]], room: Room) -> Template:
    """A grid in three dimensions of single devices, or of closed groups."""
    axes = []
    for positions, ellipsis in zip(shown, ELLIPSIS, strict=True):
        slots = slots_of(positions)
        axes.append({slot: at for slot, at in zip(slots, places_of(slots, ellipsis), strict=True) if slot is not None})
    deep = max(axes[1].values()) - min(axes[1].values()) + 1
    # Each vertical line passes between the devices in front and behind: the rows are shifted by equal parts.
    right, away = max(room.width + 38.0, min((room.width + 5) * deep, room.width + 90.0)), room.height + 12.0
    up = away * (deep + 0.7) + 14.0
    space = _Space(tuple(axes), ((right, 0.0), (right / deep, -away), (0.0, -up)))
    sizes = [block.size for _, block in blocks]
    template = Template()
    for z, height in axes[2].items():
        for x, y in space.lines(2):
            template.ports[x + sizes[0] * (y + sizes[1] * z)] = space.at(axes[0][x], axes[1][y], height)
        left, front = min(axes[0].values()) - 0.5, min(axes[1].values()) - 0.85
        corners = ((left, front), (-left, front), (-left, -front), (left, -front))
        template.planes.append(tuple(space.at(x, y, height) for x, y in corners))
    for axis, (dim, block) in enumerate(blocks):
        for pair in pairs_of(block, shown[axis]):
            for low, high in space.lines(axis):
                # Dimensions before the block's own count into low, those after it into high.
                before = (0, low, low + sizes[0] * high)[axis]
                after = (low + sizes[1] * high, high, 0)[axis]
                curves = _way(space, axis, (pair.a, pair.b), (low, high))
                template.wires += wires_of(dim, pair, *curves, low=before, high=after, faint=axis == 2)
        _leave_out(template, space, axis, dim)
    if template.dots:
        template.dots[0] = Dots(template.dots[0].at, template.dots[0].step, f"{' x '.join(map(str, sizes))} in all")
    return centred(template, room)


def _way(space: _Space, axis: int, ends: tuple[int, int], across: tuple[int, int]) -> tuple[Curve, ...]:
    """A line between neighbours, or the tails of a link that wraps around: out at one end and in at the other."""
    first, last = (space.axes[axis][end] for end in ends)
    if ends[1] == ends[0] + 1:
        return (straight(space.on(axis, first, across), space.on(axis, last, across)),)
    out = straight(space.on(axis, first, across), space.on(axis, first - TAIL[axis], across))
    back = straight(space.on(axis, last + TAIL[axis], across), space.on(axis, last, across))
    return out, back


def _leave_out(template: Template, space: _Space, axis: int, dim: int) -> None:
    """Dotted lines where a row goes on unseen."""
    shown = list(space.axes[axis])
    for before, after in pairwise(shown):
        if after == before + 1:
            continue
        first, last = space.axes[axis][before], space.axes[axis][after]
        for across in space.lines(axis):
            template.dotted.append((dim, straight(space.on(axis, first, across), space.on(axis, last, across))))
        if axis == 2:
            template.dots.append(Dots(space.at(0.0, 0.0, (first + last) / 2), (0, 8)))
