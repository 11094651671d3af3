"""`choreo build`."""

from __future__ import annotations

from pathlib import Path

import click

from choreo.cli.command import Command, grouped
from choreo.cli.options.common import NewFile, json_option
from choreo.cli.options.schedule import ScheduleOptions, made_for, schedule_options
from choreo.cli.output.text.table import echo_json
from choreo.cli.progress import waiting
from choreo.errors import shown


@click.command("build", cls=Command)
@schedule_options()
@made_for
@grouped(
    "Output",
    click.option(
        "--output",
        "-o",
        required=True,
        type=NewFile(stdout=False),
        metavar="FILE",
        help="Write here: .json, .npz or .xml.",
    ),
    click.option("--format", "form", metavar="FORMAT", help="For another tool: msccl (.xml) or mscclpp (.json)."),
    json_option,
)
def command(
    *,
    chosen: ScheduleOptions,
    ranks: int | None,
    topology: str | None,
    size: int | None,
    output: Path,
    form: str | None,
    as_json: bool,
) -> None:
    """Write a schedule to a file: .json to read and edit by hand, .npz for large ones, or for another tool.

    \b
    choreo build all_reduce --algorithm ring --ranks 8 --output ring.json
    choreo build --schedule ring.json --output ring.npz
    choreo build all_reduce -a ring -p 8 --format msccl --output ring.xml
    choreo build all_gather -a synthesized -t dgx-1 --size 1MiB --output made.json

    With --schedule it turns one form into the other.
    """
    from choreo.schedule import save
    from choreo.schedule.files import written_as

    foreign = written_as(output, form)
    schedule = chosen.build(ranks, topology, size, relays=foreign is None)
    with waiting(f"writing {shown(output)}"):
        save(schedule, output, form)
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
        click.echo(f"wrote {shown(output)}: {schedule.summary()}")
