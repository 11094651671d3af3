"""What each rank sends over time, for runs of too many ranks or messages to draw every message."""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from choreo.show.simulation.loads import sent_by_line
from choreo.simulate import Simulation
from choreo.topology.graph import Bools, Ints

__all__ = ["ActivityData", "activity_of"]

# Up to this many ranks, every message is drawn instead.
FEW_ROWS = 24
# A map has at most this many lines; with more ranks, neighbours share one.
MOST_LINES = 128


class ActivityData(TypedDict):
    """The rate at which ranks send, in percent of the highest rate, `highest_bytes_per_s`, of any line.

    A line is `ranks_per_line` neighbouring rows of the diagram. `added` and `copied` give each line the number of its
    series: bytes that receivers add, and bytes that they store. A series has a value for each part of the time.
    """

    ranks_per_line: int
    highest_bytes_per_s: float
    series: list[list[int]]
    added: list[int]
    copied: list[int]


def activity_of(simulation: Simulation, row: Ints, rows: int, reduce: Bools, bins: int) -> ActivityData | None:
    """The map, or nothing where every message can be drawn; `row` is the sender's row, of `rows`, by message."""
    if rows <= FEW_ROWS:
        return None
    ranks_per_line = -(-rows // MOST_LINES)
    lines = -(-rows // ranks_per_line)
    rate = sent_by_line(simulation, 2 * (row // ranks_per_line) + reduce, 2 * lines, bins)
    highest = float((rate[::2] + rate[1::2]).max(initial=0.0))
    percent = np.ceil(rate * (100 / highest) if highest else rate).astype(np.int8)
    known: dict[bytes, int] = {}  # lines that send alike share a series
    numbers = [known.setdefault(line.tobytes(), len(known)) for line in percent]
    return {
        "ranks_per_line": ranks_per_line,
        "highest_bytes_per_s": highest,
        "series": [np.frombuffer(line, np.int8).tolist() for line in known],
        "added": numbers[1::2],
        "copied": numbers[::2],
    }
