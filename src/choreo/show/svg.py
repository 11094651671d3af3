"""One still picture of a schedule: ranks side by side, time running down.

Each step is a band. Its arrows leave from the ranks above and arrive at the ranks below, where a row of small cells
shows what each rank then holds. Long schedules go on in a further column, like the text of a newspaper.
"""

from __future__ import annotations

import numpy as np

from choreo.schedule import Schedule
from choreo.show.data import proof_story
from choreo.show.drawing import (
    ADD,
    COPY,
    EMPTY,
    FONT,
    INK,
    LINE,
    MUTED,
    PAPER,
    PART,
    WHOLE,
    WRONG,
    cell_paths,
    frame,
    line,
    short,
    text,
)
from choreo.show.holdings import Action, Moment, State
from choreo.show.limits import check_size
from choreo.show.svg_arrows import arrows
from choreo.show.svg_layout import (
    GUTTER,
    LINE_HEIGHT,
    STEP_HEIGHT,
    Band,
    Layout,
    bands_of,
    columns_of,
    layout_of,
    wrapped,
)
from choreo.show.words import facts, title

__all__ = ["SVG_LIMITS", "to_svg"]

SVG_LIMITS = {"ranks": 32, "transfers": 4_000, "places": 1 << 15}

MARGIN = 28.0
HEAD, TITLE = 34.0, 64.0


def to_svg(schedule: Schedule) -> str:
    """The schedule as one SVG picture, for a paper, a slide or a README."""
    check_size(schedule, "SVG picture", **SVG_LIMITS)
    layout = layout_of(schedule)
    start, *bands = bands_of(schedule, layout)
    story = proof_story(schedule)
    about = f"{facts(schedule)}: {schedule.contract.summary} ({'proved' if story is None else 'wrong'})"
    parts = [
        text(MARGIN, 34, title(schedule), size=18, font_weight="600"),
        text(MARGIN, 53, about, fill=MUTED, size=12),
    ]
    top = TITLE
    if story is not None:
        parts.append(text(MARGIN, 71, story, fill=WRONG, size=12))
        top += 18
    x, before, bottom = MARGIN, start, top
    for column in columns_of(layout, bands):
        drawn, height = _column(schedule, layout, before, column)
        parts.append(f'<g transform="translate({short(x)} {short(top)})">{drawn}</g>')
        x, before, bottom = x + layout.width + GUTTER, column[-1] if column else start, max(bottom, top + height)
    legend, legend_width = _legend(schedule, layout, bands)
    parts.append(f'<g transform="translate({short(MARGIN)} {short(bottom + 34)})">{legend}</g>')
    widths = (x - GUTTER, MARGIN + legend_width, MARGIN + 6 * max(len(about), len(story or "")))
    return _document(schedule, max(widths) + MARGIN, bottom + 34 + MARGIN, "".join(parts))


def _column(schedule: Schedule, layout: Layout, before: Band, bands: list[Band]) -> tuple[str, float]:
    """A newspaper column: the ranks, what they hold to begin with, and step after step; and how tall it is."""
    begun = before.moment.step
    words = text(0, HEAD + layout.cells_height / 2 + 4, "start", size=12, font_weight="600")
    if begun is not None:
        words = text(0, HEAD + layout.cells_height / 2 + 4, f"after step {begun}", size=10.5, fill=MUTED)
    made = [_heads(schedule, layout), _cells(layout, before.moment, HEAD, fresh=False), words]
    height, said = HEAD + layout.cells_height, ""
    for band in bands:
        made.append(arrows(schedule, layout, band.sent, height, height + band.height - layout.cells_height))
        height += band.height
        made.append(_cells(layout, band.moment, height - layout.cells_height, fresh=True))
        made.append(_words(band, height, said))
        said = band.words
    last = bands[-1].moment.step if bands else None
    if last == schedule.num_steps - 1:
        made.append(_promise(schedule, layout, 0, height))
    return _lifelines(layout, HEAD, height) + "".join(made), height


def _heads(schedule: Schedule, layout: Layout) -> str:
    made = []
    for rank in range(schedule.ranks):
        x, root = layout.x(rank), rank == schedule.root
        disc, fill = (INK, PAPER) if root else (PAPER, INK)
        made.append(f'<circle cx="{short(x)}" cy="14" r="11" fill="{disc}" stroke="{INK}" stroke-width="1.2"/>')
        made.append(text(x, 18, str(rank), size=11, fill=fill, anchor="middle", font_weight="600"))
    return "".join(made)


