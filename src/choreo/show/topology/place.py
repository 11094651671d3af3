"""The placement of a network's stages: every drawn tile, switch and link, at its position on the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from choreo.show.schedule.words import printable
from choreo.show.topology.scene import Curve, Dots, Point, Room, SwitchShape, Template, moved
from choreo.show.topology.stages import Positions, Stage, stages_of
from choreo.show.topology.templates.layout import template_of
from choreo.topology import Topology
from choreo.topology.graph import Ints

__all__ = ["Group", "Placed", "PlacedDevice", "PlacedSwitch", "PlacedWire", "group_name", "place", "short_name"]

# Around what a group holds, and for its name above that.
PADDING, HEADING = 14.0, 13.0
LONGEST_NAME = 18
CLOSED_HEIGHT = 34.0


@dataclass(frozen=True, slots=True)
class PlacedWire:
    """A wire with the numbers of the links that it stands for, in the direction of its curves and against it."""

    level: int
    dim: int
    forward: Ints
    backward: Ints
    curves: tuple[Curve, ...]
    strand: float
    faint: bool


@dataclass(frozen=True, slots=True)
class PlacedDevice:
    """A device and its place."""

    number: int
    at: Point


@dataclass(frozen=True, slots=True)
class Group:
    """The box around a group of devices; a closed one shows only how many there are."""

    level: int
    number: int
    at: Point
    width: float
    height: float
    devices: int
    name: str
    closed: bool


@dataclass(frozen=True, slots=True)
class PlacedSwitch:
    """A switch, or as many as there are devices in a group, and the links inside it."""

    shape: SwitchShape
    at: Point
    node: int
    copies: int
    inside: Ints


@dataclass(slots=True)
class Placed:
    """All that is drawn of some stages, around their middle."""

    width: float
    height: float
    device: Room
    font: float
    wires: list[PlacedWire] = field(default_factory=list)
    dotted: list[tuple[int, int, Curve]] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    devices: list[PlacedDevice] = field(default_factory=list)
    switches: list[PlacedSwitch] = field(default_factory=list)
    dots: list[tuple[int, Dots]] = field(default_factory=list)
    planes: list[tuple[Point, ...]] = field(default_factory=list)


def place(topology: Topology, stages: Sequence[Stage], positions: Positions, outer: int) -> Placed:
    """Lay out every stage from the inside out, then place them from the outside in.

    `outer` is the position along everything further out than the last stage; what is further in than the first stage
    is drawn closed.
    """
    room, font = _unit(topology, stages, positions)
    unit, templates = room, [Template(room.width, room.height)]
    for level, stage in enumerate(stages):
        template = template_of(topology, stage, positions, room)
        templates.append(template)
        heading = HEADING if level == len(stages) - 2 else 0.0
        room = Room(template.width + 2 * PADDING, template.height + 2 * PADDING + heading, single=False, top=False)
    placed = Placed(templates[-1].width, templates[-1].height, unit, font)
    _Placer(topology, stages, templates, placed).place(len(stages), outer, (0.0, 0.0))
    return placed


def short_name(topology: Topology, node: int) -> str:
    """A node's name, short enough for its place."""
    name = printable(topology.node_name(node))
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def group_name(topology: Topology, number: int, devices: int) -> str:
    """What a group is called: its number where all groups are equal, its devices where groups are nested."""
    if len(stages_of(topology)) == 2:
        return f"group {number}"
    return f"{number * devices}–{(number + 1) * devices - 1}"


