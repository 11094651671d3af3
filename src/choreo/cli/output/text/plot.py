"""Prices against size as a plot of characters, both axes logarithmic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from choreo.errors import shown
from choreo.units import format_bytes, format_time

__all__ = ["plot"]

MARKS = "●○◆◇■□▲△"
HEIGHT = 14


def plot(sizes: Sequence[float], times: Mapping[str, Sequence[float]], winners: Sequence[str]) -> list[str]:
    """Lines of a plot of each algorithm's time at each size; where curves meet, the winner's mark is on top.

    Of other curves that meet, the first is on top. `winners[i]` is the cheapest algorithm at sizes[i]. There is one
    column per size.
    """
    # The plot is about who wins, so it reaches only a little above the winners' curves.
    best = [times[name][column] for column, name in enumerate(winners)]
    low, high = math.log10(min(best)), math.log10(max(best))
    high = max(high, low + 0.5) + 0.25 * max(high - low, 1.0) / 2
    marks = {name: MARKS[index % len(MARKS)] for index, name in enumerate(times)}
    grid = [[" "] * len(sizes) for _ in range(HEIGHT)]
    for column, winner in enumerate(winners):
        for name in [*(n for n in reversed([*times]) if n != winner), winner]:
            row = round((math.log10(times[name][column]) - low) / (high - low) * (HEIGHT - 1))
            if 0 <= row < HEIGHT:
                grid[row][column] = marks[name]
    ticks = {HEIGHT - 1: high, HEIGHT // 2: low + (high - low) * (HEIGHT // 2) / (HEIGHT - 1), 0: low}
    lines = []
    for row in reversed(range(HEIGHT)):
        label = format_time(10 ** ticks[row]) if row in ticks else ""
        lines.append(f"{label:>9} │{''.join(grid[row])}".rstrip())
    lines.append(" " * 10 + "└" + "─" * len(sizes))
    first, last = format_bytes(sizes[0]), format_bytes(sizes[-1])
    lines.append(" " * 11 + first + " " * max(1, len(sizes) - len(first) - len(last)) + last)
    lines.append("")
    drawn = {mark for row in grid for mark in row}  # a curve that lies under others all the way needs no legend
    lines.extend(f"{'':>11}{mark} {shown(name)}" for name, mark in marks.items() if mark in drawn)
    return lines
