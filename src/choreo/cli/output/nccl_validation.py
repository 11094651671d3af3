"""Print predicted against measured times of NCCL, row by row and table by table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from choreo.cli.output.text.table import Column, echo_json, echo_table
from choreo.errors import shown
from choreo.units import format_bytes, format_time

if TYPE_CHECKING:
    from choreo.validate.nccl import TableError

__all__ = ["print_validation"]

MOST_SKIPPED = 100  # rows that are named one by one


def print_validation(path: Path, *, leave_one_out: bool, as_json: bool) -> None:
    """Every row, then the mean absolute percentage errors of each table below 1 MiB, as it stands and after one latency
    offset, and from 1 MiB up."""
    from choreo.validate.nccl import validate

    found = validate(path)
    left = _left_out(path) if leave_one_out else []
    if as_json:
        extra = {"leave_one_out": left} if leave_one_out else {}
        echo_json(found.to_dict() | {"tables": found.tables} | extra)
        return
    echo_table(
        [
            Column("table", 1, left=True),
            Column("collective", 2, left=True),
            Column("GPUs"),
            Column("size"),
            Column("measured"),
            Column("predicted"),
            Column("error"),
            Column("NCCL's choice", 3, left=True),
        ],
        [
            [
                shown(row.table_id),
                row.collective,
                str(row.n_gpus),
                format_bytes(row.size_bytes),
                format_time(row.measured_s),
                format_time(row.predicted_s),
                f"{100 * row.error:+.1f} %",
                f"{row.algorithm} {row.protocol}",
            ]
            for row in found.rows
        ],
    )
    for skip in found.skipped[:MOST_SKIPPED]:
        click.echo(f"skipped {shown(skip.row)}: {skip.reason}")
    if len(found.skipped) > MOST_SKIPPED:
        click.echo(f"skipped {len(found.skipped) - MOST_SKIPPED} more; --json lists all")
    click.echo()
    _print_tables("mean absolute percentage error", list(found.tables))
    if leave_one_out:
        click.echo()
        _print_tables("fitted to the other tables only", left)


def _left_out(path: Path) -> list[TableError]:
    from choreo.validate.nccl import leave_one_out

    return [fold.table for fold in leave_one_out(path)]


def _print_tables(title: str, tables: list[TableError]) -> None:
    from choreo.validate.errors import mean

    sides = ("mape_below_1MiB", "mape_below_1MiB_after_offset", "mape_from_1MiB")
    rows = []
    for table in tables:
        errors = [_percent(getattr(table, side)) for side in sides]
        offset = format_time(table.offset_s) if table.mape_below_1MiB is not None else ""
        rows.append([shown(table.table_id), str(table.rows), errors[0], errors[1], offset, errors[2]])
    means = [mean(getattr(table, side) for table in tables) for side in sides]
    rows.append(["mean over tables", "", _percent(means[0]), _percent(means[1]), "", _percent(means[2])])
    click.echo(title)
    echo_table(
        [
            Column("table", left=True),
            Column("rows", 3),
            Column("below 1 MiB"),
            Column("after one offset", 1),
            Column("the offset", 2),
            Column("1 MiB and up"),
        ],
        rows,
        styles=[*[None] * len(tables), "bold"],
    )


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"
