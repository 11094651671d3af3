"""The sending rate of each rank over time, for runs with too many ranks or messages to draw each message."""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from choreo.show.simulation.loads import sent_by_line
from choreo.simulate import Simulation
from choreo.topology.graph import Bools, Floats, Ints

__all__ = ["ActivityData", "activity_of", "one_by_one"]

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


def one_by_one(rows: int) -> bool:
    """Whether every message is drawn."""
    return rows <= FEW_ROWS


def activity_of(simulation: Simulation, first_row: Ints, reduce: Bools, bins: int) -> tuple[ActivityData, Floats]:
    """The map, and the bytes a second of all ranks together; `first_row` is the row of each job's first rank."""
    rows, messages = int(first_row[-1]), simulation.messages
    ranks_per_line = -(-rows // MOST_LINES)
    lines = -(-rows // ranks_per_line)
    line_of_row = 2 * (np.arange(rows) // ranks_per_line)
    sender = messages.src if len(simulation.jobs) == 1 else first_row[messages.job] + messages.src
    line_of_kind = np.stack((line_of_row, line_of_row + 1), axis=1).reshape(-1)  # of what a rank copies, and adds
    rate = sent_by_line(simulation, 2 * sender + reduce, line_of_kind, 2 * lines, bins)
    highest = float((rate[::2] + rate[1::2]).max(initial=0.0))
    percent = np.ceil(rate * (100 / highest) if highest else rate).astype(np.int8)
    known: dict[bytes, int] = {}  # lines that send alike share a series
    numbers = [known.setdefault(line.tobytes(), len(known)) for line in percent]
    data: ActivityData = {
        "ranks_per_line": ranks_per_line,
        "highest_bytes_per_s": highest,
        "series": [np.frombuffer(line, np.int8).tolist() for line in known],
        "added": numbers[1::2],
        "copied": numbers[::2],
    }
    return data, rate.sum(axis=0)
