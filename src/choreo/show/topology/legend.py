"""The legend of a network's picture."""

from __future__ import annotations

import numpy as np

from choreo.show.drawing import EMPTY, INK, MUTED, WHOLE, WRONG, line, short, text
from choreo.show.topology.kinds import bandwidth_words
from choreo.show.topology.paint import LOADS, Painter, path_of, stroke
from choreo.show.topology.place import short_name
from choreo.show.topology.scene import straight
from choreo.show.topology.shapes import LATE
from choreo.show.topology.stages import Stage
from choreo.units import counted

__all__ = ["legend_of"]

ROW, MARK = 20.0, 46.0


def legend_of(painter: Painter, stages: list[Stage]) -> tuple[str, float, float]:
    """One row for each thing that needs a word; its drawing, width and height."""
    rows = [*_kinds(painter, stages), *_marks(painter, stages), *_loads(painter, stages)]
    entries = [
        f'<g transform="translate(0 {short(ROW * at)})">{mark}{text(MARK, 4, words, fill=INK if plain else MUTED)}</g>'
        for at, (mark, words, plain) in enumerate(rows)
    ]
    wide = max((MARK + 5.7 * len(words) for _, words, _ in rows), default=0.0)
    return "".join(entries), wide, ROW * len(rows)


def _kinds(painter: Painter, stages: list[Stage]) -> list[tuple[str, str, bool]]:
    """The kinds of links, as thick as they are drawn."""
    bundled = {dim: stage.inner > 1 for stage in stages for dim in stage.dims}
    rows = []
    for kind in painter.kinds:
        color = WHOLE if painter.load is not None else kind.color
        way = path_of(straight((0, 0), (34, 0)))
        mark = stroke(way, color, painter.thickness(kind.bandwidth[1]), bundle=bundled[kind.dim])
        rows.append((mark, kind.words, True))
    return rows


def _marks(painter: Painter, stages: list[Stage]) -> list[tuple[str, str, bool]]:
    """Everything else that is drawn."""
    topology = painter.topology
    rows: list[tuple[str, str, bool]] = []
    if any(stage.inner > 1 for stage in stages):
        rows.append((stroke(path_of(straight((0, 0), (34, 0))), MUTED, 1.5, bundle=True), _bundle_words(stages), False))
    if any(stage.kind == "space" and _wraps(painter, stage) for stage in stages):
        rows.append((line(6, 0, 28, 0, stroke=MUTED, width=1.5), "a tail goes on at the other end of its row", False))
    if bool(topology.reduces.any()):
        rows.append((_box("Σ"), "a switch that adds and multicasts what passes", False))
    if painter.slow.any():
        slow = topology.links.bandwidth_bytes_per_s[painter.slow]
        alive = slow[slow > 0]
        way = path_of(straight((0, 0), (34, 0)))
        if len(alive):
            words = f"{counted(len(alive), 'link')} slower than the others: {bandwidth_words(alive.min(), alive.max())}"
            rows.append((stroke(way, WRONG, 1.6, dashed=True), words, True))
        if len(alive) < len(slow):
            words = f"{counted(len(slow) - len(alive), 'link')} down"
            rows.append(
                (stroke(way, WRONG, 1.0, dashed=True) + text(17, 4.5, "✕", fill=WRONG, anchor="middle"), words, True)
            )
    late = np.flatnonzero(topology.slowdown > 1)
    if len(late):
        mark = f'<circle cx="17" cy="0" r="7" fill="{LATE}" stroke="{WRONG}" stroke-width="1.6"/>'
        times = topology.slowdown[late]
        span = f"{times.min():.3g}" if times.min() == times.max() else f"{times.min():.3g} to {times.max():.3g}"
        rows.append((mark, f"{counted(len(late), 'device')} {span} times slower", True))
    if painter.chosen.any():
        way = path_of(straight((0, 0), (34, 0)))
        rows.append((stroke(way, INK, 6.4) + stroke(way, "#ffffff", 2), "pointed out", True))
    return rows


def _bundle_words(stages: list[Stage]) -> str:
    sizes = sorted({stage.inner for stage in stages if stage.inner > 1})
    return f"a cable is {' or '.join(map(str, sizes))} links, one from each device of a group"


def _wraps(painter: Painter, stage: Stage) -> bool:
    return any(
        painter.topology.blocks[dim].kind == "ring" and painter.topology.blocks[dim].size > 2 for dim in stage.dims
    )


def _box(label: str) -> str:
    words = text(17, 4, label, size=10, anchor="middle", font_weight="600")
    return f'<rect x="2" y="-8" width="30" height="16" rx="4" fill="{EMPTY}" stroke="{WHOLE}"/>{words}'


def _loads(painter: Painter, stages: list[Stage]) -> list[tuple[str, str, bool]]:
    if painter.load is None:
        return []
    wide = 34 / len(LOADS)
    mark = "".join(
        f'<rect x="{short(at * wide)}" y="-5" width="{short(wide)}" height="10" fill="{color}"/>'
        for at, color in enumerate(LOADS)
    )
    cable = "; a cable has that of its busiest link" if any(stage.inner > 1 for stage in stages) else ""
    rows = [(mark, f"link load, from idle to busy all the time{cable}", True)]
    if len(painter.load):
        busiest = int(painter.load.argmax())
        links = painter.topology.links
        ends = " → ".join(short_name(painter.topology, int(end[busiest])) for end in (links.src, links.dst))
        rows.append(("", f"the busiest: {ends}, {painter.load[busiest]:.0%}", True))
    return rows
