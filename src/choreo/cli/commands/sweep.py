"""`choreo sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from choreo.cli.command import Command, grouped
from choreo.cli.options.common import NewFile, json_option, load_option
from choreo.cli.output.text.table import echo_json, echo_note
from choreo.cli.progress import Progress
from choreo.cli.recording import arguments_given, store_option
from choreo.errors import UsageError, shown
from choreo.sweep.axes import AXES, NAMED, Value, values_of
from choreo.units import counted

if TYPE_CHECKING:
    from choreo.sweep.table import Table

SHORT = {"algorithm": ("-a",), "topology": ("-t",), "ranks": ("-p", "-n")}
OPTIONS = tuple(name for name in AXES if name not in NAMED)


@click.command("sweep", cls=Command)
@click.argument("verb")
@click.argument("name", required=False)
@grouped(
    "Axes: values separated by commas; every combination is a case",
    *(
        click.option(
            f"--{name.replace('_', '-')}",
            *SHORT.get(name, ()),
            name,
            metavar=AXES[name].metavar,
            help=AXES[name].help,
        )
        for name in OPTIONS
    ),
    load_option,
)
@grouped(
    "Where to compute",
    click.option("--workers", type=int, metavar="N", help="Processes (as many as there are cores)."),
    click.option("--on", type=click.Choice(["ray"]), help="Compute on a Ray cluster."),
    click.option("--address", metavar="A", help="With --on ray: the cluster (the one that is running)."),
    click.option("--again", is_flag=True, help="Recompute stored cases, too."),
)
@grouped(
    "Output",
    click.option("-o", "--output", type=NewFile(), metavar="FILE", help="A .csv, .parquet or .json file."),
    click.option("--plot", type=NewFile(), metavar="FILE.svg", help="Draw time against size."),
    json_option,
)
def command(
    *,
    verb: str,
    name: str | None,
    workers: int | None,
    on: str | None,
    address: str | None,
    again: bool,
    output: Path | None,
    plot: Path | None,
    as_json: bool,
    **axes: str | None,
) -> None:
    """Run VERB (price, simulate, bound, nccl, plan or bench) for every combination of values, on all cores.

    \b
    choreo sweep simulate all_reduce --algorithm ring,hierarchical,swing \\
        --topology "hgx-h100:1,hgx-h100:4,torus(4x4x4, 45GB/s, 1us)" \\
        --size 8:1GiB -o out.csv
    choreo sweep plan llama3-8b,llama3-70b --cluster hgx-h100,dgx-a100 \\
        --gpus 64,128 --global-batch 256,1024 --seq 8192
    choreo sweep axes.toml --plot time.svg

    NAME is a collective, or several; for plan, models. A TOML file names the verb and the axes instead. Every case is
    stored when it is done, and not computed again: after Ctrl-C the same command resumes where it was.
    """
    from choreo.cli.output.text.files import check_picture, check_stdout
    from choreo.record.ask.export import check_format
    from choreo.sweep.sweep import sweep_cases
    from choreo.sweep.verbs import cases_of

    check_picture(plot, ".svg")
    check_stdout(as_json=as_json, plot=plot)
    if output is not None:
        check_format(output)
    if address is not None and on is None:
        raise UsageError("--address is that of a Ray cluster; give --on ray too")
    verb, found = _asked(verb, name, {option: text for option, text in axes.items() if text is not None})
    cases = cases_of(verb, found)
    context = click.get_current_context()

    try:
        with Progress("sweep") as progress:
            sweep_cases(
                verb,
                cases,
                store=context.meta.get("choreo.store"),
                workers=workers,
                on=on,
                address=address,
                again=again,
                progress=progress,
                argv=arguments_given(context),
                finish=lambda table: _finish(table, as_json, output, plot),
            )
    except KeyboardInterrupt:
        echo_note("choreo: finished cases are stored; run the same command again to resume")
        raise


def _finish(table: Table, as_json: bool, output: Path | None, plot: Path | None) -> list[Path]:
    """Print or write the table, and its picture; the files that were written."""
    from choreo.cli.output.sweep import print_table
    from choreo.cli.output.text.files import on_stdout, write_picture

    _tell_errors(table)
    if as_json:
        echo_json(table.rows)
    elif output is None and plot is None:
        print_table(table)
    if output is not None:
        table.write(output)
        click.echo(f"wrote {shown(output)}: {counted(len(table.rows), 'row')}", err=True)
    if plot is not None:
        from choreo.show.sweep import sweep_svg

        write_picture(plot, sweep_svg(table))
        if not on_stdout(plot):
            click.echo(f"wrote {shown(plot)}", err=True)
    return [file for file in (output, plot) if file is not None and not on_stdout(file)]


def _asked(verb: str, name: str | None, given: dict[str, str]) -> tuple[str, dict[str, list[Value]]]:
    """The verb and the values of its axes, from a TOML file or the command line; options override the file."""
    from choreo.sweep.verbs import get_verb, named_axis

    found = {option: values_of(option, text) for option, text in given.items()}
    if Path(verb).suffix == ".toml":
        from choreo.sweep.file import read_sweep

        if name is not None:
            raise UsageError(f"{shown(verb)} says what to sweep; leave out {name!r}")
        file_verb, axes = read_sweep(verb)
        return file_verb, axes | found
    place = named_axis(verb)
    if name is None:
        example = "all_reduce" if place == "collective" else "llama3-8b"
        raise UsageError(f"say which {place}: choreo sweep {verb} {example} ...; see choreo sweep --help")
    axes = {place: values_of(place, name)} | found
    if missing := [f"--{axis.replace('_', '-')}" for axis in get_verb(verb).needed if axis not in axes]:
        raise UsageError(f"choreo sweep {verb} needs {' and '.join(missing)} too; give one value, or several")
    return verb, axes


def _tell_errors(table: Table) -> None:
    """Say once why rows have no figures; if none has any, that is the answer."""
    errors = [error for error in table.get("error", ()) if error is not None]
    if errors and len(errors) == len(table.rows):
        raise UsageError(errors[0])
    for error in dict.fromkeys(errors):
        echo_note(f"left out: {error}")


command.params.append(store_option())
