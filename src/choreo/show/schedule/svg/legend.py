"""The legend below the still picture, and marks for the chunks that each rank must end with."""

from __future__ import annotations

import numpy as np

from choreo.schedule import Schedule
from choreo.show.drawing import ADD, COPY, EMPTY, INK, MUTED, PAPER, PART, WHOLE, WRONG, line, short, text
from choreo.show.schedule.holdings import State, wrong_at_end
from choreo.show.schedule.svg.layout import Band, PictureLayout

__all__ = ["legend", "promise"]


def promise(schedule: Schedule, layout: PictureLayout, left: float, bottom: float) -> str:
    """A line under the cells that the contract asks for, where it does not ask for all."""
    asked = schedule.held_after()
    if np.all(asked[: schedule.ranks]) or (layout.grid.rows > 1 and not layout.grid.square):
        return ""
    shapes = []
    if layout.grid.square:
        for rank in range(schedule.ranks):
            x, y = (
                left + layout.x(rank) - layout.cells_width / 2 + rank * layout.cell_width,
                bottom - layout.cells_height,
            )
            shapes.append(
                f'<rect x="{short(x - 1)}" y="{short(y - 1)}" width="{short(layout.cell_width + 2)}" '
                f'height="{short(layout.cells_height + 2)}" fill="none" stroke="{INK}" stroke-width="1.2"/>'
            )
        return "".join(shapes)
    for rank, row in enumerate(layout.grid.covers(asked)):
        for cell in (index for index, is_asked in enumerate(row) if is_asked):
            x = left + layout.x(rank) - layout.cells_width / 2 + cell * layout.cell_width
            shapes.append(line(x, bottom + 3.5, x + layout.cell_width, bottom + 3.5, stroke=INK, width=2))
    return "".join(shapes)


def legend(schedule: Schedule, layout: PictureLayout, bands: list[Band]) -> tuple[str, float]:
    """What the colours mean, and how wide the legend is; `bands` are the start and all steps."""
    adds = {bool(message.reduce) for band in bands for message in band.sent}
    keys = [(f'<rect y="-9" width="11" height="11" fill="{WHOLE}"/>', "was there before")]
    if False in adds:
        keys.insert(0, (f'<rect y="-9" width="11" height="11" fill="{COPY}"/>', "copied in this step"))
    if True in adds:
        keys.insert(0, (f'<rect y="-9" width="11" height="11" fill="{ADD}"/>', "added in this step"))
    if schedule.contract.reduces and schedule.ranks > 1:
        half = f'<rect y="-9" width="11" height="11" fill="{EMPTY}"/><rect y="-4" width="11" height="6" fill="{PART}"/>'
        keys.append((half, f"height: how many of {schedule.ranks} contributions"))
    if layout.grid.square:
        keys.append(("", "row: from which rank, column: for which rank"))
    elif schedule.num_chunks > 1:
        keys.append(("", f"cells: chunks 0 to {schedule.num_chunks - 1}"))
    if schedule.relays:
        disc = f'<circle cx="5.5" cy="-3.5" r="5" fill="{PAPER}" stroke="{INK}" stroke-dasharray="3 2"/>'
        keys.append((disc, "a device that relays"))
    if schedule.switches:
        square = f'<rect x="0.5" y="-8.5" width="10" height="10" fill="{PAPER}" stroke="{INK}" stroke-width="1.2"/>'
        keys.append((square, "a switch that reduces"))
    if promise(schedule, layout, 0, 0):
        mark = f'<rect x="2.5" y="-10" width="6" height="13" fill="none" stroke="{INK}"/>'
        keys.append((mark if layout.grid.square else line(0, 2, 11, 2, stroke=INK, width=2), "what it must end with"))
    if any((band.moment.state == State.DOUBLED).any() for band in bands):
        keys.append((f'<rect y="-9" width="11" height="11" fill="{WRONG}"/>', "some of it more than once"))
    if wrong_at_end(schedule, bands[-1].moment).any():
        mark = f'<rect x="0.5" y="-8.5" width="10" height="10" fill="{EMPTY}" stroke="{WRONG}"/>'
        keys.append((mark, "wrong at the end"))
    x, entries = 0.0, []
    for mark, words in keys:
        indent = 17 if mark else 0
        entries.append(f'<g transform="translate({short(x)} 0)">{mark}{text(indent, 0.5, words, fill=MUTED)}</g>')
        x += indent + 5.5 * len(words) + 20
    return "".join(entries), x
