"""Links as strokes: coloured by dimension, or by load; thick by bandwidth; bundles as cables.

With loads every link shows both of its directions, each on its own right-hand side, as traffic keeps to the right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

import numpy as np

from choreo.show.drawing import INK, PAPER, WRONG, short
from choreo.show.topology.kinds import LinkKind, width_of
from choreo.show.topology.place import PlacedWire, short_name
from choreo.show.topology.scene import Curve, backwards, beside, middle, straight
from choreo.topology import Topology
from choreo.topology.graph import Bools, Floats, Ints
from choreo.units import format_bandwidth

__all__ = ["LOADS", "Painter", "load_color", "path_of", "stroke"]

# From nothing to all of a link: pale to dark, so that it reads in grey too.
LOADS = ("#cfd6dd", "#f6cf9f", "#f0a35c", "#dd7416", "#a63e00", "#5e1500")
DASH = "5 3.5"


@dataclass(frozen=True, slots=True)
class Painter:
    """What decides how links look."""

    topology: Topology
    kinds: list[LinkKind]
    slow: Bools
    load: Floats | None
    chosen: Bools
    crowded: bool

    def draw(self, wires: Iterable[PlacedWire]) -> str:
        """The strokes of some wires: alike ones in one path, and those with a tooltip on their own."""
        halos: list[str] = []
        alike: dict[tuple[str, float, bool, bool], list[str]] = defaultdict(list)
        alone: list[str] = []
        for wire in wires:
            both = np.concatenate((wire.forward, wire.backward))
            width = self.width(both)
            if self.chosen[both].any():
                halos.append(self.halo(wire, width))
            if self.load is not None or self.slow[both].any() or not (len(wire.forward) and len(wire.backward)):
                alone.append(self.labelled(wire, width))
                continue
            color, bundle = self.color(wire), max(len(wire.forward), len(wire.backward)) > 1
            ways = self.beside(wire, width, back=False, split=False)
            alike[color, width, bundle, wire.faint].append("".join(map(path_of, ways)))
        shapes = halos
        for (color, width, bundle, faint), paths in sorted(alike.items(), key=lambda item: not item[0][3]):
            drawn = stroke("".join(paths), color, width, bundle=bundle)
            shapes.append(f'<g opacity="0.45">{drawn}</g>' if faint else drawn)
        return "".join(shapes + alone)

    def color(self, wire: PlacedWire) -> str:
        """The colour of the wire's kind of links."""
        return self.kind(int((wire.forward if len(wire.forward) else wire.backward)[0]), wire.dim).color

    def kind(self, link: int, dim: int) -> LinkKind:
        """The kind of a link: by its block's figures, not by how slow it has become."""
        blocks, devices = self.topology.blocks, self.topology.num_devices
        first = sum(devices // block.size * len(block.links) for block in blocks[:dim])
        links = blocks[dim].links
        local = (link - first) % len(links)
        figures = links.bandwidth_bytes_per_s[local], links.latency_s[local], links.overhead_s[local]
        return next(
            kind
            for kind in self.kinds
            if kind.dim == dim
            and all(
                low <= figure <= high
                for (low, high), figure in zip((kind.bandwidth, kind.latency, kind.overhead), figures, strict=True)
            )
        )

    def width(self, links: Ints) -> float:
        """How thick a wire is: by the slowest of its links."""
        return self.thickness(float(self.topology.links.bandwidth_bytes_per_s[links].min()))

    def thickness(self, bandwidth: float) -> float:
        """How thick links of a bandwidth are."""
        figures = [figure for kind in self.kinds for figure in kind.bandwidth if figure > 0]
        wide = width_of(bandwidth, min(figures, default=1.0), max(figures, default=1.0))
        return round(max(1.0, wide * (0.8 if self.crowded else 1.0)), 1)

    def labelled(self, wire: PlacedWire, width: float) -> str:
        """A wire that is described; its directions are drawn one by one where they differ."""
        ways = [(links, back) for links, back in ((wire.forward, False), (wire.backward, True)) if len(links)]
        bundle = self.load is None and max(len(wire.forward), len(wire.backward)) > 1
        differ = len({bool(self.slow[links].any()) for links, _ in ways}) == 2
        one_way, split = len(ways) == 1, len(ways) == 2 and (self.load is not None or (differ and not bundle))
        if not one_way and not split:
            ways = [(np.concatenate((wire.forward, wire.backward)), False)]
        shapes = []
        for links, back in ways:
            slow = bool(self.slow[links].any())
            color = WRONG if slow else self.color(wire)
            if self.load is not None:
                color = load_color(float(self.load[links].max()))
            curves = self.beside(wire, width, back=back, split=split)
            body = stroke("".join(map(path_of, curves)), color, width, bundle=bundle, dashed=slow)
            if one_way:
                body += "".join(arrow_head(curve, color, width) for curve in curves)
            if (self.topology.links.bandwidth_bytes_per_s[links] == 0).any():
                body += cross(curves[0])
            shapes.append(f"<g><title>{escape(self.words(links))}</title>{body}</g>")
        return "".join(shapes)

    def halo(self, wire: PlacedWire, width: float) -> str:
        """A dark edge around a wire that is pointed out, and the way it goes."""
        shapes = []
        for links, back in ((wire.forward, False), (wire.backward, True)):
            if self.chosen[links].any():
                curves = self.beside(wire, width, back=back, split=self.load is not None)
                shapes.append(stroke("".join(map(path_of, curves)), INK, width + 4.4))
                shapes += [arrow_head(curve, INK, width + 4.4) for curve in curves[:1]]
        return "".join(shapes)

    def beside(self, wire: PlacedWire, width: float, *, back: bool, split: bool) -> list[Curve]:
        """The way of a wire or back, beside its other strands, and if it is `split` to the right of its other way."""
        curves = [backwards(curve) for curve in reversed(wire.curves)] if back else wire.curves
        aside = wire.strand * (width + 2.2) * (-1 if back else 1) + (width / 2 + 0.7 if split else 0.0)
        return [beside(curve, aside) for curve in curves]

    def words(self, links: Ints) -> str:
        """A link's tooltip."""
        table = self.topology.links
        ends = " → ".join(short_name(self.topology, int(end[links[0]])) for end in (table.src, table.dst))
        bandwidth = float(table.bandwidth_bytes_per_s[links].min())
        parts = [f"{ends}{f' and {len(links) - 1} more' if len(links) > 1 else ''}"]
        parts.append(format_bandwidth(bandwidth) if bandwidth else "down")
        if self.load is not None:
            parts.append(f"{self.load[links].max():.0%} busy")
        return ", ".join(parts)


def path_of(curve: Curve) -> str:
    """A curve as SVG writes it, with a straight one as a line."""
    a, b, c, d = curve
    bend = abs((b[0] - a[0]) * (d[1] - a[1]) - (b[1] - a[1]) * (d[0] - a[0]))
    bend += abs((c[0] - a[0]) * (d[1] - a[1]) - (c[1] - a[1]) * (d[0] - a[0]))
    start = f"M{short(a[0])} {short(a[1])}"
    if bend < 0.5:
        return f"{start}L{short(d[0])} {short(d[1])}"
    return f"{start}C{short(b[0])} {short(b[1])} {short(c[0])} {short(c[1])} {short(d[0])} {short(d[1])}"


def stroke(way: str, color: str, width: float, *, bundle: bool = False, dashed: bool = False) -> str:
    """A stroke along a path; a bundle is a cable of three strands."""

    def one(stroke_color: str, wide: float) -> str:
        dash = f' stroke-dasharray="{DASH}"' if dashed else ""
        return f'<path d="{way}" fill="none" stroke="{stroke_color}" stroke-width="{short(wide)}"{dash}/>'

    if not bundle:
        return one(color, width)
    outer = width + 4.4
    return one(color, outer) + one(PAPER, outer - 2.2) + one(color, max(1.0, outer - 4.6))


def arrow_head(curve: Curve, color: str, width: float) -> str:
    """A head half way along, which no node covers."""
    (x, y), (along_x, along_y) = middle(curve)
    long, half = 4.0 + width, 2.4 + width * 0.6
    tip_x, tip_y, back_x, back_y = (
        x + along_x * long,
        y + along_y * long,
        x - along_x * long / 2,
        y - along_y * long / 2,
    )
    return (
        f'<path d="M{short(tip_x)} {short(tip_y)}L{short(back_x - along_y * half)} {short(back_y + along_x * half)}'
        f'L{short(back_x + along_y * half)} {short(back_y - along_x * half)}z" fill="{color}"/>'
    )


def cross(curve: Curve) -> str:
    """The mark of a link that is down."""
    (x, y), _ = middle(curve)
    way = path_of(straight((x - 5, y - 5), (x + 5, y + 5))) + path_of(straight((x - 5, y + 5), (x + 5, y - 5)))
    return stroke(way, PAPER, 5) + stroke(way, WRONG, 2.2)


def load_color(load: float) -> str:
    """The colour of a link that is busy for a part of the time."""
    at = min(1.0, max(0.0, load)) * (len(LOADS) - 1)
    low = min(int(at), len(LOADS) - 2)
    mixed = [
        round(int(LOADS[low][i : i + 2], 16) * (1 - at + low) + int(LOADS[low + 1][i : i + 2], 16) * (at - low))
        for i in (1, 3, 5)
    ]
    return "#" + "".join(f"{part:02x}" for part in mixed)
