"""`choreo calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from choreo.cli.options import json_option, parsed
from choreo.cli.output.table import echo_json, echo_table
from choreo.errors import UsageError, shown
from choreo.units import format_bandwidth, format_bytes, format_time, parse_rank_range, parse_size

if TYPE_CHECKING:
    from choreo.run.execute.constants import Constants


@click.command("calibrate")
@click.option(
    "--ranks",
    "-n",
    callback=parsed(parse_rank_range),
    default="2,4,8",
    show_default=True,
    metavar="P,...",
    help="Numbers of ranks to measure.",
)
@click.option(
    "--most",
    callback=parsed(parse_size),
    default="16MiB",
    show_default=True,
    metavar="S",
    help="The largest size to measure.",
)
@click.option("--rounds", type=int, default=3, show_default=True, metavar="N", help="Of which medians are taken.")
@click.option("--show", is_flag=True, help="Show what is kept, without measuring.")
@click.option("--dry-run", is_flag=True, help="Measure, but keep nothing.")
@click.option("--device", metavar="KIND", help="Measure an accelerator that is here instead: cuda.")
@click.option(
    "--output", type=click.Path(path_type=Path), metavar="FILE.toml", help="Where to write what --device measured."
)
@json_option
def command(
    *,
    ranks: list[int],
    most: int,
    rounds: int,
    show: bool,
    dry_run: bool,
    device: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Measure α, β and γ between the ranks of this machine, and keep them for price, bench and every choice.

    \b
    choreo calibrate
    choreo calibrate --ranks 2,4 --most 1MiB
    choreo calibrate --show
    choreo calibrate --device cuda --output my-gpu.toml

    Probes run through the executor itself. For every number of ranks and band of sizes the constants are those that
    explain the probes best, with the least sum of relative errors; the fit column is the median of what is left.
    They are kept in constants.json under XDG_CACHE_HOME/choreo, or where CHOREO_CONSTANTS says. With --device the
    kernels of an accelerator are measured, by shape, and written to a file that choreo plan --device takes.
    """
    if device is not None:
        measure_device(device, output, as_json)
        return
    if output is not None:
        raise UsageError(
            "--output is for what --device measures; constants between ranks are kept where CHOREO_CONSTANTS says"
        )
    if rounds < 1:
        raise UsageError(f"--rounds must be at least 1, not {rounds}")
    from choreo.calibrate.calibrate import calibrate
    from choreo.cli.progress import Progress
    from choreo.run.execute.constants import constants_path, load_constants, save_constants

    if show:
        constants, kept = load_constants(), constants_path()
        where = shown(kept) if constants.host else "defaults, since this machine was never calibrated"
    else:
        with Progress("calibrating") as progress:
            constants, _ = calibrate(ranks, most_bytes=most, rounds=rounds, progress=progress)
        where = "not kept" if dry_run else f"kept in {shown(save_constants(constants))}"
    if as_json:
        echo_json(constants)
    else:
        _print(constants, where)


def _print(constants: Constants, where: str) -> None:
    from rich.table import Table

    if constants.host:
        click.echo(f"{shown(constants.host)}, {constants.cores} cores, {shown(constants.date)}: {where}")
    else:
        click.echo(where)
    table = Table(box=None, pad_edge=False)
    for name in ("ranks", "buffers", "up to", "α", "1/β", "1/γ", "fit"):
        table.add_column(name, justify="left" if name == "buffers" else "right", no_wrap=True)
    for band in constants.bands:
        gamma = band.gamma_s_per_byte
        table.add_row(
            str(band.ranks),
            band.buffers,
            "any" if band.to_bytes >= 1 << 60 else format_bytes(band.to_bytes),
            format_time(band.alpha_s),
            format_bandwidth(band.bandwidth_bytes_per_s),
            format_bandwidth(1 / gamma) if gamma > 1e-15 else "-",
            f"{100 * band.residual:.0f} %" if constants.host else "-",
        )
    echo_table(table, 100)
    for what, rate in constants.rates_bytes_per_s.items():
        click.echo(f"{shown(what)}: {format_bandwidth(rate)} each")


def measure_device(device: str, output: Path | None, as_json: bool) -> None:
    """Measure a device of that kind ("cuda"), print what the fit leaves, and write FILE.toml and FILE.csv if asked."""
    from choreo.calibrate.device import calibrate_device

    found = calibrate_device(device, output, progress=lambda text: click.echo(text, err=True))
    path = None if output is None else output.with_suffix(".toml")
    left = found.errors
    if as_json:
        told = {"device": found.device.name, "kernels": left.kernels, "file": None if path is None else str(path)}
        echo_json({**told, "median_error": left.median, "ninetieth_error": left.ninetieth, "bias": left.bias})
        return
    click.echo(
        f"{shown(found.device.name)}: {left.kernels} kernels, predicted within {left.median:.1%} in the median and "
        f"{left.ninetieth:.1%} for nine in ten"
    )
    click.echo("not kept; give --output FILE.toml" if path is None else f"kept in {shown(path)}")