def _lifelines(layout: Layout, top: float, bottom: float) -> str:
    return "".join(line(layout.x(rank), top - 9, layout.x(rank), bottom, stroke=LINE) for rank in range(layout.ranks))


def _cells(layout: Layout, moment: Moment, top: float, *, fresh: bool) -> str:
    seen = layout.grid.see(moment)
    grid, made, cells = layout.grid, [], []
    gap = 1.0 if layout.cell_width >= 6 else 0.6 if layout.cell_width >= 2.5 else 0.2
    for rank in range(layout.ranks):
        left = layout.x(rank) - layout.cells_width / 2
        made.append(_empty(layout, left, top, gap))
        for index in range(len(grid.first)):
            row, column = divmod(index, grid.columns)
            action = Action(int(seen.action[rank, index])) if fresh else Action.NOTHING
            share = int(seen.have[rank, index]) / max(1, int(seen.given[index]))
            x, y = left + column * layout.cell_width, top + row * layout.cell_height
            size = (layout.cell_width - gap, layout.cell_height - (gap if grid.rows > 1 else 0))
            state = State(int(seen.state[rank, index]))
            cells.append((x + gap / 2, y + (gap / 2 if grid.rows > 1 else 0), *size, share, state, action))
    return "".join(made) + cell_paths(cells)


def _empty(layout: Layout, left: float, top: float, gap: float) -> str:
    size = {"width": layout.cell_width, "height": layout.cell_height}
    return frame(left, top, columns=layout.grid.columns, rows=layout.grid.rows, gap=gap, **size)


def _words(band: Band, bottom: float, said: str) -> str:
    y = bottom - band.height + 16
    made = [text(0, y, f"step {band.moment.step}", size=12, font_weight="600")]
    parts = wrapped(band.words)
    if band.words != said and STEP_HEIGHT + LINE_HEIGHT * len(parts) <= band.height:
        for number, part in enumerate(parts, start=1):
            made.append(text(0, y + LINE_HEIGHT * number + 1, part, size=10.5, fill=MUTED))
    return "".join(made)


def _promise(schedule: Schedule, layout: Layout, left: float, bottom: float) -> str:
    """A line under the cells that the contract asks for, where it does not ask for all."""
    asked = schedule.held_after()
    if np.all(asked) or (layout.grid.rows > 1 and not layout.grid.square):
        return ""
    made = []
    if layout.grid.square:
        for rank in range(layout.ranks):
            x, y = (
                left + layout.x(rank) - layout.cells_width / 2 + rank * layout.cell_width,
                bottom - layout.cells_height,
            )
            made.append(
                f'<rect x="{short(x - 1)}" y="{short(y - 1)}" width="{short(layout.cell_width + 2)}" '
                f'height="{short(layout.cells_height + 2)}" fill="none" stroke="{INK}" stroke-width="1.2"/>'
            )
        return "".join(made)
    for rank, row in enumerate(layout.grid.covers(asked)):
        for cell in (index for index, is_asked in enumerate(row) if is_asked):
            x = left + layout.x(rank) - layout.cells_width / 2 + cell * layout.cell_width
            made.append(line(x, bottom + 3.5, x + layout.cell_width, bottom + 3.5, stroke=INK, width=2))
    return "".join(made)


def _legend(schedule: Schedule, layout: Layout, bands: list[Band]) -> tuple[str, float]:
    """What the colours mean, and how wide it is to say so."""
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
    if _promise(schedule, layout, 0, 0):
        mark = f'<rect x="2.5" y="-10" width="6" height="13" fill="none" stroke="{INK}"/>'
        keys.append((mark if layout.grid.square else line(0, 2, 11, 2, stroke=INK, width=2), "what it must end with"))
    if any((band.moment.state == State.DOUBLED).any() for band in bands):
        keys.append((f'<rect y="-9" width="11" height="11" fill="{WRONG}"/>', "some of it more than once"))
    x, made = 0.0, []
    for mark, words in keys:
        indent = 17 if mark else 0
        made.append(f'<g transform="translate({short(x)} 0)">{mark}{text(indent, 0.5, words, fill=MUTED)}</g>')
        x += indent + 5.5 * len(words) + 20
    return "".join(made), x


def _document(schedule: Schedule, width: float, height: float, body: str) -> str:
    name = text(0, 0, f"{title(schedule)}: {facts(schedule)}")
    label = name[name.index(">") + 1 : name.rindex("<")]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" font-family="{FONT}"><title>{label}</title>'
        f'<rect width="100%" height="100%" fill="{PAPER}"/>{body}</svg>\n'
    )
