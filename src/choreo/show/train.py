"""A training run in figures: its steps, where their time went, and a picture of that beside what was predicted."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from choreo.show.sheet import Sheet, SheetTable
from choreo.train.result import TrainingRun
from choreo.units import format_bytes, format_time

__all__ = ["training_sheet", "training_svg"]

WIDTH, BAR, LEFT, LINE = 760, 26, 90, 18
COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#332288", "#dd7711")


def training_sheet(run: TrainingRun) -> Sheet:
    """The run, its parts measured beside predicted, and every step."""
    predicted, parts = run.predicted_parts, run.parts
    total = sum(parts.values())
    told = tuple(
        (name, format_time(seconds), f"{100 * seconds / total:.1f} %", _time(predicted.get(name)))
        for name, seconds in sorted(parts.items(), key=lambda part: -part[1])
    )
    steps = tuple(
        (
            str(one.step),
            f"{one.loss:.4f}",
            f"{one.tokens_per_s:,.0f}",
            f"{100 * one.mfu:.1f} %",
            format_time(one.time_s),
            _time(one.predicted_s),
        )
        for one in run.steps
    )
    expected = run.predicted_memory_bytes
    memory = format_bytes(run.memory_bytes, binary=False)
    if expected is not None:
        memory += f", predicted {format_bytes(expected, binary=False)}"
    facts = [("step", format_time(run.time_s)), ("memory", memory), ("backend", run.backend)]
    if run.check is not None:
        same = "the same" if run.check["same"] else "not the same"
        facts.append(("check", f"{same} losses as one process, {run.check['error']:.1e} off at most"))
    return Sheet(
        run.summary(),
        tuple(facts),
        (
            SheetTable("where the time went", ("part", "measured", "share", "predicted"), told, (1, 2, 3)),
            SheetTable("steps", ("step", "loss", "tokens/s", "MFU", "time", "predicted"), steps, (0, 1, 2, 3, 4, 5)),
        ),
    )


def training_svg(run: TrainingRun) -> str:
    """Two bars on one scale, the mean step as measured and as predicted, each cut into its parts."""
    bars: dict[str, Mapping[str, float]] = {"measured": run.parts}
    if run.predicted_parts:
        bars["predicted"] = run.predicted_parts
    names = list(dict.fromkeys(name for parts in bars.values() for name, seconds in parts.items() if seconds > 0))
    colors = {name: COLORS[number % len(COLORS)] for number, name in enumerate(names)}
    longest = max(sum(parts.values()) for parts in bars.values())
    scale = (WIDTH - LEFT - 80) / longest
    drawn = []
    for row, (title, parts) in enumerate(bars.items()):
        top, at = 8 + row * (BAR + 10), float(LEFT)
        drawn.append(f'<text x="0" y="{top + BAR - 8}">{title}</text>')
        for name, seconds in parts.items():
            if seconds <= 0:
                continue
            wide = seconds * scale
            drawn.append(
                f'<rect x="{at:.1f}" y="{top}" width="{wide:.1f}" height="{BAR}" fill="{colors[name]}">'
                f"<title>{escape(name)}: {format_time(seconds)}</title></rect>"
            )
            at += wide
        drawn.append(f'<text x="{at + 6:.1f}" y="{top + BAR - 8}">{format_time(sum(parts.values()))}</text>')
    below = 8 + len(bars) * (BAR + 10) + LINE
    for number, name in enumerate(names):
        x, y = LEFT + number % 4 * 165, below + number // 4 * LINE
        drawn.append(f'<rect x="{x}" y="{y - 10}" width="10" height="10" fill="{colors[name]}"/>')
        drawn.append(f'<text x="{x + 15}" y="{y}">{escape(name)}</text>')
    height = below + (len(names) + 3) // 4 * LINE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="12" fill="currentColor">{"".join(drawn)}</svg>'
    )


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_time(seconds)
