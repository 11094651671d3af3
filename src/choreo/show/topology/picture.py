"""One still picture of a network: devices, switches and the links between them.

Each dimension has its own arrangement, the inner ones in boxes that the outer ones join. What is too large is shown in
part, so that a picture stays one that a person can read.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
import numpy.typing as npt

from choreo.errors import UsageError
from choreo.show.drawing import FONT, MUTED, PAPER, short, text, wrapped
from choreo.show.schedule.words import printable
from choreo.show.topology.kinds import kinds_of
from choreo.show.topology.legend import legend_of
from choreo.show.topology.paint import Painter, path_of
from choreo.show.topology.panels import Panel, must_show, panels_of, slow_links
from choreo.show.topology.shapes import (
    device_shape,
    dots_shape,
    dotted_shape,
    group_shape,
    planes_shape,
    switch_shape,
)
from choreo.show.topology.stages import stages_of
from choreo.topology import Topology
from choreo.topology.graph import Bools, Floats
from choreo.units import counted

__all__ = ["topology_svg"]

MARGIN, TITLE, HEADING = 28.0, 78.0, 26.0
# Between panels, and how wide a row of them may be.
APART, PAGE = 56.0, 1240.0
NAME_LENGTH = 240


def topology_svg(
    topology: Topology, *, load: npt.ArrayLike | None = None, highlight: Sequence[int] | npt.NDArray[np.int64] = ()
) -> str:
    """The network as one SVG picture.

    `load` colours every link by how busy it is, from 0 to 1; `highlight` points out links by their numbers.
    """
    busy, chosen = _checked_load(topology, load), _checked_highlight(topology, highlight)
    slow = slow_links(topology)
    panels = panels_of(topology, must_show(topology, chosen | slow, busy))
    stages = stages_of(topology)
    painter = Painter(topology, kinds_of(topology, stages), slow, busy, chosen, crowded=_crowded(panels))
    legend, legend_width, legend_height = legend_of(painter, stages)
    drawn, width, height = _side_by_side(painter, panels)
    about = _facts(topology)
    inside = max(width, legend_width, 6.0 * len(about), 360.0)
    title = wrapped(_name(topology), max(40, int(inside / 9)))
    top = TITLE + 22 * (len(title) - 1)
    bottom = top + height + 40
    body = [text(MARGIN, 34 + 22 * at, words, size=18, font_weight="600") for at, words in enumerate(title)]
    inside = max(inside, *(9.4 * len(words) for words in title))
    body.append(text(MARGIN, 53 + 22 * (len(title) - 1), about, fill=MUTED, size=12))
    body.append(f'<g transform="translate({short(MARGIN + (inside - width) / 2)} {short(top)})">{drawn}</g>')
    body.append(f'<g transform="translate({short(MARGIN)} {short(bottom)})">{legend}</g>')
    width, height = inside + 2 * MARGIN, bottom + legend_height + MARGIN - 14
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" font-family="{FONT}">'
        f"<title>{escape(_name(topology))}: {escape(about)}</title>"
        f'<rect width="100%" height="100%" fill="{PAPER}"/>{"".join(body)}</svg>\n'
    )


def _side_by_side(painter: Painter, panels: list[Panel]) -> tuple[str, float, float]:
    """The panels in rows, wrapped like words; with the width and height of all."""
    if len(panels) == 1:
        placed = panels[0].placed
        middle = f"translate({short(placed.width / 2)} {short(placed.height / 2)})"
        return f'<g transform="{middle}">{_drawn(painter, panels[0])}</g>', placed.width, placed.height
    page = max(PAGE, *(panel.placed.width for panel in panels))
    shapes, x, y, width, height = [], 0.0, 0.0, 0.0, 0.0
    for panel in panels:
        placed = panel.placed
        wide = max(placed.width, 6.6 * len(panel.words))
        if x and x + wide > page:
            x, y = 0.0, height + APART
        middle = f"translate({short(x + placed.width / 2)} {short(y + HEADING + placed.height / 2)})"
        shapes.append(text(x, y + 4, panel.words, size=12, font_weight="600"))
        shapes.append(f'<g transform="{middle}">{_drawn(painter, panel)}</g>')
        width, height = max(width, x + wide), max(height, y + HEADING + placed.height)
        x += wide + APART
    return "".join(shapes), width, height


def _drawn(painter: Painter, panel: Panel) -> str:
    """From the outside in, so that a box hides the ends of the cables that come to it."""
    placed, levels = panel.placed, len(panel.stages)
    shapes = [planes_shape(placed)]
    for level in range(levels, 0, -1):
        dotted = [(dim, curve) for at, dim, curve in placed.dotted if at == level]
        shapes += [dotted_shape(painter, dim, path_of(curve)) for dim, curve in dotted]
        shapes.append(painter.draw(wire for wire in placed.wires if wire.level == level))
        shapes += [group_shape(group, levels) for group in placed.groups if group.level == level]
    shapes += [switch_shape(painter, switch) for switch in placed.switches]
    shapes += [device_shape(painter, placed, device) for device in placed.devices]
    shapes += [dots_shape(dots, placed.device.height) for _, dots in placed.dots]
    return "".join(shapes)


def _crowded(panels: list[Panel]) -> bool:
    return max(len(panel.placed.wires) for panel in panels) > 100


def _name(topology: Topology) -> str:
    """Its name on one line, shortened if it is very long."""
    clean = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in topology.name)
    return clean if len(clean) <= NAME_LENGTH else f"{clean[: NAME_LENGTH - 1]}…"


def _facts(topology: Topology) -> str:
    """Its size in words."""
    device = f" ({printable(topology.device)})" if topology.device else ""
    parts = [f"{counted(topology.num_devices, 'device')}{device}"]
    if topology.num_switches:
        parts.append(counted(topology.num_switches, "switch", "switches"))
    parts.append(counted(len(topology.links), "link"))
    return ", ".join(parts)


def _checked_load(topology: Topology, load: npt.ArrayLike | None) -> Floats | None:
    if load is None:
        return None
    values = np.asarray(load, np.float64)
    if values.shape != (len(topology.links),):
        raise UsageError(
            f"load has the shape {values.shape}; {printable(topology.name)} has {len(topology.links)} links"
        )
    if not ((values >= 0) & (values <= 1 + 1e-9)).all():
        raise UsageError("a link's load is a number from 0 to 1; divide by what the link can carry")
    return values


def _checked_highlight(topology: Topology, links: Sequence[int] | npt.NDArray[np.int64]) -> Bools:
    numbers = np.asarray(links, np.int64).reshape(-1)
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < len(topology.links)):
        raise UsageError(f"highlight has a link that is not there; they are 0 to {len(topology.links) - 1}")
    chosen = np.zeros(len(topology.links), np.bool_)
    chosen[numbers] = True
    return chosen
