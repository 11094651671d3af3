"""`choreo simulate --workload`: read a trace, run it on a topology, print what it did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from choreo.cli.options.topology import Placement
from choreo.cli.output.text.files import write_page
from choreo.cli.output.text.table import echo_json
from choreo.cli.recording import keep

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
    """Simulate the trace in some files. If it does not say how many ranks there are, the devices do."""
    from choreo.cli.commands.trace import read
    from choreo.cli.output.trace import print_workload
    from choreo.cli.progress import Progress
    from choreo.simulate.execution import simulate_workload

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
    told = {name: value for name, value in options.items() if value is not None and name != "packets"}
    placed = {} if where.devices is None else {"placement": where.devices}
    keep(run, name=files[0].name, options=told | placed | ({"gamma": gamma} if gamma else {}))
    if as_json:
        echo_json(run.to_dict(details=True) | {"findings": list(found.findings.lines())})
    else:
        print_workload(run)
    trace, html = pictures["trace"], pictures["html"]
    if trace is not None:
        from choreo.show.workload import write_workload_trace

        write_workload_trace(run, trace)
        click.echo(f"wrote {trace}: open it in ui.perfetto.dev or chrome://tracing", err=True)
    if html is not None:
        from choreo.show import to_html

        write_page(html, to_html(run))
