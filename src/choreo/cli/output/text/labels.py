"""Algorithms as the rows of a table name them; a line above the table gives their axes in full."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from choreo.cli.output.text.table import echo_line
from choreo.errors import shown

__all__ = ["axes_lines", "print_axes", "row_label"]


class Labelled(Protocol):
    """A price, a simulation, or a range of sizes."""

    @property
    def algorithm(self) -> str:
        """The algorithm's name."""

    @property
    def axes(self) -> str | None:
        """The axes it was built along: `8x4:direct,ring`."""


def row_label(result: Labelled) -> str:
    """The algorithm and the sizes of its axes, which is short enough for a row: `hierarchical 8x4`."""
    return shown(result.algorithm if result.axes is None else f"{result.algorithm} {result.axes.partition(':')[0]}")


def axes_lines(rows: Iterable[Labelled]) -> list[str]:
    """What runs along the axes of the rows that have any: a line for each axes, with every algorithm once."""
    along: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.axes is not None:
            along.setdefault(row.axes, {})[row.algorithm] = None
    return [
        shown(f"{' and '.join(names)} {'run' if len(names) > 1 else 'runs'} along {axes}")
        for axes, names in along.items()
    ]


def print_axes(rows: Iterable[Labelled]) -> None:
    """Print these lines."""
    for line in axes_lines(rows):
        echo_line(line)
