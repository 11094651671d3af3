"""`choreo show`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from choreo.cli.options import json_option, load_option, ranks_option
from choreo.cli.output.table import echo_json
from choreo.cli.schedule_options import Choice, choice_options
from choreo.errors import UsageError, shown


@click.command("show")
@choice_options
@ranks_option
@click.option("--svg", type=click.Path(path_type=Path), metavar="FILE", help="Draw all steps into an SVG file.")
@click.option(
    "--html", type=click.Path(path_type=Path), metavar="FILE", help="Write one self-contained page that animates it."
)
@load_option
@json_option
def command(chosen: Choice, ranks: int | None, svg: Path | None, html: Path | None, as_json: bool) -> None:
    """Show a schedule step by step: who sends what to whom, and what each rank holds after it.

    \b
    choreo show all_reduce --algorithm ring --ranks 4
    choreo show all_reduce --algorithm ring --ranks 8 --html ring.html
    """
    from choreo.show import to_data, to_html, to_svg, to_text

    for file, suffix in ((svg, ".svg"), (html, ".html")):
        if file is not None and str(file) != "-" and file.suffix != suffix:
            raise UsageError(f"{shown(file)}: that picture goes to a file that ends in {suffix}, or to - for stdout")
    schedule = chosen.build(ranks)
    drawn = [(file, draw(schedule)) for file, draw in ((svg, to_svg), (html, to_html)) if file is not None]
    for file, picture in drawn:
        _write(file, picture)
        if not as_json and str(file) != "-":
            click.echo(f"{shown(file)}: {schedule!r}")
    if as_json:
        echo_json(to_data(schedule))
    elif not drawn:
        click.echo(to_text(schedule, color=sys.stdout.isatty()))


def _write(file: Path, content: str) -> None:
    if str(file) == "-":
        click.echo(content)
        return
    try:
        file.write_text(content, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{shown(file)}: cannot be written: {error.strerror}") from None
