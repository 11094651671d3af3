"""`choreo bound`."""

from __future__ import annotations

from dataclasses import replace

import click

from choreo.cli.command import grouped
from choreo.cli.options.common import json_option, needed_size, ranks_option, size_option
from choreo.cli.options.topology import (
    need_topology,
    place,
    placement_option,
    topology_option,
    what_if,
    what_if_options,
)
from choreo.cli.output.text.table import echo_json
from choreo.cli.recording import Recorded, keep


@click.command("bound", cls=Recorded)
@click.argument("collective")
@grouped(
    "What, and where",
    topology_option,
    size_option,
    click.option("--root", type=int, metavar="RANK", help="The root of a rooted collective (0)."),
    ranks_option,
    placement_option,
)
@grouped("What if", *what_if_options())
@grouped("Output", json_option)
def command(
    *,
    collective: str,
    topology: str | None,
    size: int | None,
    root: int | None,
    ranks: int | None,
    placement: str | None,
    slow_link: tuple[str, ...],
    slow_rank: tuple[str, ...],
    routing: str | None,
    as_json: bool,
) -> None:
    """Compute the least time that any schedule of COLLECTIVE could take on a topology, and prove it.

    \b
    choreo bound all_gather --topology dgx-1 --size 64MiB
    choreo bound all_to_all --topology "torus(4x4, 45GB/s, 1us)" --size 1GiB
    choreo bound all_reduce --topology hgx-h100:4 --size 1GiB --slow-rank 3=2x

    The bound is the largest of three: the bytes that must leave some set of devices, divided by the bandwidth of the
    links out of it (bandwidth); the latency of the shortest path between the two devices that are farthest apart
    (latency); and, for some sets of devices, bandwidth plus the latency to the cut and beyond it.
    """
    from choreo.bound import bound

    network = need_topology(topology)
    size = needed_size(collective, size)
    where = place(network, placement, ranks)
    network = what_if(where, slow_link, slow_rank, routing)
    where = replace(where, topology=network)
    found = bound(collective, network, size, root=root, devices=where.all_devices())
    placed = {} if where.devices is None else {"placement": where.devices}
    keep(found, topology=network, root=root, options=placed)
    if as_json:
        echo_json(found)
    else:
        from choreo.cli.output.collective.bound import print_bound

        print_bound(found, network)
