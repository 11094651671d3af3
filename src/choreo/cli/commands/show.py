"""`choreo show`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from choreo.cli.command import Command, grouped
from choreo.cli.options.common import json_option
from choreo.cli.options.schedule import ScheduleOptions, made_for, schedule_options
from choreo.cli.output.text.files import check_picture, check_stdout, on_stdout, write_picture
from choreo.cli.output.text.table import echo_json
from choreo.errors import shown


@click.command("show", cls=Command)
@schedule_options()
@made_for
@grouped(
    "Output",
    click.option(
        "--html",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write a self-contained page that animates it.",
    ),
    click.option("--svg", type=click.Path(path_type=Path), metavar="FILE", help="Draw all steps into an SVG file."),
    json_option,
)
def command(
    *,
    chosen: ScheduleOptions,
    ranks: int | None,
    topology: str | None,
    size: int | None,
    svg: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Draw a schedule step by step: who sends what to whom, and what each rank then holds.

    \b
    choreo show all_reduce --algorithm ring --ranks 4
    choreo show all_reduce --algorithm ring --ranks 8 --html ring.html
    """
    from choreo.show import to_data, to_html, to_svg, to_text

    check_picture(svg, ".svg")
    check_picture(html, ".html")
    check_stdout(as_json=as_json, svg=svg, html=html)
    schedule = chosen.build(ranks, topology, size)
    drawn = [(file, draw(schedule)) for file, draw in ((svg, to_svg), (html, to_html)) if file is not None]
    for file, picture in drawn:
        write_picture(file, picture)
        if not as_json and not on_stdout(file):
            click.echo(f"wrote {shown(file)}: {schedule.summary()}")
    if as_json:
        echo_json(to_data(schedule))
    elif not drawn:
        click.echo(to_text(schedule, color=sys.stdout.isatty()))
