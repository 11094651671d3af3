"""One still picture of a schedule: ranks side by side, relays and switches to their right, time running down.

Each step is a band. Its arrows leave from the ranks above and arrive at the ranks below, where a row of small cells
shows what each rank then holds. Long schedules continue in another column, like the text of a newspaper.
"""

from __future__ import annotations

from choreo.schedule import Schedule
from choreo.show.drawing import (
    FONT,
    INK,
    LINE,
    MUTED,
    PAPER,
    WRONG,
    line,
    short,
    text,
    wrapped,
)
from choreo.show.schedule.holdings import Action, Moment, State, wrong_at_end
from choreo.show.schedule.limits import check_size
from choreo.show.schedule.outcome import ProofOutcome, outcome_of
from choreo.show.schedule.svg.arrows import arrows
from choreo.show.schedule.svg.cells import cell_paths, frame
from choreo.show.schedule.svg.layout import (
    GUTTER,
    LINE_HEIGHT,
    PHASE_HEIGHT,
    STEP_HEIGHT,
    Band,
    PictureLayout,
    bands_of,
    columns_of,
    layout_of,
)
from choreo.show.schedule.svg.legend import legend, promise
from choreo.show.schedule.words import facts, title

__all__ = ["SVG_LIMITS", "to_svg"]

SVG_LIMITS = {"ranks": 32, "transfers": 4_000, "places": 1 << 15}

MARGIN = 28.0
HEAD, TITLE = 34.0, 64.0
# Where the line along a phase runs, left of the words.
BRACKET = -12.0


def to_svg(schedule: Schedule) -> str:
    """The schedule as one SVG picture, for a paper, a slide or a README."""
    check_size(schedule, "SVG picture", **SVG_LIMITS)
    layout = layout_of(schedule)
    start, *bands = bands_of(schedule, layout)
    outcome = outcome_of(schedule)
    about = f"{facts(schedule)}: {schedule.contract.summary} ({'proved' if outcome.holds else 'wrong'})"
    columns = columns_of(layout, bands)
    keys, keys_width = legend(schedule, layout, [start, *bands])
    across = len(columns) * (layout.width + GUTTER) - GUTTER
    width = max(across, keys_width, 6.0 * len(about))
    parts = [
        text(MARGIN, 34, title(schedule), size=18, font_weight="600"),
        text(MARGIN, 53, about, fill=MUTED, size=12),
    ]
    top = TITLE
    for words in wrapped(outcome.story, int(width / 6)) if outcome.story else []:
        parts.append(text(MARGIN, top + 7, words, fill=WRONG, size=12))
        top += 18
    x, before, bottom = MARGIN, start, top
    for column in columns:
        drawn, height = _column(schedule, layout, before, column, outcome)
        parts.append(f'<g transform="translate({short(x)} {short(top)})">{drawn}</g>')
        x, before, bottom = x + layout.width + GUTTER, column[-1] if column else start, max(bottom, top + height)
    parts.append(f'<g transform="translate({short(MARGIN)} {short(bottom + 34)})">{keys}</g>')
    return _document(schedule, width + 2 * MARGIN, bottom + 34 + MARGIN, "".join(parts))


def _column(
    schedule: Schedule, layout: PictureLayout, before: Band, bands: list[Band], outcome: ProofOutcome
) -> tuple[str, float]:
    """A newspaper column: the ranks, what they hold to begin with, and step after step; and how tall it is."""
    begun = before.moment.step
    words = text(0, HEAD + layout.cells_height / 2 + 4, "start", size=12, font_weight="600")
    if begun is not None:
        words = text(0, HEAD + layout.cells_height / 2 + 4, f"after step {begun}", size=10.5, fill=MUTED)
    shapes = [_heads(schedule, layout), _cells(schedule, layout, before.moment, HEAD, fresh=False), words]
    if layout.grid.square and begun is None:
        shapes.append(_axes(layout))
    height, said = HEAD + layout.cells_height, ""
    shapes.append(_brackets(bands, height))
    for band in bands:
        failing = outcome.rank if band.moment.step == outcome.step else None
        below = height + band.height - layout.cells_height
        shapes.append(arrows(schedule, layout, band.sent, height, below, failing=failing))
        height += band.height
        shapes.append(_cells(schedule, layout, band.moment, height - layout.cells_height, fresh=True))
        shapes.append(_words(band, height, said, failing=failing is not None))
        said = band.words
    last = bands[-1].moment.step if bands else None
    if last == schedule.num_steps - 1:
        shapes.append(promise(schedule, layout, 0, height))
    return _lifelines(layout, HEAD, height) + "".join(shapes), height


