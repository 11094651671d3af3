"""The shapes of devices, switches and groups."""

from __future__ import annotations

from choreo.show.drawing import EMPTY, HALO, INK, LINE, MUTED, PAPER, WHOLE, WRONG, short, text
from choreo.show.topology.paint import Painter, load_color
from choreo.show.topology.place import Group, Placed, PlacedDevice, PlacedSwitch, short_name
from choreo.show.topology.scene import Dots

__all__ = ["LATE", "device_shape", "dots_shape", "dotted_shape", "group_shape", "planes_shape", "switch_shape"]

# The fill of groups, and of the groups in them; of a device that is slower than it should be.
PANEL = ("#f4f6f8", "#ffffff")
LATE = "#fbe9f0"


def planes_shape(placed: Placed) -> str:
    """The sheets that the planes of a three-dimensional grid lie on."""
    shapes = []
    for corners in placed.planes:
        way = "L".join(f"{short(x)} {short(y)}" for x, y in corners)
        shapes.append(f'<path d="M{way}z" fill="{PANEL[0]}" stroke="{LINE}"/>')
    return "".join(shapes)


def dotted_shape(painter: Painter, dim: int, way: str) -> str:
    """A dotted line where a row of devices continues."""
    color = MUTED if painter.load is not None else next(kind.color for kind in painter.kinds if kind.dim == dim)
    return f'<path d="{way}" fill="none" stroke="{color}" stroke-width="1.2" stroke-dasharray="1.5 4" opacity="0.7"/>'


def group_shape(group: Group, levels: int) -> str:
    """The box of a group with its name; of a closed one, with how many devices it holds."""
    x, y = group.at[0] - group.width / 2, group.at[1] - group.height / 2
    fill = PANEL[(levels - group.level) % 2]
    shapes = (
        f'<rect x="{short(x)}" y="{short(y)}" width="{short(group.width)}" height="{short(group.height)}" rx="10" '
        f'fill="{fill}" stroke="#c9d1d9"/>'
    )
    if group.closed:
        shapes += text(group.at[0], group.at[1] - 2, group.name, size=10, anchor="middle", font_weight="600")
        shapes += text(group.at[0], group.at[1] + 11, f"{group.devices} devices", size=9.5, fill=MUTED, anchor="middle")
    elif group.name:
        shapes += text(x + 10, y + 15, group.name, size=10, fill=MUTED)
    return shapes


def switch_shape(painter: Painter, switch: PlacedSwitch) -> str:
    """A box with a name; of several, with others behind it. The load of what is inside it colours its edge."""
    shape, (x, y), block = switch.shape, switch.at, painter.topology.blocks[switch.shape.block]
    left, top, edge, thick = x - shape.width / 2, y - shape.height / 2, WHOLE, 1.2
    if painter.load is not None and len(switch.inside):
        edge, thick = load_color(float(painter.load[switch.inside].max())), 3.0
    name = short_name(painter.topology, switch.node)
    if switch.copies > 1:
        name = f"{switch.copies} switches" if shape.width > 80 else f"{switch.copies} ×"
    name += " Σ" if block.reduces[shape.node - block.size] else ""
    name += f", {shape.note}" if shape.note and (len(name) + len(shape.note)) * 5.6 < shape.width else ""
    boxes = [
        f'<rect x="{short(left + 3 * behind)}" y="{short(top - 3 * behind)}" width="{short(shape.width)}" '
        f'height="{short(shape.height)}" rx="5" fill="{EMPTY}" stroke="{edge}" stroke-width="{thick:g}"/>'
        for behind in range(min(switch.copies, 3) - 1, -1, -1)
    ]
    return "".join(boxes) + text(x, y + 4, name, size=10.5, anchor="middle", font_weight="600")


def device_shape(painter: Painter, placed: Placed, device: PlacedDevice) -> str:
    """A disc with a number, or a longer one with a name; red where the device is slower than it should be."""
    (x, y), wide, tall = device.at, placed.device.width, placed.device.height
    late = float(painter.topology.slowdown[device.number]) > 1
    fill, edge, thick = (LATE, WRONG, 1.8) if late else (PAPER, INK, 1.2)
    name = short_name(painter.topology, device.number)
    return (
        f'<rect x="{short(x - wide / 2)}" y="{short(y - tall / 2)}" width="{short(wide)}" height="{short(tall)}" '
        f'rx="{short(tall / 2)}" fill="{fill}" stroke="{edge}" stroke-width="{thick:g}"/>'
    ) + text(x, y + placed.font * 0.36, name, size=placed.font, anchor="middle", font_weight="600")


def dots_shape(dots: Dots, tall: float) -> str:
    """Three dots, and what they stand for."""
    (x, y), (step_x, step_y) = dots.at, dots.step
    shapes = [
        f'<circle cx="{short(x + step_x * at)}" cy="{short(y + step_y * at)}" r="2.2" fill="{MUTED}"/>'
        for at in (-1, 0, 1)
    ]
    if dots.words:
        beside = y - tall / 2 - 4 if dots.above else y + tall / 2 + 9
        shapes.append(text(x, beside, dots.words, size=10, fill=MUTED, anchor="middle", **HALO))
    return "".join(shapes)
