"""The cells of a picture: how much of a chunk a rank holds, and what the last step did to it."""

from __future__ import annotations

from collections import defaultdict

from choreo.show.drawing import ADD, COPY, EMPTY, PAPER, PART, WHOLE, WRONG, short
from choreo.show.schedule.holdings import Action, State

__all__ = ["Cell", "cell_paths", "frame"]

# The fill of a cell: (part of it, all of it) for what the last step did to it.
FILLS = {
    Action.NOTHING: (PART, WHOLE),
    Action.ADDED: ("#f0a35c", ADD),
    Action.COPIED: ("#7fb2e5", COPY),
}

# Left, top, width, height; the share of it that is filled; its state, what the last step did, and whether it is wrong.
Cell = tuple[float, float, float, float, float, State, Action, bool]


def cell_paths(cells: list[Cell]) -> str:
    """The filled parts of many cells as a few paths, one for each colour; the fill rises with what is there."""
    fills: dict[str, list[str]] = defaultdict(list)
    outlines: list[str] = []
    for x, y, width, height, share, state, action, wrong in cells:
        if wrong:
            outline = f"M{short(x + 0.5)} {short(y + 0.5)}h{short(width - 1)}v{short(height - 1)}h{short(1 - width)}z"
            outlines.append(outline)
        if state is State.EMPTY:
            continue
        part, whole = (WRONG, WRONG) if wrong else FILLS[action]
        color = {State.COMPLETE: whole, State.DOUBLED: WRONG}.get(state, part)
        # A part never looks like all: it leaves at least a sixth of the cell open.
        tall = height * (1 if state is not State.PARTIAL else max(0.14, min(share, 0.84)))
        shape = f"M{short(x)} {short(y + height - tall)}h{short(width)}v{short(tall)}h{short(-width)}z"
        fills[color].append(shape)
    paths = [f'<path d="{"".join(shapes)}" fill="{color}"/>' for color, shapes in fills.items()]
    if outlines:
        paths.append(f'<path d="{"".join(outlines)}" fill="none" stroke="{WRONG}"/>')
    return "".join(paths)


def frame(x: float, y: float, *, columns: int, rows: int, width: float, height: float, gap: float) -> str:
    """The empty cells of one rank: a pale sheet, ruled."""
    across, down = columns * width, rows * height
    sheet = f'<rect x="{short(x)}" y="{short(y)}" width="{short(across)}" height="{short(down)}" fill="{EMPTY}"/>'
    rules = [f"M{short(x + column * width)} {short(y)}v{short(down)}" for column in range(1, columns)]
    rules += [f"M{short(x)} {short(y + row * height)}h{short(across)}" for row in range(1, rows)]
    return sheet + (f'<path d="{"".join(rules)}" stroke="{PAPER}" stroke-width="{short(gap)}"/>' if rules else "")
