"""`choreo simulate --workload`: read a trace, simulate it on a topology, print the result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from choreo.cli.options.topology import Placement
from choreo.cli.output.text.files import afterwards, on_stdout, write_page
from choreo.cli.output.text.table import echo_json
from choreo.cli.recording import keep
from choreo.errors import UsageError

if TYPE_CHECKING:
    from choreo.plan import Planning
    from choreo.simulate.execution import WorkloadSimulation

__all__ = ["simulate_files"]


def simulate_files(
    files: tuple[Path, ...],
    where: Placement,
    groups: Path | None,
    ranks: int | None,
    *,
    gamma: float,
    as_json: bool,
    pictures: dict[str, Path | None],
    options: dict[str, Any],
) -> None:
    """Simulate the trace in some files, or a plan. If it does not say how many ranks there are, the devices do."""
    from choreo.cli.commands.trace import read
    from choreo.cli.output.trace import print_workload
    from choreo.cli.progress import Progress
    from choreo.simulate.execution import simulate_workload

    if len(files) == 1 and files[0].suffix == ".json":
        from choreo.plan.simulation import read_planning

        planning = read_planning(files[0], device=options["device"])
        if planning is not None:
            slow = bool((where.topology.slowdown != 1).any())
            given = {"--groups": groups, "--ranks": ranks, "--placement": where.devices, "--gamma": gamma or None}
            for name in (name for name, value in given.items() if value is not None):
                raise UsageError(f"a plan says by itself what {name} would; leave it out")
            if slow:
                raise UsageError("the ranks of a plan are all as fast; leave out --slow-rank")
            _simulate_plan(planning, files[0], where, as_json=as_json, pictures=pictures, options=options)
            return
    found = read(files, ranks, groups)
    if found.graph.ranks == 1 and found.format == "text_workload" and ranks is None:
        found = read(files, where.topology.num_devices, groups)
    with Progress("the workload") as progress:
        run = simulate_workload(
            found.graph,
            where.topology,
            placement=where.devices if where.devices is not None and len(where.devices) == found.graph.ranks else None,
            gamma_s_per_byte=gamma,
            progress=progress,
            **options,
        )
    given = {name: value for name, value in options.items() if value is not None and name != "packets"}
    placed = {} if where.devices is None else {"placement": where.devices}
    keep(run, name=files[0].name, options=given | placed | ({"gamma": gamma} if gamma else {}))
    with afterwards(lambda: _draw(run, pictures)):
        if as_json:
            echo_json(run.to_dict(details=True) | {"findings": list(found.findings.lines())})
        elif not on_stdout(pictures["html"]):
            print_workload(run)


def _simulate_plan(
    planning: Planning,
    file: Path,
    where: Placement,
    *,
    as_json: bool,
    pictures: dict[str, Path | None],
    options: dict[str, Any],
) -> None:
    from choreo.cli.output.trace import print_workload
    from choreo.cli.progress import Progress
    from choreo.plan.simulation import simulate_plan

    names = ("algorithm", "order", "at_once", "packets")
    with Progress("the step") as progress:
        run = simulate_plan(
            planning, topology=where.topology, progress=progress, **{name: options[name] for name in names}
        ).run
    given = {name: value for name, value in options.items() if value is not None and name != "packets"}
    keep(run, name=file.name, options=given)
    with afterwards(lambda: _draw(run, pictures)):
        if as_json:
            echo_json(run.to_dict(details=True) | {"findings": []})
        elif not on_stdout(pictures["html"]):
            print_workload(run)


def _draw(run: WorkloadSimulation, pictures: dict[str, Path | None]) -> None:
    trace, html = pictures["trace"], pictures["html"]
    if trace is not None:
        from choreo.show.workload import write_workload_trace

        write_workload_trace(run, trace)
        click.echo(f"wrote {trace}: open it in ui.perfetto.dev or chrome://tracing", err=True)
    if html is not None:
        from choreo.show import to_html

        write_page(html, to_html(run))
