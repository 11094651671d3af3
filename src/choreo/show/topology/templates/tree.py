"""Fat trees: the ports in a row, their leaf switches above them, and the spines above those."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from choreo.show.topology.scene import Dots, Point, Room, SwitchShape, Template, centred, pairs_of, straight, wires_of
from choreo.show.topology.stages import level_sizes
from choreo.topology import Block

__all__ = ["tree_template"]

# At most this many switches are drawn side by side above a group; of more, the first two and the last.
PLANES = 4
WIDTH, HEIGHT, BESIDE = 64.0, 20.0, 22.0
# Between groups, more at every level.
APART = 16.0


def tree_template(dim: int, block: Block, shown: tuple[int, ...], room: Room) -> Template:
    """Levels from the bottom up; groups of ports stand apart from each other."""
    sizes = level_sizes(block)
    groups = [block.size // math.prod(sizes[: level + 1]) for level in range(len(sizes))]
    spines = (block.switches - groups[0]) // max(1, sum(groups[1:]))
    tree = _Tree(sizes, tuple(spines if level else 1 for level in range(len(sizes))), shown, room, Template())
    tree.place(len(sizes) - 1, 0, 0.0)
    template, y, first = tree.template, -room.height / 2 - (52.0 if room.single else 58.0), block.size
    # Long lines need height, or they run into each other.
    rise = max(84.0, min(150.0, (template.ports[shown[-1]][0] - template.ports[shown[0]][0]) * 0.09))
    for level, planes in enumerate(tree.planes):
        kept = tree.kept(level)
        for group in tree.groups(level):
            xs = [template.ports[port][0] for port in tree.ports(level, group)]
            spread = max(WIDTH + BESIDE, min(150.0, (xs[-1] - xs[0]) / len(kept) * 0.8))
            for at, plane in enumerate(kept):
                x = (xs[0] + xs[-1]) / 2 + (at - (len(kept) - 1) / 2) * spread
                template.switches.append(SwitchShape(dim, first + group * planes + plane, (x, y), WIDTH, HEIGHT))
            if len(kept) < planes:
                x = (xs[0] + xs[-1]) / 2 + (len(kept) / 2 - 1) * spread
                template.dots.append(Dots((x, y), (6, 0), f"{planes} in all", above=True))
        first += groups[level] * planes
        y -= rise
    where: dict[int, Point] = {**template.ports, **{shape.node: shape.at for shape in template.switches}}
    for pair in pairs_of(block, where):
        template.wires += wires_of(dim, pair, straight(where[pair.a], where[pair.b]))
    return centred(template, room)


@dataclass(frozen=True, slots=True)
class _Tree:
    """The shown part of a tree, and where its ports are put: every group is as wide as its ports or its switches."""

    sizes: tuple[int, ...]
    planes: tuple[int, ...]
    shown: tuple[int, ...]
    room: Room
    template: Template

    def kept(self, level: int) -> list[int]:
        """Which of a group's switches are drawn."""
        planes = self.planes[level]
        return [0, 1, planes - 1] if planes > PLANES else list(range(planes))

    def groups(self, level: int) -> list[int]:
        """The groups of a level that have a port that is shown; below the leaves, the ports."""
        ports = math.prod(self.sizes[: level + 1])
        return sorted({port // ports for port in self.shown})

    def ports(self, level: int, group: int) -> list[int]:
        """The ports of a group that are shown."""
        ports = math.prod(self.sizes[: level + 1])
        return [port for port in self.shown if port // ports == group]

    def inside(self, level: int, group: int) -> list[int]:
        """The groups of the level below that make up a group and are shown."""
        return [part for part in self.groups(level - 1) if part // self.sizes[level] == group]

    def air(self, level: int, before: int, after: int) -> float:
        """The room between two neighbours in a group of a level, more where something is left out between them."""
        air = self.room.gap * (0.36 if self.room.single else 0.7) + APART * level
        return air if after == before + 1 else air + max(36.0, self.room.width * self.room.ellipsis)

    def width(self, level: int, group: int) -> float:
        """How wide a group is."""
        if level < 0:
            return self.room.width
        return max(self.ports_width(level, group), len(self.kept(level)) * (WIDTH + BESIDE) - BESIDE)

    def ports_width(self, level: int, group: int) -> float:
        """How wide the parts of a group are together."""
        parts = self.inside(level, group)
        between = sum(self.air(level, *pair) for pair in pairwise(parts))
        return between + sum(self.width(level - 1, part) for part in parts)

    def place(self, level: int, group: int, left: float) -> None:
        """Put the ports of a group at their places, its left edge given."""
        if level < 0:
            self.template.ports[group] = (left + self.room.width / 2, 0.0)
            return
        x = left + (self.width(level, group) - self.ports_width(level, group)) / 2
        before: int | None = None
        for part in self.inside(level, group):
            if before is not None:
                air = self.air(level, before, part)
                if part != before + 1:
                    self.template.dots.append(Dots((x + air / 2, 0.0), (7, 0), f"{math.prod(self.sizes)} in all"))
                x += air
            self.place(level - 1, part, x)
            x += self.width(level - 1, part)
            before = part