def _unit(topology: Topology, stages: Sequence[Stage], positions: Positions) -> tuple[Room, float]:
    """The size and font of what the first stage joins: devices, round or as long as a name, or closed groups."""
    inner, alone = stages[0].inner if stages else 1, len(stages) <= 1
    if inner > 1:
        last = group_name(topology, topology.num_devices // inner - 1, inner)
        wide = max(len(last) * 6.0, len(f"{inner} devices") * 5.2) + 16
        return Room(wide, CLOSED_HEIGHT, single=True, top=alone), 9.5
    numbers, stride = np.zeros(1, np.int64), 1
    for block, shown in zip(topology.blocks, positions, strict=True):
        chosen = np.array([position for position in shown if position < block.size], np.int64)
        numbers = (numbers + chosen[:, None] * stride).reshape(-1)
        stride *= block.size
    longest = max(len(short_name(topology, number)) for number in numbers.tolist())
    small = (len(numbers) > 24 and not alone) or (bool(stages) and stages[0].kind == "space")
    tall, font = (19.0, 9.5) if small else (24.0, 11.5)
    wide = tall if longest <= (2 if small else 3) else longest * font * 0.58 + 9
    return Room(wide, tall, single=True, top=alone), font


@dataclass(frozen=True, slots=True)
class _Placer:
    """Walks from the outermost stage inwards and notes what stands where."""

    topology: Topology
    stages: Sequence[Stage]
    templates: list[Template]
    placed: Placed

    def place(self, level: int, outer: int, middle: Point) -> None:
        """What lies within a tile of a level: stages are levels from 1 on; `outer` numbers the tile."""
        if level == 0:
            self.placed.devices.append(PlacedDevice(outer, middle))
            return
        stage, template, (x, y) = self.stages[level - 1], self.templates[level], middle
        for wire in template.wires:
            forward, backward = (
                self.links(stage, wire.block, links, outer, low=wire.low, high=wire.high)
                for links in (wire.forward, wire.backward)
            )
            curves = tuple(moved(curve, x, y) for curve in wire.curves)
            self.placed.wires.append(PlacedWire(level, wire.block, forward, backward, curves, wire.strand, wire.faint))
        self.placed.dotted += [(level, dim, moved(curve, x, y)) for dim, curve in template.dotted]
        self.placed.planes += [tuple((px + x, py + y) for px, py in plane) for plane in template.planes]
        for shape in template.switches:
            node = self.first_switch(shape.block, outer * stage.inner) + shape.node
            inside = self.links(stage, shape.block, shape.also, outer)
            at = (shape.at[0] + x, shape.at[1] + y)
            self.placed.switches.append(PlacedSwitch(shape, at, node, stage.inner, inside))
        self.leave_out(level, template, middle)
        size = math.prod(self.topology.blocks[dim].size for dim in stage.dims)
        for port, (px, py) in template.ports.items():
            self.tile(level - 1, port + size * outer, (x + px, y + py))

    def leave_out(self, level: int, template: Template, middle: Point) -> None:
        """Ellipses; each stage says once how many there are in all."""
        shown = {dots.words for at, dots in self.placed.dots if at == level}
        for dots in template.dots:
            at = (dots.at[0] + middle[0], dots.at[1] + middle[1])
            words = "" if dots.words in shown else dots.words
            self.placed.dots.append((level, replace(dots, at=at, words=words)))
            shown.add(dots.words)

    def tile(self, level: int, number: int, middle: Point) -> None:
        """A group in its box, open or closed, or a device."""
        devices, closed = self.stages[level].inner, level == 0
        if devices > 1:
            name = group_name(self.topology, number, devices) if closed or level == len(self.stages) - 1 else ""
            heading = HEADING if name and not closed else 0.0
            around = 0.0 if closed else 2 * PADDING
            template = self.templates[level]
            width, height = template.width + around, template.height + around + heading
            self.placed.groups.append(Group(level + 1, number, middle, width, height, devices, name, closed))
            middle = (middle[0], middle[1] + heading / 2)
        if not (closed and devices > 1):
            self.place(level, number, middle)

    def links(self, stage: Stage, dim: int, local: tuple[int, ...], outer: int, *, low: int = 0, high: int = 0) -> Ints:
        """The numbers of a block's links in every copy that a wire stands for: one for each device of a tile."""
        blocks = self.topology.blocks
        axis = stage.dims.index(dim)
        before = math.prod(blocks[other].size for other in stage.dims[:axis])
        after = math.prod(blocks[other].size for other in stage.dims[axis + 1 :])
        lines = ((high + after * outer) * before + low) * stage.inner + np.arange(stage.inner)
        devices = self.topology.num_devices
        first = sum(devices // block.size * len(block.links) for block in blocks[:dim])
        found: Ints = (first + lines * len(blocks[dim].links) + np.array(local, np.int64)[:, None]).reshape(-1)
        return found

    def first_switch(self, dim: int, line: int) -> int:
        """What to add to the number of a switch in its block, for one of the block's copies."""
        blocks, devices = self.topology.blocks, self.topology.num_devices
        before = sum(devices // block.size * block.switches for block in blocks[:dim])
        return devices + before + line * blocks[dim].switches - blocks[dim].size
