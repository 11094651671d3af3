"""SVG primitives: the palette, and text, lines and cells as strings.

Everything is in attributes, with no style sheet, ids or markers, so that several pictures can share one notebook and
every SVG program draws them the same. Grey is what was there, orange what a step adds, blue what it copies: a triple
that people with any kind of colour blindness can tell apart.
"""

from __future__ import annotations

import math
from html import escape

__all__ = [
    "ADD",
    "COPY",
    "EMPTY",
    "FONT",
    "HALO",
    "INK",
    "LINE",
    "MUTED",
    "PAPER",
    "PART",
    "WHOLE",
    "WRONG",
    "arrow",
    "line",
    "short",
    "text",
    "wrapped",
]

PAPER, INK, MUTED, LINE = "#ffffff", "#1c2530", "#66727f", "#dfe4e9"
ADD, COPY = "#c75b00", "#1d62ad"
WRONG = "#a3174f"
EMPTY = "#e9edf1"
FONT = "Inter, 'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"

PART, WHOLE = "#a9b4c0", "#4f5b68"
# Keeps a line behind a label from striking it through.
HALO = {"stroke": PAPER, "stroke_width": "3", "paint_order": "stroke"}


def text(
    x: float, y: float, words: str, *, size: float = 11, fill: str = INK, anchor: str = "start", **more: str
) -> str:
    """Text at a position; `more` are further attributes."""
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


def short(number: float) -> str:
    """A number with no more digits than a picture needs."""
    return f"{number:.2f}".rstrip("0").rstrip(".")


def wrapped(words: str, width: int = 31) -> list[str]:
    """Words broken into lines that fit the margin."""
    lines = [""]
    for word in words.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
