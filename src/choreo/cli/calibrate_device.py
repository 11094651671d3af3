"""`choreo calibrate --device`: measure the accelerator that is here and write a file that `choreo plan` reads."""

from __future__ import annotations

from pathlib import Path

import click

from choreo.cli.options import echo_json
from choreo.errors import shown

__all__ = ["measure_device"]


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
