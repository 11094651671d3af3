"""`choreo trace`: record, summarise and convert traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from choreo.cli.command import Command, grouped
from choreo.cli.options.common import json_option, size_option
from choreo.cli.options.schedule import ScheduleOptions, schedule_options, trusted
from choreo.cli.output.text.table import echo_json, echo_note
from choreo.errors import UsageError
from choreo.units import counted

if TYPE_CHECKING:
    from choreo.trace import Trace
    from choreo.workload.execution import ExecutionGraph

FORMATS = ("chakra", "goal")
files_argument = click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
ranks_option = click.option(
    "--ranks", type=int, metavar="N", help="Number of ranks, if only the trace of one rank is given."
)
groups_option = click.option(
    "--groups",
    type=click.Path(path_type=Path),
    metavar="FILE.json",
    help='The ranks of each group: {"1": [0, 2]}. A file next to the trace is found by itself.',
)
output_option = click.option(
    "--output", "-o", type=click.Path(path_type=Path), required=True, metavar="FILE", help="Where to write."
)
format_option = click.option(
    "--format", "format_", type=click.Choice(FORMATS), default="chakra", help="chakra (a file per rank), or goal."
)
algorithm_option = click.option(
    "--algorithm",
    "-a",
    metavar="RULE",
    help="Cut collectives into messages: by ring, by suggested, or all_reduce=ring,all_gather=direct.",
)


@click.group("trace")
def command() -> None:
    """Record, inspect and convert traces of training steps.

    \b
    choreo trace info traces/                    # the files of all ranks
    choreo trace info step_et.json step_kineto.json
    choreo trace record -o traces -- torchrun --nproc-per-node 2 train.py
    choreo trace convert traces/ -o step.goal --format goal --algorithm ring
    choreo trace export all_reduce -a ring --ranks 8 --size 1MiB -o ring
    choreo simulate --workload traces/ --topology hgx-h100:2

    FILES are one file per rank, a folder, or the common prefix of their names. The format is recognized by content:
    PyTorch's profiler and execution traces, Chakra (.et and JSON), the text workloads of ASTRA-sim and SimAI. All take
    --json.
    """


@command.command("info", cls=Command, short_help="Print the collectives of a trace, their times, and what was exposed.")
@files_argument
@grouped("Reading", ranks_option, groups_option, json_option)
def info(files: tuple[Path, ...], ranks: int | None, groups: Path | None, as_json: bool) -> None:
    """Summarise a trace: its collectives, their times, and the exposed share of them."""
    from choreo.cli.output.trace import print_info
    from choreo.trace.info import trace_info

    found = trace_info(read(files, ranks, groups))
    if as_json:
        echo_json(found.to_dict())
    else:
        print_info(found)


@command.command("import", cls=Command, short_help="Read a trace, repair it if possible, and write it as Chakra.")
@files_argument
@grouped("Reading", ranks_option, groups_option)
@grouped("Output", output_option, json_option)
def import_(files: tuple[Path, ...], ranks: int | None, groups: Path | None, output: Path, as_json: bool) -> None:
    """Read a trace, repair it if possible, and write it as Chakra: a file per rank."""
    trace = read(files, ranks, groups)
    _write(trace.graph, output, "chakra", as_json, trace)


@command.command("convert", cls=Command, short_help="Write a trace in another format.")
@files_argument
@grouped("Reading", ranks_option, groups_option)
@grouped("Output", output_option, format_option, algorithm_option, json_option)
def convert(
    *,
    files: tuple[Path, ...],
    ranks: int | None,
    groups: Path | None,
    output: Path,
    format_: str,
    algorithm: str | None,
    as_json: bool,
) -> None:
    """Write a trace in another format, with whole collectives or as messages."""
    trace = read(files, ranks, groups)
    graph = trace.graph
    if algorithm is not None:
        from choreo.trace.messages import as_messages_by

        graph = as_messages_by(graph, algorithm)
    _write(graph, output, format_, as_json, trace)


@command.command("export", cls=Command, short_help="Write a schedule for ASTRA-sim or LogGOPSim to run.")
@schedule_options()
@grouped("Output", size_option, output_option, format_option, json_option)
def export(
    *, chosen: ScheduleOptions, ranks: int | None, size: int | None, output: Path, format_: str, as_json: bool
) -> None:
    """Write a schedule as sends, receives and reductions, for ASTRA-sim or LogGOPSim to run."""
    from choreo.trace.messages import schedule_graph

    if size is None:
        raise UsageError("say how large the collective is: --size 1MiB")
    chosen.check_collective()
    if len(chosen.algorithms) > 1 or "all" in chosen.algorithms:
        raise UsageError("a trace holds one schedule; give one --algorithm")
    candidate = chosen.candidates()[0]
    schedule = trusted(candidate, candidate.need_ranks(ranks))
    _write(schedule_graph(schedule, size), output, format_, as_json, None)


@command.command("record", cls=Command, context_settings={"ignore_unknown_options": True})
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
@grouped(
    "What to trace",
    output_option,
    click.option("--step", type=int, default=3, show_default=True, metavar="N", help="Which step, counted from 1."),
    json_option,
)
def record(program: tuple[str, ...], output: Path, step: int, as_json: bool) -> None:
    """Run a torch program, and trace one of its steps at every rank.

    \b
    choreo trace record -o traces -- torchrun --nproc-per-node 2 train.py
    choreo simulate --workload traces --topology hgx-h100:1

    A step ends when an optimizer has stepped. The program itself is not changed.
    """
    from choreo.trace.recording import record_command

    record_command(program, output, step)
    trace = read((output,), None, None)
    if as_json:
        echo_json({"format": trace.format, "files": [str(file) for file in trace.files], **trace.graph.to_dict()})
    else:
        click.echo(f"wrote {output}: {counted(len(trace.graph), 'node')} of {counted(trace.graph.ranks, 'rank')}")


def read(files: tuple[Path, ...], ranks: int | None, groups: Path | None) -> Trace:
    """The trace in these files; repairs are reported on stderr."""
    from choreo.trace import read_trace

    trace = read_trace(files, ranks=ranks, groups=groups)
    for line in trace.findings.lines():
        echo_note(line)
    return trace


def _write(graph: ExecutionGraph, output: Path, format_: str, as_json: bool, trace: Trace | None) -> None:
    from choreo.trace import write_trace

    written = write_trace(graph, output, format_)
    if as_json:
        found: dict[str, Any] = {"format": format_, "files": [str(file) for file in written], **graph.to_dict()}
        echo_json(found | ({"findings": list(trace.findings.lines())} if trace is not None else {}))
    else:
        more = f" and {len(written) - 1} more" if len(written) > 1 else ""
        click.echo(f"wrote {written[0]}{more}: {counted(len(graph), 'node')} of {counted(graph.ranks, 'rank')}")
