"""Strokes of an SVG: the palette, and text, lines and cells as strings.

Everything is said in attributes, with no style sheet, ids or markers, so that several pictures can stand in one
notebook and every program that reads SVG draws them alike. Grey is what was there, orange what a step adds, blue what
it copies: a triple that people with any kind of colour blindness tell apart.
"""

from __future__ import annotations

import math
from collections import defaultdict
from html import escape

from choreo.show.holdings import Action, State

__all__ = [
    "ADD",
    "COPY",
    "EMPTY",
    "FONT",
    "INK",
    "LINE",
    "MUTED",
    "PAPER",
    "PART",
    "WHOLE",
    "WRONG",
    "Cell",
    "arrow",
    "cell_paths",
    "frame",
    "line",
    "short",
    "text",
]

PAPER, INK, MUTED, LINE = "#ffffff", "#1c2530", "#66727f", "#dfe4e9"
ADD, COPY = "#c75b00", "#1d62ad"
WRONG = "#a3174f"
EMPTY = "#e9edf1"
FONT = "Inter, 'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"

PART, WHOLE = "#a9b4c0", "#4f5b68"
# The fill of a cell: (part of it, all of it) for what the last step did to it.
FILLS = {
    Action.NOTHING: (PART, WHOLE),
    Action.ADDED: ("#f0a35c", ADD),
    Action.COPIED: ("#7fb2e5", COPY),
}

# Left, top, width, height; the share of it that is filled; its state, what the last step did, and whether it is wrong.
Cell = tuple[float, float, float, float, float, State, Action, bool]


def text(
    x: float, y: float, words: str, *, size: float = 11, fill: str = INK, anchor: str = "start", **more: str
) -> str:
    """Words at a place; `more` are further attributes."""
    extra = "".join(f' {name.replace("_", "-")}="{escape(value)}"' for name, value in more.items())
    return (
        f'<text x="{short(x)}" y="{short(y)}" font-size="{size:g}" fill="{fill}" text-anchor="{anchor}"{extra}>'
        f"{escape(words)}</text>"
    )


def line(x1: float, y1: float, x2: float, y2: float, *, stroke: str, width: float = 1, opacity: float = 1) -> str:
    """A straight line."""
    faint = "" if opacity == 1 else f' opacity="{opacity:g}"'
    way = f"M{short(x1)} {short(y1)}L{short(x2)} {short(y2)}"
    return f'<path d="{way}" fill="none" stroke="{stroke}" stroke-width="{width:g}"{faint}/>'


def arrow(x1: float, y1: float, x2: float, y2: float, *, stroke: str, width: float, opacity: float = 1) -> str:
    """A straight line with a head at its end."""
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    along_x, along_y = (x2 - x1) / length, (y2 - y1) / length
    head, half = 4.5 + width, 2 + width * 0.8
    back_x, back_y = x2 - along_x * head, y2 - along_y * head
    faint = "" if opacity == 1 else f' opacity="{opacity:g}"'
    return (
        f"<g{faint}>{line(x1, y1, back_x, back_y, stroke=stroke, width=width)}"
        f'<path d="M{short(x2)} {short(y2)}L{short(back_x - along_y * half)} {short(back_y + along_x * half)}'
        f'L{short(back_x + along_y * half)} {short(back_y - along_x * half)}z" fill="{stroke}"/></g>'
    )


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
    made = [f'<path d="{"".join(shapes)}" fill="{color}"/>' for color, shapes in fills.items()]
    if outlines:
        made.append(f'<path d="{"".join(outlines)}" fill="none" stroke="{WRONG}"/>')
    return "".join(made)


def frame(x: float, y: float, *, columns: int, rows: int, width: float, height: float, gap: float) -> str:
    """The empty cells of one rank: a pale sheet, ruled."""
    across, down = columns * width, rows * height
    sheet = f'<rect x="{short(x)}" y="{short(y)}" width="{short(across)}" height="{short(down)}" fill="{EMPTY}"/>'
    rules = [f"M{short(x + column * width)} {short(y)}v{short(down)}" for column in range(1, columns)]
    rules += [f"M{short(x)} {short(y + row * height)}h{short(across)}" for row in range(1, rows)]
    return sheet + (f'<path d="{"".join(rules)}" stroke="{PAPER}" stroke-width="{short(gap)}"/>' if rules else "")


def short(number: float) -> str:
    """A number with no more digits than a picture needs."""
    return f"{number:.2f}".rstrip("0").rstrip(".")
