"""`choreo bound`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from choreo.cli.options import json_option, parsed, ranks_option
from choreo.cli.output.table import echo_json
from choreo.errors import UsageError
from choreo.units import counted, parse_size

if TYPE_CHECKING:
    from choreo.topology import Topology


@click.command("bound")
@click.argument("collective")
@click.option("--topology", "-t", metavar="T", help="Blocks, a machine's name like hgx-h100:4, or a file.")
@click.option("--size", callback=parsed(parse_size), metavar="S", help="The collective's size: 8, 4KiB, 1MB, 64MiB.")
@click.option("--root", type=int, metavar="RANK", help="The root of a rooted collective (0).")
@ranks_option
@click.option("--placement", metavar="DEVICES", help="The device of each rank: 0,2,4..7, reversed or random:SEED.")
@json_option
def command(
    *,
    collective: str,
    topology: str | None,
    size: int | None,
    root: int | None,
    ranks: int | None,
    placement: str | None,
    as_json: bool,
) -> None:
    """Find the best that any schedule of COLLECTIVE could do on a topology, and what proves it.

    \b
    choreo bound all_gather --topology dgx-1 --size 64MiB
    choreo bound all_to_all --topology "torus(4x4, 45GB/s, 1us)" --size 1GiB

    The greater of two: what must leave some devices for what the links out of them can carry, and the latency of the
    shortest way between the two that are farthest apart.
    """
    from choreo.bound import bound
    from choreo.collectives import get_collective
    from choreo.topology import get_topology

    contract = get_collective(collective)
    if topology is None:
        raise UsageError('say where: --topology "ring(8, 50GB/s, 500ns)" or --topology hgx-h100:4; see choreo topology')
    if size is None:
        if contract.size_per != "nothing":
            raise UsageError("say how much: --size S, like 64MiB")
        size = 0
    network = get_topology(topology)
    found = bound(collective, network, size, root=root, devices=_devices(network, ranks, placement))
    if as_json:
        echo_json(found)
    else:
        from choreo.cli.output.bound import print_bound

        print_bound(found, network)


def _devices(topology: Topology, ranks: int | None, placement: str | None) -> list[int] | None:
    """The device of each rank: the placement's, the first so many, or all."""
    from choreo.cli.topology_options import parse_placement

    if ranks is not None and ranks < 1:
        raise UsageError(f"there must be at least 1 rank, not {ranks}")
    if placement is not None:
        devices = parse_placement(placement, topology.num_devices)
        if ranks is not None and ranks > len(devices):
            raise UsageError(f"--placement gives {counted(len(devices), 'device')} for {counted(ranks, 'rank')}")
        return devices[:ranks]
    if ranks is not None and ranks > topology.num_devices:
        raise UsageError(
            f"{counted(ranks, 'rank')} do not fit on {topology.name}, which has "
            f"{counted(topology.num_devices, 'device')}"
        )
    return None if ranks is None else list(range(ranks))
