"""`choreo tour`: the product on one screen."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING

import click

from choreo.cli.command import Command
from choreo.cli.options import json_option
from choreo.cli.output.table import echo_json
from choreo.units import format_bytes, format_time

if TYPE_CHECKING:
    from choreo.price import WinningRange

RING = ("all_reduce", "ring")
MACHINES, SIZE = "dgx-a100:2", 64 << 20


@click.command("tour", cls=Command)
@json_option
def command(as_json: bool) -> None:
    """See Choreo at work on one screen: a schedule shown, proved, priced, simulated, broken and caught."""
    if as_json:
        echo_json({"story": _broken_story(), "ranges": _winners()})
        return
    from choreo.algorithms import build
    from choreo.prove import prove
    from choreo.show import to_text

    _title("A collective is a schedule. Here is reduce_scatter by ring among three ranks:")
    click.echo(to_text(build("reduce_scatter", "ring", 3), color=sys.stdout.isatty()).rstrip())

    _title("The same object is proved, at any size. A ring:")
    for ranks in (8, 1024):
        started = time.perf_counter()
        proof = prove(build(*RING, ranks))
        took = time.perf_counter() - started
        click.echo(f"  {ranks:>5} ranks, {proof.num_transfers:>9,} transfers: proved in {took:.2f} s ({proof.method})")

    _title("A wrong one is caught, and told as a story. Swap two steps of a ring among four ranks:")
    click.echo(f"  {_broken_story()}")

    _title("And priced: all_reduce over 64 ranks, 5 us per message, 50 GB/s. Which is cheapest at which size?")
    for one in _winners():
        click.echo(f"  {format_bytes(one.from_bytes):>9} to {format_bytes(one.to_bytes):>9}  {one.algorithm}")
    _title(f"And simulated: all_reduce of {format_bytes(SIZE)} on {MACHINES}, two servers of eight A100s:")
    _simulated()
    _title("Next")
    choreo = "choreo" if shutil.which("choreo") else sys.argv[0]
    click.echo(f"  {choreo} list")
    click.echo(f"  {choreo} price all_reduce --ranks 64 --size 1MiB")
    click.echo(f"  {choreo} simulate all_reduce --topology {MACHINES} --size 64MiB --algorithm all")
    click.echo(f"  {choreo} show all_reduce --algorithm swing --ranks 8 --html swing.html")


def _title(text: str) -> None:
    click.echo()
    click.secho(text, bold=True)


def _broken_story() -> str:
    from dataclasses import replace

    import numpy as np

    from choreo.algorithms import build
    from choreo.errors import ProofError
    from choreo.prove import prove
    from choreo.schedule import Steps

    ring = build(*RING, 4)
    rows = ring.columns()
    swapped = replace(rows, step=np.array([0, 2, 1, 3, 4, 5])[rows.step]).by_step()
    try:
        prove(replace(ring, body=Steps.from_transfers(ring.ranks, ring.num_chunks, ring.num_steps, swapped)))
    except ProofError as error:
        return error.story
    raise AssertionError("the broken ring was proved")


def _winners() -> list[WinningRange]:
    from choreo.algorithms import build, list_algorithms
    from choreo.price import CostModel, winners

    link = CostModel(alpha_s=5e-6, bandwidth_bytes_per_s=50e9, gamma_s_per_byte=1e-11)
    schedules = (build("all_reduce", a.name, 64) for a in list_algorithms("all_reduce"))
    return winners([schedule for schedule in schedules if not schedule.switches], 8, 1 << 30, link)


def _simulated() -> None:
    from choreo.algorithms import build
    from choreo.simulate import simulate, suggested_schedule
    from choreo.topology import get_topology

    machines = get_topology(MACHINES)
    ranks = machines.num_devices
    for schedule in (build(*RING, ranks), suggested_schedule("all_reduce", machines, ranks)):
        found = simulate(schedule, machines, SIZE)
        reached = f"{100 * found.efficiency:.0f} % of what is possible there"
        click.echo(f"  {schedule.algorithm:<14}{format_time(found.time_s):>9}, {reached}")
