"""Print a calibration as tables: the constants of messages, and the kernels of the processor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from choreo.cli.output.text.table import Column, echo_table
from choreo.errors import shown
from choreo.units import format_bandwidth, format_bytes, format_count, format_time

if TYPE_CHECKING:
    from choreo.calibrate.device import CpuCalibration
    from choreo.run.execute.constants import Constants

__all__ = ["ANY_SIZE", "print_constants", "print_processor"]

ANY_SIZE = 1 << 60  # a band up to here has no end
KINDS = ("elementwise", "norm", "softmax", "activation", "optimizer")  # of memory-bound kernels, the most telling


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


def print_processor(found: CpuCalibration) -> None:
    """Print what one rank gets of the processor, for each number of ranks that computed at once."""
    click.echo(found.summary())
    shared = found.cpu.shared
    click.echo(f"\neach of {', '.join(str(group.ranks) for group in shared)} ranks at once on {found.cores} cores:")
    rows = [
        [f"matmuls, {precision}", *(f"{format_count(group.products[precision].peak_flops)}FLOP/s" for group in shared)]
        for precision in shared[0].products
    ]
    for kind in KINDS:
        for number, size in enumerate(shared[0].memory[kind].at_bytes):
            rates = [group.memory_bandwidth_bytes_per_s * group.memory[kind].share[number] for group in shared]
            rows.append([f"{kind}, {format_bytes(size)}", *(format_bandwidth(rate) for rate in rates)])
    rows.append(["an operator of a layer", *(format_time(group.operator_s) for group in shared)])
    echo_table([Column("", left=True), *(Column(f"{group.ranks} at once") for group in shared)], rows)
    click.echo(f"a collective in a layer, beside its bytes: {format_time(found.collective_s)}")
