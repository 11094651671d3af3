"""The constants of a machine as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from choreo.cli.output.table import Column, echo_table
from choreo.errors import shown
from choreo.units import format_bandwidth, format_bytes, format_time

if TYPE_CHECKING:
    from choreo.run.execute.constants import Constants

__all__ = ["print_constants"]

ANY_SIZE = 1 << 60


def print_constants(constants: Constants, where: str) -> None:
    """Print alpha, beta and gamma of each band of sizes; `where` says where they are kept."""
    if constants.host:
        click.echo(f"{shown(constants.host)}, {constants.cores} cores, {shown(constants.date)}: {where}")
    else:
        click.echo(where)
    rows = []
    for band in constants.bands:
        gamma = band.gamma_s_per_byte
        rows.append(
            [
                str(band.ranks),
                band.buffers,
                "any" if band.to_bytes >= ANY_SIZE else format_bytes(band.to_bytes),
                format_time(band.alpha_s),
                format_bandwidth(band.bandwidth_bytes_per_s),
                format_bandwidth(1 / gamma) if gamma > 1e-15 else "-",
                f"{100 * band.residual:.0f} %" if constants.host else "-",
            ]
        )
    echo_table(
        [
            Column("ranks"),
            Column("buffers", left=True),
            Column("up to"),
            Column("α"),
            Column("1/β"),
            Column("1/γ"),
            Column("error", 1),
        ],
        rows,
    )
    for what, rate in constants.rates_bytes_per_s.items():
        click.echo(f"{shown(what)}: {format_bandwidth(rate)} each")
