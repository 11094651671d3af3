"""Pictures of a step, measured above predicted on one scale: what took the time, and what each rank did when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from choreo.train.result import TrainingRun
from choreo.units import format_time

__all__ = ["training_svg"]

WIDTH, LEFT, RIGHT = 760, 90, 80
BAR, ROW, GAP, LINE = 26, 18, 10, 18
COLORS = ("#ee6677", "#ccbb44", "#aa3377", "#dd7711", "#66ccee", "#332288", "#bbbbbb")
PASSES = {"F": ("forward", "#4477aa"), "B": ("backward", "#228833"), "W": ("weight gradients", "#99cc99")}
COMPUTE = "#6688aa"
MOST_ROWS = 16
LEAST_TEXT = 14  # pixels that the number of a micro-batch needs


def training_svg(run: TrainingRun) -> str:
    """Bars of the median step's parts, and the timeline of the last step, each as measured and as predicted."""
    bars: dict[str, Mapping[str, float]] = {"measured": run.parts}
    if run.predicted_parts:
        bars["predicted"] = run.predicted_parts
    lines = {"rank": run.timeline, "stage": run.predicted_timeline if run.timeline else ()}
    longest = max(
        *(sum(parts.values()) for parts in bars.values()),
        *(span["end_s"] for spans in lines.values() for span in spans),
        1e-9,
    )
    drawing = _Drawing((WIDTH - LEFT - RIGHT) / longest)
    for title, parts in bars.items():
        drawing.bar(title, parts)
    for whose, spans in lines.items():
        if spans:
            drawing.timeline(whose, spans)
    return drawing.finished()


class _Drawing:
    """Rows from the top down, and below them what the colours mean."""

    def __init__(self, pixels_per_s: float) -> None:
        self._scale = pixels_per_s
        self._drawn: list[str] = []
        self._top = 8
        self._colors: dict[str, str] = {}

    def bar(self, title: str, parts: Mapping[str, float]) -> None:
        """A bar cut into parts."""
        at_s = 0.0
        self._label(title, self._top + BAR - 8)
        for name, seconds in parts.items():
            if seconds > 0:
                self._box(name, at_s, at_s + seconds, BAR, f"{name}: {format_time(seconds)}")
                at_s += seconds
        x = LEFT + at_s * self._scale + 6
        self._drawn.append(f'<text x="{x:.1f}" y="{self._top + BAR - 8}">{format_time(at_s)}</text>')
        self._top += BAR + GAP

    def timeline(self, whose: str, spans: Iterable[Mapping[str, Any]]) -> None:
        """A row for each rank (as measured) or stage (as predicted)."""
        rows: dict[int, list[Mapping[str, Any]]] = {}
        for span in spans:
            rows.setdefault(span[whose], []).append(span)
        self._top += GAP
        what = "the last step, as measured" if whose == "rank" else "the same step, as predicted"
        self._drawn.append(f'<text x="0" y="{self._top + 10}" font-weight="bold">{what}</text>')
        self._top += ROW
        for number in sorted(rows)[:MOST_ROWS]:
            self._row(f"{whose} {number}", rows[number])
        if len(rows) > MOST_ROWS:
            self._label(f"and {len(rows) - MOST_ROWS} more", self._top + ROW - 5)
            self._top += ROW

    def _row(self, title: str, spans: Sequence[Mapping[str, Any]]) -> None:
        self._label(title, self._top + ROW - 5)
        # Communication that a pass waits for lies on top of it.
        for span in sorted(spans, key=lambda span: (span["name"] not in PASSES, span["start_s"])):
            name, start_s, end_s = PASSES.get(span["name"], (span["name"],))[0], span["start_s"], span["end_s"]
            about = f"{name} of micro-batch {span['micro_batch']}" if span["name"] in PASSES else name
            self._box(name, start_s, end_s, ROW - 2, f"{about}: {format_time(end_s - start_s)}")
            if span["name"] in PASSES and (end_s - start_s) * self._scale >= LEAST_TEXT:
                x = LEFT + (start_s + end_s) / 2 * self._scale
                text = f'x="{x:.1f}" y="{self._top + ROW - 6}" text-anchor="middle" font-size="10" fill="#ffffff"'
                self._drawn.append(f"<text {text}>{span['micro_batch']}</text>")
        self._top += ROW

    def _label(self, text: str, y: float) -> None:
        self._drawn.append(f'<text x="0" y="{y}">{escape(text)}</text>')

    def _box(self, name: str, start_s: float, end_s: float, high: int, about: str) -> None:
        x, wide = LEFT + start_s * self._scale, (end_s - start_s) * self._scale
        self._drawn.append(
            f'<rect x="{x:.1f}" y="{self._top}" width="{max(wide, 0.3):.1f}" height="{high}" '
            f'fill="{self._color(name)}"><title>{escape(about)}</title></rect>'
        )

    def _color(self, name: str) -> str:
        if name not in self._colors:
            fixed = dict(PASSES.values()) | {"compute": COMPUTE}
            free = sum(known not in fixed for known in self._colors)
            self._colors[name] = fixed.get(name, COLORS[free % len(COLORS)])
        return self._colors[name]

    def finished(self) -> str:
        """The picture, with a legend."""
        below = self._top + LINE
        for number, (name, color) in enumerate(self._colors.items()):
            x, y = LEFT + number % 4 * 165, below + number // 4 * LINE
            self._drawn.append(f'<rect x="{x}" y="{y - 10}" width="10" height="10" fill="{color}"/>')
            self._drawn.append(f'<text x="{x + 15}" y="{y}">{escape(name)}</text>')
        height = below + (len(self._colors) + 3) // 4 * LINE
        size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        style = 'font-family="sans-serif" font-size="12" fill="currentColor"'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(self._drawn)}</svg>'
