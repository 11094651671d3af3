"""`choreo calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from choreo.cli.command import grouped
from choreo.cli.options.common import NewFile, json_option, parsed, rank_range_option
from choreo.cli.output.calibration import ANY_SIZE
from choreo.cli.output.text.table import echo_json
from choreo.cli.recording import Recorded, keep_constants
from choreo.errors import CalibrationError, UsageError, shown
from choreo.units import format_bytes, parse_size

if TYPE_CHECKING:
    from choreo.calibrate import Calibration


@click.command("calibrate", cls=Recorded)
@grouped(
    "What to measure",
    rank_range_option("2,4,8"),
    click.option(
        "--most",
        callback=parsed(parse_size),
        default="16MiB",
        show_default=True,
        metavar="S",
        help="The largest size to measure.",
    ),
    click.option(
        "--rounds", type=int, default=3, show_default=True, metavar="N", help="Rounds; the result is their median."
    ),
    click.option("--device", metavar="KIND", help="Measure compute kernels instead: cpu or cuda."),
)
@grouped(
    "What to keep",
    click.option("--show", is_flag=True, help="Show the stored constants, without measuring."),
    click.option("--dry-run", is_flag=True, help="Measure, but store nothing."),
    click.option("--force", is_flag=True, help="Store a fit even if its error is large."),
    click.option(
        "--output", type=NewFile(stdout=False), metavar="FILE.toml", help="Where to write the results of --device."
    ),
)
@grouped("Output", json_option)
def command(
    *,
    ranks: list[int],
    most: int,
    rounds: int,
    show: bool,
    dry_run: bool,
    force: bool,
    device: str | None,
    output: Path | None,
    as_json: bool,
) -> int:
    """Measure α, β and γ between ranks of this machine, and store them.

    \b
    choreo calibrate
    choreo calibrate --ranks 2,4 --most 1MiB
    choreo calibrate --show
    choreo calibrate --device cpu
    choreo calibrate --device cuda --output my-gpu.toml

    All jobs on this machine then choose their algorithms with these constants. Measure on an idle machine.

    Probes run through the executor. For every number of ranks and band of sizes, the fit minimises the sum of relative
    errors. The error column is the median error of the fit. A band with an error above 50 % is not stored unless
    --force is given; nor is a number of ranks for which more than half of the bands are dropped.

    The file is constants.json under XDG_CACHE_HOME/choreo, or CHOREO_CONSTANTS.

    --device measures compute kernels instead. cuda: by shape, into a file for choreo plan --device. cpu: with one and
    with several ranks, stored beside the constants, for choreo plan --cluster this-machine and choreo train.
    """
    if device == "cpu":
        return measure_processor(output, rounds, as_json, keep=not dry_run, force=force)
    if device not in {None, "cuda"}:
        raise UsageError(f"--device is cpu or cuda, not {device!r}")
    if device is not None:
        measure_device(device, output, as_json)
        return 0
    if output is not None:
        raise UsageError(
            "--output is for what --device measures; constants between ranks are kept where CHOREO_CONSTANTS says"
        )
    return measure_messages(ranks, most, rounds, as_json, show=show, dry_run=dry_run, force=force)


def measure_messages(
    ranks: list[int], most: int, rounds: int, as_json: bool, *, show: bool, dry_run: bool, force: bool
) -> int:
    """Measure what messages between ranks cost, or load what was measured, and print it."""
    import msgspec

    from choreo.calibrate import calibrate
    from choreo.calibrate.calibrate import MAX_ERROR
    from choreo.cli.output.calibration import print_constants
    from choreo.cli.progress import Progress
    from choreo.run.execute.constants import constants_path, load_constants

    refused, left_out = None, ""
    if show:
        constants, kept = load_constants(), constants_path()
        document: object = constants
        where = shown(kept) if constants.host else "defaults, since this machine was never calibrated"
    else:
        with Progress("calibrating") as progress:
            found = calibrate(ranks, most_bytes=most, rounds=rounds, progress=progress)
        document, constants, where = found.to_dict(), found.constants, "not kept"
        keep_constants("this-machine", msgspec.to_builtins(constants))
        try:
            if not dry_run:
                where = f"kept in {shown(found.save(force=force))}"
                left_out = "" if force else _left_out(found)
        except CalibrationError as error:
            refused = error
    if as_json:
        echo_json(document)
    else:
        print_constants(constants, where)
    if refused is not None:
        click.echo(f"choreo: {refused}", err=True)
    if left_out:
        click.echo(
            f"choreo: left out, since the error of the fit is above {100 * MAX_ERROR:.0f} %: {left_out}. They "
            "take the constants of the nearest that is kept; measure again on an idle machine, or keep all "
            "(--force)",
            err=True,
        )
    return 0 if refused is None else 1


def _left_out(found: Calibration) -> str:
    """What is not stored: some numbers of ranks altogether, and some bands of sizes of the others."""
    numbers = [f"{ranks} ranks" for ranks in found.left_out]
    numbers += [
        f"{band.ranks} ranks "
        + ("at larger sizes" if band.to_bytes >= ANY_SIZE else f"up to {format_bytes(band.to_bytes, binary=False)}")
        for band in found.constants.bands
        if band not in found.kept and band.ranks not in found.left_out
    ]
    return ", ".join(numbers)


def measure_device(device: str, output: Path | None, as_json: bool) -> None:
    """Measure a device of this kind ("cuda"), print the errors of the fit, and write FILE.toml and FILE.csv."""
    from choreo.calibrate.device import calibrate_device

    found = calibrate_device(device, output, progress=lambda text: click.echo(text, err=True))
    keep_constants("device", found.to_dict())
    path = None if output is None else output.with_suffix(".toml")
    if as_json:
        echo_json({**found.to_dict(), "file": None if path is None else str(path)})
        return
    click.echo(found.summary())
    click.echo("not kept; give --output FILE.toml" if path is None else f"kept in {shown(path)}")


def measure_processor(output: Path | None, rounds: int, as_json: bool, *, keep: bool, force: bool) -> int:
    """Measure the processor, print what was found, and keep it unless the fit is bad."""
    from choreo.calibrate.device import calibrate_cpu
    from choreo.cli.output.calibration import print_processor

    if output is not None and not output.parent.is_dir():
        raise UsageError(f"{shown(output)} cannot be written: there is no folder {shown(output.parent)}")
    found = calibrate_cpu(rounds=rounds, progress=lambda text: click.echo(text, err=True))
    keep_constants("device", found.to_dict())
    path, refused = None, None
    try:
        path = found.save(output, force=force) if keep else None
    except CalibrationError as error:
        refused = error
    if as_json:
        echo_json({**found.to_dict(), "file": None if path is None else str(path)})
    else:
        print_processor(found)
        click.echo("not kept" if path is None else f"kept in {shown(path)}")
    if refused is not None:
        click.echo(f"choreo: {refused}", err=True)
    return 0 if refused is None else 1
