"""Print the algorithm and the time that are predicted for NCCL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from choreo.cli.options.schedule import ScheduleOptions
from choreo.cli.options.topology import Placement
from choreo.cli.output.text.table import Column, echo_comment, echo_json, echo_line, echo_nccl_table
from choreo.cli.recording import keep
from choreo.errors import UsageError, shown
from choreo.units import counted, format_bandwidth, format_bytes, format_time

if TYPE_CHECKING:
    from choreo.simulate import NcclSimulation

__all__ = ["print_library"]


def print_library(chosen: ScheduleOptions, where: Placement, sizes: list[int], *, swept: bool, as_json: bool) -> None:
    """Print NCCL's algorithm, protocol, channels and time at each size."""
    from choreo.simulate import simulate_nccl

    if chosen.collective is None:
        raise UsageError("say what NCCL should do: COLLECTIVE; see choreo list")
    forced, devices = ",".join(chosen.algorithms) or None, where.all_devices()
    rows = [
        simulate_nccl(chosen.collective, where.topology, size, devices=devices, root=chosen.root, forced=forced)
        for size in sizes
    ]
    placed = {} if where.devices is None else {"placement": where.devices}
    keep(rows, topology=where.topology, root=chosen.root, forced=forced, options=placed)
    if as_json:
        echo_json(rows if swept else rows[0])
    elif swept:
        _print_sweep(rows)
    else:
        _print_one(rows[0])


def _print_one(row: NcclSimulation) -> None:
    echo_line(
        f"{row.collective} of {format_bytes(row.size_bytes)} over {counted(row.ranks, 'rank')} on "
        f"{shown(row.topology)}, as NCCL would do it"
    )
    click.echo()
    for name, text in (
        ("algorithm", f"{row.algorithm}, {row.protocol}, {counted(row.channels, 'channel')}"),
        ("time", format_time(row.time_s)),
        ("bound", f"{format_time(row.bound_s)}; efficiency {100 * row.efficiency:.1f} %"),
        ("algbw", f"{format_bandwidth(row.algbw_GBps * 1e9)}, busbw {format_bandwidth(row.busbw_GBps * 1e9)}"),
    ):
        click.echo(f"{name:<14}{text}")


def _print_sweep(rows: list[NcclSimulation]) -> None:
    """The table of nccl-tests, with NCCL's choice at the end; elements are of four bytes."""
    from choreo.collectives import get_collective

    first = rows[0]
    redop = "sum" if get_collective(first.collective).reduces else "none"
    ranks, where = counted(first.ranks, "rank"), shown(first.topology)
    echo_comment(f"{first.collective} over {ranks} on {where}, NCCL's model")
    echo_comment("")
    echo_nccl_table(
        [
            Column("size"),
            Column("count", 1),
            Column("type", 4),
            Column("redop", 3),
            Column("time"),
            Column("algbw", 1),
            Column("busbw"),
            Column("choice", left=True),
        ],
        ("(B)", "(elements)", "", "", "(us)", "(GB/s)", "(GB/s)", ""),
        [
            [
                str(row.size_bytes),
                str(row.size_bytes // 4),
                "float",
                redop,
                f"{row.time_s * 1e6:.2f}",
                f"{row.algbw_GBps:.2f}",
                f"{row.busbw_GBps:.2f}",
                f"{row.algorithm} {row.protocol}, {counted(row.channels, 'channel')}",
            ]
            for row in rows
        ],
    )
    echo_comment(f"Avg bus bandwidth    : {sum(row.busbw_GBps for row in rows) / len(rows):.6g}")
