"""A sweep as a sheet, and its picture: time against size, a curve for each algorithm, a panel for each network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from choreo.errors import UsageError
from choreo.show.drawing import FONT, INK, LINE, MUTED, PAPER, line, text
from choreo.show.sheet import Sheet, sheet_html, sheet_page
from choreo.show.values import labels, result_sheet, value_words
from choreo.sweep.layout import ALONG, IDENTITY, constant, varying
from choreo.sweep.table import Table
from choreo.units import counted, format_bytes, format_time

__all__ = ["sweep_cell", "sweep_page", "sweep_sheet", "sweep_svg"]

WIDE, HIGH = 340, 240  # of a panel
LEFT, TOP, BETWEEN, BELOW = 62, 34, 70, 40
# Colours that people with any kind of colour blindness tell apart (Okabe and Ito's, the yellow left out).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#4f5b68", "#a3174f")
STROKE = 1.6
DASHES = ("", "6 3", "2 2")
APART = ("topology", "collective", "cluster", "model")  # what has panels of its own; ranks, too, beside algorithms
MOST_PANELS, MOST_CURVES = 24, 24

Point = tuple[float, float]


def sweep_sheet(table: Table) -> Sheet:
    """What all cases share as facts, and a row for each case with the rest."""
    same = {name: value for name, value in constant(table).items() if value is not None}
    facts = tuple(zip(labels(same), (value_words(name, value) for name, value in same.items()), strict=True))
    names = [*varying(table), *(name for name in table if name not in IDENTITY)]
    cases = result_sheet([{name: row[name] for name in names} for row in table.rows])
    return Sheet(counted(len(table.rows), "case"), facts, cases.tables)


# Without the picture, as many sweeps have nothing to draw along.
def sweep_cell(table: Table) -> str:
    """A sweep in a notebook."""
    return sheet_html(sweep_sheet(table))


def sweep_page(table: Table) -> str:
    """A sweep as a page."""
    return sheet_page(sweep_sheet(table))


def sweep_svg(table: Table) -> str:
    """A sweep as SVG, both axes logarithmic.

    >>> rows = [{"algorithm": "ring", "size_bytes": 8 << k, "time_s": 1e-6 * (k + 1)} for k in range(4)]
    >>> sweep_svg(Table(rows)).startswith("<svg")
    True
    """
    differing = varying(table)
    along = next((name for name in ALONG if name in differing), None)
    if along is None:
        raise UsageError(f"there is nothing to draw along; give several values of {', '.join(ALONG)}")
    curves = _curves(table, along, [name for name in differing if name != along])
    panels = list(dict.fromkeys(panel for panel, _ in curves))
    names = list(dict.fromkeys(curve for _, curve in curves))
    if len(panels) > MOST_PANELS or len(names) > MOST_CURVES:
        raise UsageError(
            f"that would be {counted(len(panels), 'panel')} with {counted(len(names), 'curve')}; at most {MOST_PANELS} "
            f"and {MOST_CURVES} are drawn, so sweep fewer values for a picture"
        )
    points = [point for part in curves.values() for point in part]
    if not points:
        raise UsageError("there is nothing to draw: no row has a time and a size above zero")
    across = min(3, len(panels))
    down = math.ceil(len(panels) / across)
    legend = 18 * len(names) if len(names) > 1 else 0
    width, height = LEFT + across * (WIDE + BETWEEN), down * (TOP + HIGH + BELOW) + legend + 8
    parts = []
    spans = [_span([x for x, _ in points]), _span([y for _, y in points])]
    for place, panel in enumerate(panels):
        left, top = LEFT + place % across * (WIDE + BETWEEN), TOP + place // across * (TOP + HIGH + BELOW)
        parts += _frame(left, top, panel, spans, along)
        ways = [_way(curves.get((panel, name), []), left, top, spans) for name in names]
        for number, way in enumerate(ways):
            parts += _curve(way, number, covered=ways[number + 1 :].count(way))
    for number, name in enumerate(names if legend else ()):
        y = height - legend + 18 * number
        parts.append(_stroke(f"M{LEFT} {y}h24", number))
        parts.append(text(LEFT + 30, y + 4, name))
    body = "".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="{FONT}"><rect width="{width}" height="{height}" fill="{PAPER}"/>{body}</svg>\n'
    )


def _curves(table: Table, along: str, others: Sequence[str]) -> dict[tuple[str, str], list[Point]]:
    """The points of each curve of each panel."""
    apart = [name for name in others if name in APART]
    within = [name for name in others if name not in APART and name in IDENTITY and name != "axes"]
    if "topology" in apart and "ranks" in within and _follows(table, "ranks", "topology"):
        within.remove("ranks")
    elif "algorithm" in within and "ranks" in within:
        within.remove("ranks")
        apart.append("ranks")
    found: dict[tuple[str, str], list[Point]] = {}
    for row in table.rows:
        x, y = row[along], row.get(table.time)
        if isinstance(y, int | float) and y > 0 and x > 0:
            key = (_label(row, apart), _label(row, within) or table.time)
            found.setdefault(key, []).append((float(x), float(y)))
    return {key: sorted(points) for key, points in found.items()}


def _follows(table: Table, name: str, other: str) -> bool:
    """Whether one column is known from the other."""
    return len(set(zip(table[other], table[name], strict=True))) == len(set(table[other]))


def _label(row: dict[str, Any], names: Sequence[str]) -> str:
    values = [(name, row[name]) for name in names if row[name] is not None]
    return ", ".join(str(value) if isinstance(value, str) else f"{name} {value}" for name, value in values)


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = math.log10(min(values)), math.log10(max(values))
    room = max(0.02, 0.05 * (high - low))
    return low - room, high + room


def _place(point: Point, left: float, top: float, spans: Sequence[tuple[float, float]]) -> Point:
    (x0, x1), (y0, y1) = spans
    x = left + (math.log10(point[0]) - x0) / (x1 - x0) * WIDE
    return x, top + HIGH - (math.log10(point[1]) - y0) / (y1 - y0) * HIGH


def _way(points: Sequence[Point], left: float, top: float, spans: Sequence[tuple[float, float]]) -> str:
    """The points of a curve as the path of an SVG has them, so that curves that look the same are the same."""
    return "L".join(f"{x:.1f} {y:.1f}" for x, y in (_place(point, left, top, spans) for point in points))


def _curve(way: str, number: int, covered: int) -> list[str]:
    """A curve and its points; one that others cover is wider, so that its colour is seen on both sides of theirs."""
    points = [point.split() for point in way.split("L")] if way else []
    dots = [f'<circle cx="{x}" cy="{y}" r="2" fill="{COLOURS[number % len(COLOURS)]}"/>' for x, y in points]
    return [_stroke(f"M{way}", number, STROKE * (1 + 2 * covered)), *dots] if way else []


def _stroke(way: str, number: int, wide: float = STROKE) -> str:
    dash = DASHES[number // len(COLOURS) % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    colour = COLOURS[number % len(COLOURS)]
    return f'<path d="{way}" fill="none" stroke="{colour}" stroke-width="{wide:.2g}"{dashed}/>'


def _frame(left: float, top: float, title: str, spans: Sequence[tuple[float, float]], along: str) -> list[str]:
    parts = [text(left, top - 10, title, size=12, font_weight="600")] if title else []
    parts.append(text(left - 6, top - 10, "time", fill=MUTED, anchor="end", size=10))
    parts.append(text(left + WIDE, top + HIGH + 30, *labels({along: 0}), fill=MUTED, anchor="end", size=10))
    (x0, x1), (y0, y1) = spans
    for value in _times(y0, y1):
        y = _place((10**x0, value), left, top, spans)[1]
        parts.append(line(left, y, left + WIDE, y, stroke=LINE))
        parts.append(text(left - 6, y + 4, format_time(value), fill=MUTED, anchor="end", size=10))
    for value in _ticks(x0, x1, along):
        x = _place((value, 10**y0), left, top, spans)[0]
        parts.append(line(x, top, x, top + HIGH, stroke=LINE))
        label = format_bytes(value) if along == "size_bytes" else f"{value:g}"
        parts.append(text(x, top + HIGH + 16, label, fill=MUTED, anchor="middle", size=10))
    parts.append(f'<rect x="{left}" y="{top}" width="{WIDE}" height="{HIGH}" fill="none" stroke="{INK}"/>')
    return parts


def _times(low: float, high: float) -> list[float]:
    """Round times: powers of ten, or also twice and five times these where there are few."""
    powers = range(math.floor(low), math.floor(high) + 1)
    for steps in ((1,), (1, 2, 5), range(1, 10)):
        found = [step * 10.0**power for power in powers for step in steps if low <= math.log10(step) + power <= high]
        if len(found) > 2:
            break
    return found


def _ticks(low: float, high: float, along: str) -> list[float]:
    """Round values: powers of two, so few that their labels have room."""
    room = (high - low) / 24  # beyond the data, as `_span` left it
    first, last = math.ceil((low + room) / math.log10(2)), math.floor(high / math.log10(2))
    step = max(1, math.ceil((last - first + 1) / (5 if along == "size_bytes" else 8)))
    return [2.0**power for power in range(first, last + 1, step)]
