"""Print the table of a sweep: what varies, and the figures that matter most."""

from __future__ import annotations

from typing import Any

import click

from choreo.cli.output.text.table import Column, echo_line, echo_table
from choreo.sweep.layout import constant, varying
from choreo.sweep.table import Table
from choreo.units import counted, format_bandwidth, format_bytes, format_time

__all__ = ["cell", "print_table"]

MOST_ROWS = 200
QUIET = (
    "gamma",
    "store_and_forward",
    "ports",
    "alpha",
    "bandwidth",
    "precision",
    "software",
    "device",
    "datatype",
    "op",
)
# Name of the figure, and how soon it is left out where there is no room.
FIGURES = {
    "plan": 0,
    "total_s": 0,
    "step_time_s": 0,
    "time_s": 0,
    "bound_s": 2,
    "efficiency": 4,
    "busbw_bytes_per_s": 3,
    "predicted_s": 1,
    "alpha_s": 5,
    "beta_s": 5,
    "gamma_s": 5,
    "protocol": 3,
    "channels": 4,
    "mfu": 2,
    "memory_bytes": 3,
    "fits": 4,
    "bottleneck": 5,
    "axes": 6,
}
TITLES = {
    "size_bytes": "size",
    "total_s": "time",
    "time_s": "time",
    "step_time_s": "step",
    "memory_bytes": "memory",
    "mfu": "MFU",
}


def print_table(table: Table) -> None:
    """Print what all rows share in a line, and then the rows."""
    same = {name: value for name, value in constant(table).items() if value is not None and name not in QUIET}
    head = ", ".join(f"{_title(name)} {cell(name, value)}" for name, value in same.items() if name != "collective")
    what = str(same.get("collective", ""))
    kept = [row for row in table.rows if row.get("error") is None]
    echo_line(f"{counted(len(kept), 'case')}{' of ' + what if what else ''}{': ' + head if head else ''}")
    click.echo()
    names = [name for name in varying(table) if name != "axes"]
    figures = [name for name in FIGURES if name in table and name not in names]
    columns = [Column(_title(name), left=isinstance(table[name][0], str)) for name in names]
    columns += [Column(_title(name), FIGURES[name], left=isinstance(table[name][0], str)) for name in figures]
    rows = [[cell(name, row[name]) for name in (*names, *figures)] for row in kept]
    echo_table(columns, rows[:MOST_ROWS])
    if len(rows) > MOST_ROWS:
        click.echo(f"... and {len(rows) - MOST_ROWS} more rows; -o FILE.csv writes all")


def cell(name: str, value: Any) -> str:  # noqa: PLR0911 - one return for each unit
    """A value as people write it, by the unit in its name."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    if name.endswith("_bytes_per_s") or name == "bandwidth":
        return format_bandwidth(value)
    if name.endswith("_bytes"):
        return format_bytes(value, binary=False if name == "memory_bytes" else None)
    if name.endswith("_s") or name == "alpha":
        return format_time(value)
    if name in ("efficiency", "mfu", "hfu"):
        return f"{100 * value:.1f} %"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _title(name: str) -> str:
    if name in TITLES:
        return TITLES[name]
    return name.removesuffix("_bytes_per_s").removesuffix("_s").replace("_", " ")
