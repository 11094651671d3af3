"""Print the summary of a trace, and of a workload simulated on a topology."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from choreo.cli.output.text.table import Column, echo_line, echo_table
from choreo.errors import shown
from choreo.units import counted, format_bytes, format_time

if TYPE_CHECKING:
    from choreo.simulate.execution import WorkloadSimulation
    from choreo.trace.info import TraceInfo

__all__ = ["print_info", "print_workload"]

MOST_ROWS = 40
PATH_ENDS = 4


def print_info(info: TraceInfo) -> None:
    """Print a trace in figures, and a table of its communication."""
    graph = info.trace.graph
    kinds = {name: count for name, count in graph.to_dict().items() if name in KINDS and count}
    echo_line(
        f"{counted(len(graph), 'node')} of {counted(graph.ranks, 'rank')} ({info.trace.format}, "
        f"{counted(len(info.trace.files), 'file')}): " + ", ".join(f"{count} {name}" for name, count in kinds.items())
    )
    if info.time_s > 0:
        share = 100 * info.compute_s / info.time_s
        echo_line(f"as recorded {format_time(info.time_s)}, of which an average rank computes {share:.1f} %")
    if not info.calls:
        click.echo("no communication")
        return
    click.echo()
    columns = [
        Column("collective", left=True),
        Column("size"),
        Column("ranks"),
        Column("group", drop=2, left=True),
        Column("calls"),
        Column("time"),
        Column("exposed"),
    ]
    rows = [
        [
            call.collective,
            format_bytes(call.size_bytes),
            str(call.ranks),
            call.group,
            str(call.calls),
            "-" if call.time_s is None else format_time(call.time_s),
            "-" if not call.time_s or call.exposed_s is None else f"{100 * call.exposed_s / call.time_s:.0f} %",
        ]
        for call in info.calls[:MOST_ROWS]
    ]
    echo_table(columns, rows)
    if len(info.calls) > MOST_ROWS:
        click.echo(f"... and {len(info.calls) - MOST_ROWS} more kinds; --json has them all")


KINDS = ("host", "compute", "memory", "send", "recv", "collective")


def print_workload(run: WorkloadSimulation) -> None:
    """Print the time of a step, where it went, and the path that determined it."""
    echo_line(
        f"{counted(run.nodes, 'node')} over {counted(run.ranks, 'rank')} on {shown(run.topology)}: "
        f"{format_time(run.time_s)}"
    )
    click.echo()
    slowest = run.by_rank["compute_s"].max()
    for name, seconds in (("compute", run.compute_s), ("exposed communication", run.exposed_s), ("idle", run.idle_s)):
        share = 100 * seconds / run.time_s if run.time_s else 0.0
        echo_line(f"{format_time(seconds)} ({share:.1f} %)", label=f"{name:23}")
    hidden = max(0.0, run.communication_s - run.exposed_s)
    echo_line(format_time(hidden), label=f"{'hidden communication':23}")
    if slowest > run.compute_s * 1.001:
        echo_line(
            f"{format_time(float(slowest))} at rank {int(run.by_rank['compute_s'].argmax())}",
            label=f"{'most compute':23}",
        )
    _print_communication(run)
    _print_links(run)
    _print_packets(run)
    _print_path(run)


def _print_packets(run: WorkloadSimulation) -> None:
    found = run.packets
    if found is None:
        return
    click.echo()
    kind = f"{'lossless' if found['lossless'] else 'lossy'}, {found['routing']}"
    sent = f"{counted(found['packets'], 'packet')} of at most {format_bytes(found['mtu_bytes'])}"
    echo_line(f"{sent}, {kind}", label=f"{'packets':23}")
    longest, fullest = format_bytes(found["peak_queue_bytes"]), format_bytes(found["peak_buffer_bytes"])
    echo_line(f"at most {longest} at a port, {fullest} in a switch", label=f"{'queues':23}")
    counts = {"pause": found["pauses"], "mark": found["marks"], "drop": found["drops"]}
    counts["retransmission"] = found["retransmissions"]
    echo_line(", ".join(counted(count, name) for name, count in counts.items()), label=f"{'congestion':23}")


def _print_communication(run: WorkloadSimulation) -> None:
    if not run.exposed:
        return
    click.echo()
    names = ("collective", "ranks", "calls", "bytes a rank", "time", "waiting", "exposed")
    rows = [
        [
            share.collective,
            str(share.ranks),
            str(share.calls),
            format_bytes(share.size_bytes),
            format_time(share.time_s),
            format_time(share.waiting_s),
            format_time(share.exposed_s),
        ]
        for share in run.exposed
    ]
    echo_table(
        [Column(names[0], left=True), *(Column(name, drop=number) for number, name in enumerate(names[1:]))], rows
    )


def _print_links(run: WorkloadSimulation) -> None:
    busiest = run.busiest_link
    if busiest is not None:
        click.echo()
        echo_line(
            f"{shown(busiest.src)} -> {shown(busiest.dst)}: {100 * busiest.utilisation:.1f} % used, "
            f"{format_bytes(busiest.bytes)}",
            label=f"{'busiest link':23}",
        )


def _print_path(run: WorkloadSimulation) -> None:
    legs = run.critical_path
    if not legs:
        return
    by_kind: dict[str, float] = {}
    for leg in legs:
        by_kind[leg.kind] = by_kind.get(leg.kind, 0.0) + leg.end_s - leg.start_s
    parts = ", ".join(
        f"{format_time(seconds)} {kind}"
        for kind, seconds in sorted(by_kind.items(), key=lambda item: -item[1])
        if seconds > 0
    )
    click.echo()
    echo_line(f"{counted(len(legs), 'node')}: {parts}", label=f"{'critical path':23}")
    shown_legs = legs if len(legs) <= 2 * PATH_ENDS else [*legs[:PATH_ENDS], None, *legs[-PATH_ENDS:]]
    for end_leg in shown_legs:
        if end_leg is None:
            click.echo(f"  ... {len(legs) - 2 * PATH_ENDS} more")
        else:
            duration = format_time(end_leg.end_s - end_leg.start_s)
            echo_line(
                f"{format_time(end_leg.start_s):>10}  {duration:>10}  rank {end_leg.rank}  {shown(end_leg.name)[:60]}",
                indent=2,
            )
