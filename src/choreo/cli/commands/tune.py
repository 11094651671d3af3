"""`choreo tune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from choreo.cli.command import Command
from choreo.cli.options.common import NewFile, json_option, ranks_option
from choreo.cli.options.topology import need_topology, place, placement_option, topology_option
from choreo.cli.output.text.table import Column, echo_json, echo_table
from choreo.cli.progress import waiting
from choreo.errors import shown
from choreo.units import format_bytes

if TYPE_CHECKING:
    from choreo.tune import Tuning


@click.command("tune", cls=Command)
@topology_option
@ranks_option
@placement_option
@click.option("--tuner", type=NewFile(stdout=False), metavar="FILE", help="Write it for NCCL's example tuner plugin.")
@json_option
def command(topology: str | None, ranks: int | None, placement: str | None, tuner: Path | None, as_json: bool) -> None:
    """Find which algorithm and protocol NCCL should use at which size on a topology.

    \b
    choreo tune --topology hgx-h100:4
    choreo tune --topology hgx-h100:4 --tuner nccl.conf

    NCCL's own choice stands unless another is faster by more than 5 %. The file is what NCCL's example tuner plugin
    reads, with this in the environment of the job:

    \b
    NCCL_TUNER_PLUGIN=libnccl-tuner-example.so NCCL_TUNER_CONFIG_FILE=nccl.conf
    """
    from choreo.files import write_text
    from choreo.tune import tune, tuner_text

    where = place(need_topology(topology), placement, ranks)
    with waiting("tuning"):
        found = tune(where.topology, devices=where.all_devices())
    if tuner is not None:
        write_text(tuner, tuner_text(found))
    if as_json:
        echo_json(found)
    elif tuner is not None:
        click.echo(f"wrote {shown(tuner)}: {found.summary()}")
    else:
        _print(found)


def _print(found: Tuning) -> None:
    rows = [
        (
            row.collective,
            format_bytes(row.min_bytes, binary=False),
            "any" if row.max_bytes >= 1 << 63 else format_bytes(row.max_bytes, binary=False),
            row.algorithm,
            row.protocol,
            f"{row.gain:.2f}" if row.gain > 1 else "NCCL's own",
        )
        for row in found.ranges
    ]
    names = [Column("collective", left=True), Column("from"), Column("to")]
    echo_table([*names, Column("algorithm", left=True), Column("protocol", left=True), Column("gain up to")], rows)
