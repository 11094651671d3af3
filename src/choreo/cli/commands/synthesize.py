"""`choreo synthesize`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from choreo.cli.command import grouped
from choreo.cli.options import json_option, ranks_option, size_option
from choreo.cli.output.table import echo_json
from choreo.cli.recording import Recorded, keep
from choreo.cli.topology_options import (
    need_topology,
    place,
    placement_option,
    topology_option,
    what_if,
    what_if_options,
)
from choreo.errors import UsageError


@click.command("synthesize", cls=Recorded)
@click.argument("collective")
@grouped(
    "What to make, and for which network",
    topology_option,
    size_option,
    click.option("--root", type=int, metavar="RANK", help="The root of a rooted collective (0)."),
    ranks_option,
    placement_option,
    click.option(
        "--effort",
        type=click.Choice(["low", "medium", "high"]),
        default="medium",
        show_default=True,
        help="How large the schedules may be that are tried.",
    ),
)
@grouped("What if", *what_if_options())
@grouped(
    "Output",
    click.option("--output", "-o", type=click.Path(path_type=Path), metavar="FILE", help="Write it: .json or .npz."),
    json_option,
)
def command(
    *,
    collective: str,
    topology: str | None,
    size: int | None,
    root: int | None,
    ranks: int | None,
    placement: str | None,
    effort: str,
    slow_link: tuple[str, ...],
    slow_rank: tuple[str, ...],
    routing: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Make a schedule of COLLECTIVE for a network, as near to the bound as it gets, and prove it.

    \b
    choreo synthesize all_gather --topology dgx-1 --size 64MiB
    choreo synthesize all_reduce -t hgx-h100:4 --size 1GiB -o fast.npz
    choreo synthesize all_gather -t "torus(4x4, 50GB/s, 1us)" \\
        --size 1GiB --slow-link 0-1=0.5

    The schedule is never slower than the best algorithm of the library there, by simulation.
    """
    from choreo.cli.output.synthesis import print_synthesis
    from choreo.collectives import get_collective
    from choreo.schedule import save
    from choreo.synthesize import search

    contract = get_collective(collective)
    network = need_topology(topology)
    if size is None:
        if contract.size_per != "nothing":
            raise UsageError("say how much: --size S, like 64MiB")
        size = 0
    where = place(network, placement, ranks)
    where = replace(where, topology=what_if(where, slow_link, slow_rank, routing))
    found = search(collective, where.topology, size, ranks=where.all_devices(), root=root, effort=effort)
    keep(found)
    if output is not None:
        save(found.schedule, output)
    if as_json:
        echo_json(found)
    else:
        print_synthesis(found, output)
