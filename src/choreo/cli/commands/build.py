"""`choreo build`."""

from __future__ import annotations

from pathlib import Path

import click

from choreo.cli.options import json_option, load_option, ranks_option
from choreo.cli.output.table import echo_json
from choreo.cli.schedule_options import Choice, choice_options
from choreo.errors import shown


@click.command("build")
@choice_options
@ranks_option
@click.option(
    "--output", "-o", required=True, type=click.Path(path_type=Path), metavar="FILE", help="Write here: .json or .npz."
)
@load_option
@json_option
def command(chosen: Choice, ranks: int | None, output: Path, as_json: bool) -> None:
    """Write a schedule to a file: .json to read and edit by hand, .npz for large ones.

    With --schedule it turns one form into the other.
    """
    from choreo.schedule import save

    schedule = chosen.build(ranks)
    save(schedule, output)
    if as_json:
        echo_json(
            {
                "file": shown(output),
                "collective": schedule.collective,
                "algorithm": schedule.algorithm,
                "ranks": schedule.ranks,
                "root": schedule.root,
                "chunks": schedule.num_chunks,
                "steps": schedule.num_steps,
                "bytes": output.stat().st_size,
            }
        )
    else:
        click.echo(f"{shown(output)}: {schedule!r}")
