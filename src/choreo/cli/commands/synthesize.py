"""`choreo synthesize`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from choreo.cli.command import grouped
from choreo.cli.options.common import NewFile, json_option, needed_size, parsed, ranks_option, size_option
from choreo.cli.options.packets import packet_options, packets_of
from choreo.cli.options.topology import (
    need_topology,
    place,
    placement_option,
    topology_option,
    what_if,
    what_if_options,
)
from choreo.cli.output.text.table import echo_json
from choreo.cli.progress import waiting
from choreo.cli.recording import Recorded, keep
from choreo.errors import UsageError, shown
from choreo.files import read_bytes
from choreo.units import counted

MOST_TRAFFIC_BYTES = 1 << 26


def _numbers(text: str, where: str) -> list[float]:
    """Numbers with commas or blanks between them."""
    try:
        return [float(word) for word in text.replace(",", " ").split()]
    except ValueError:
        raise UsageError(f"{where} must be numbers with commas or blanks between them, not {text!r:.60}") from None


def _shares(text: str) -> list[float] | str:
    return text if text == "auto" else _numbers(text, "--shares")


def _traffic(path: Path) -> list[list[float]]:
    """The rows of a file; empty lines and what follows a # are left out."""
    text = read_bytes(path, MOST_TRAFFIC_BYTES, "a traffic file").decode(errors="replace")
    rows: list[list[float]] = []
    for number, line in enumerate(text.splitlines(), 1):
        row = _numbers(line.partition("#")[0], f"{path}: line {number}")
        if row and rows and len(row) != len(rows[0]):
            raise UsageError(
                f"{path}: line {number} has {counted(len(row), 'number')}, but the first has {len(rows[0])}; give a "
                "line for each rank, with a number for each other and itself"
            )
        rows += [row] if row else []
    if not rows:
        raise UsageError(f"{path} has no numbers; give a line for each rank, with a number for each other and itself")
    return rows


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
        "--traffic",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Traffic matrix of an all_to_all, in any unit: a row of numbers for each rank.",
    ),
    click.option(
        "--shares",
        callback=parsed(_shares),
        metavar="W,W,...|auto",
        help="Size of each rank's block, in any unit: 1,1,2; or auto, which minimizes the bound.",
    ),
    click.option(
        "--relays/--no-relays",
        default=None,
        help="Let devices without a rank, and switches that reduce, take part (default, but not in an .xml file).",
    ),
    click.option(
        "--effort",
        type=click.Choice(["fast", "low", "medium", "high", "exact"]),
        default="medium",
        show_default=True,
        help="Search effort; fast: only quick methods; exact: small networks, with a proof of the optimum.",
    ),
)
@grouped("What if", *what_if_options())
@grouped("Packets", *packet_options())
@grouped(
    "Output",
    click.option(
        "--output",
        "-o",
        type=NewFile(stdout=False),
        metavar="FILE",
        help="Write the schedule: .json, .npz, or .xml for MSCCL.",
    ),
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
    traffic: Path | None,
    shares: list[float] | str | None,
    relays: bool | None,
    effort: str,
    slow_link: tuple[str, ...],
    slow_rank: tuple[str, ...],
    routing: str | None,
    output: Path | None,
    as_json: bool,
    **of_packets: object,
) -> None:
    """Make a schedule of COLLECTIVE for a network, as close to the bound as possible, and prove it.

    \b
    choreo synthesize all_gather --topology dgx-1 --size 64MiB
    choreo synthesize all_reduce -t hgx-h100:4 --size 1GiB -o fast.npz
    choreo synthesize all_gather -t "torus(4x4, 50GB/s, 1us)" \\
        --size 1GiB --slow-link 0-1=0.5

    The schedule is never slower than the best algorithm of the library there, by simulation: of flows, or with
    --packets of every packet.
    """
    from choreo.cli.output.collective.synthesis import print_synthesis
    from choreo.schedule import save
    from choreo.schedule.files import written_as
    from choreo.synthesize import search

    foreign = None if output is None else written_as(output)
    network = need_topology(topology)
    size = needed_size(collective, size)
    where = place(network, placement, ranks)
    where = replace(where, topology=what_if(where, slow_link, slow_rank, routing))
    flows = None if traffic is None else _traffic(traffic)
    packets = packets_of(of_packets, routing)
    with waiting("synthesizing"):
        found = search(
            collective,
            where.topology,
            size,
            ranks=where.all_devices(),
            root=root,
            traffic=flows,
            shares=shares,
            relays=foreign is None if relays is None else relays,
            effort=effort,
            packets=packets,
        )
    keep(found)
    if output is not None:
        with waiting(f"writing {shown(output)}"):
            save(found.schedule, output)
    if as_json:
        echo_json(found)
    else:
        print_synthesis(found, output)
        if shares == "auto" and found.shares is None:
            click.echo("The ranks' blocks are equal: others would gain nothing.")