def _heads(schedule: Schedule, layout: PictureLayout) -> str:
    """A disc with its number for each rank, a dashed one for each relay, a square for each switch."""
    shapes = []
    for lane in range(layout.lanes):
        x, root = layout.x(lane), lane == schedule.root
        kind, number = schedule.member_name(lane).split()
        inside, fill = (INK, PAPER) if root else (PAPER, INK)
        form = f'circle cx="{short(x)}" cy="14" r="11"'
        if kind == "switch":
            form = f'rect x="{short(x - 10)}" y="4" width="20" height="20"'
        dashes = ' stroke-dasharray="3 2"' if kind == "relay" else ""
        shapes.append(f'<{form} fill="{inside}" stroke="{INK}" stroke-width="1.2"{dashes}/>')
        shapes.append(text(x, 18, number, size=11, fill=fill, anchor="middle", font_weight="600"))
    return "".join(shapes)


def _lifelines(layout: PictureLayout, top: float, bottom: float) -> str:
    return "".join(line(layout.x(rank), top - 9, layout.x(rank), bottom, stroke=LINE) for rank in range(layout.lanes))


def _axes(layout: PictureLayout) -> str:
    """What the rows and columns of a square are, said at the first one."""
    left, top = layout.x(0) - layout.cells_width / 2, HEAD + layout.cells_height / 2
    return text(left, HEAD - 3, "for →", size=8.5, fill=MUTED) + text(
        left - 4, top + 3, "from ↓", size=8.5, fill=MUTED, anchor="end"
    )


def _brackets(bands: list[Band], top: float) -> str:
    """At the left of the column a line along each phase, with its name where it starts or, in a new column, goes on."""
    shapes, y = [], top
    for number, band in enumerate(bands):
        if band.phase is not None:
            closes = band.moment.step == band.phase.last
            first, last = y + (7 if band.opens else 0), y + band.height - (2 if closes else 0)
            shapes.append(line(BRACKET, first, BRACKET, last, stroke=INK, width=1.5))
            shapes.extend(
                line(BRACKET, end, BRACKET + 6, end, stroke=INK, width=1.5)
                for end, ends in ((first, band.opens), (last, closes))
                if ends
            )
            if band.opens:
                shapes.append(text(0, y + 17, band.phase.heading, font_weight="600"))
            elif number == 0:
                shapes.append(text(0, 18, f"{band.phase.collective}, continued", font_weight="600"))
        y += band.height
    return "".join(shapes)


def _cells(schedule: Schedule, layout: PictureLayout, moment: Moment, top: float, *, fresh: bool) -> str:
    seen = layout.grid.see(moment)
    wrong = layout.grid.touches(wrong_at_end(schedule, moment))
    grid, shapes, cells = layout.grid, [], []
    gap = 1.0 if layout.cell_width >= 6 else 0.6 if layout.cell_width >= 2.5 else 0.2
    for rank in range(layout.lanes):
        left = layout.x(rank) - layout.cells_width / 2
        shapes.append(_empty(layout, left, top, gap))
        for index in range(len(grid.first)):
            row, column = divmod(index, grid.columns)
            action = Action(int(seen.action[rank, index])) if fresh else Action.NOTHING
            share = int(seen.have[rank, index]) / max(1, int(seen.given[index]))
            x, y = left + column * layout.cell_width, top + row * layout.cell_height
            size = (layout.cell_width - gap, layout.cell_height - (gap if grid.rows > 1 else 0))
            state, bad = State(int(seen.state[rank, index])), wrong[rank][index]
            cells.append((x + gap / 2, y + (gap / 2 if grid.rows > 1 else 0), *size, share, state, action, bad))
    return "".join(shapes) + cell_paths(cells)


def _empty(layout: PictureLayout, left: float, top: float, gap: float) -> str:
    size = {"width": layout.cell_width, "height": layout.cell_height}
    return frame(left, top, columns=layout.grid.columns, rows=layout.grid.rows, gap=gap, **size)


def _words(band: Band, bottom: float, said: str, *, failing: bool) -> str:
    lower = PHASE_HEIGHT if band.opens else 0
    y = bottom - band.height + 16 + lower
    shapes = [text(0, y, f"step {band.moment.step}", size=12, font_weight="600", fill=WRONG if failing else INK)]
    if failing:
        shapes.append(text(44, y, "✗ wrong here", size=10.5, fill=WRONG))
    parts = wrapped(band.words)
    if band.words != said and STEP_HEIGHT + LINE_HEIGHT * len(parts) + lower <= band.height:
        for number, part in enumerate(parts, start=1):
            shapes.append(text(0, y + LINE_HEIGHT * number + 1, part, size=10.5, fill=MUTED))
    return "".join(shapes)


def _document(schedule: Schedule, width: float, height: float, body: str) -> str:
    name = text(0, 0, f"{title(schedule)}: {facts(schedule)}")
    label = name[name.index(">") + 1 : name.rindex("<")]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" font-family="{FONT}"><title>{label}</title>'
        f'<rect width="100%" height="100%" fill="{PAPER}"/>{body}</svg>\n'
    )
