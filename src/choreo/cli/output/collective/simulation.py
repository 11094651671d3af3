"""Print simulations: one in detail, several ranked, or a sweep over sizes as nccl-tests prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from choreo.cli.output.text.labels import axes_lines, print_axes, row_label
from choreo.cli.output.text.table import Column, echo_comment, echo_line, echo_nccl_table, echo_table
from choreo.errors import shown
from choreo.units import counted, format_bandwidth, format_bytes, format_time

if TYPE_CHECKING:
    from choreo.simulate import Leg, PacketReport, Simulation

__all__ = ["print_ranking", "print_simulation", "print_sweep"]

PATH_HEAD, PATH_TAIL = 4, 3
FULLEST = 5
BEST = " ← best"
LOW_EFFORT = "synthesized is made with --effort low here; choreo synthesize searches longer"


def print_simulation(simulation: Simulation) -> None:
    """Print one run: its time against the bound, the load of links, and the critical path."""
    first = simulation.jobs[0].schedule
    echo_line(
        f"{first.collective} of {format_bytes(simulation.size_bytes)} by {shown(first.label)} over "
        f"{counted(first.ranks, 'rank')} on {shown(simulation.topology.name)}"
    )
    click.echo()
    time_s, bound = simulation.job_time_s(0), simulation.bound
    _line("time", format_time(time_s))
    _line("bound", f"{format_time(bound.bound_s)} ({bound.binds}); efficiency {100 * simulation.efficiency:.1f} %")
    algbw, busbw = simulation.algbw_bytes_per_s, simulation.busbw_bytes_per_s
    _line("algbw", f"{format_bandwidth(algbw)}, busbw {format_bandwidth(busbw)}")
    busiest = simulation.busiest_link
    if busiest is not None:
        _line(
            "busiest link",
            f"{shown(busiest.src)} -> {shown(busiest.dst)}: {100 * busiest.utilisation:.1f} % used, "
            f"{format_bytes(busiest.bytes)}",
        )
    for number, job in enumerate(simulation.jobs[1:], 1):
        _line(
            "beside it",
            f"{job.schedule.collective} of {format_bytes(job.size_bytes)} by {shown(job.schedule.label)} over "
            f"{counted(job.schedule.ranks, 'rank')}: {format_time(simulation.job_time_s(number))}",
        )
    if simulation.packets is not None:
        _print_packets(simulation.packets)
    _print_dimensions(simulation)
    _print_path(simulation)


def print_ranking(simulations: list[Simulation], *, low_effort: bool) -> None:
    """Print every algorithm's time on the same topology, the fastest first; `low_effort` is of the synthesized one."""
    first = simulations[0]
    echo_line(
        f"{first.collective} of {format_bytes(first.size_bytes)} over {counted(first.ranks, 'rank')} on "
        f"{shown(first.topology.name)}; no schedule can take less than {format_time(first.bound.bound_s)}"
    )
    print_axes(simulations)
    if low_effort and any(run.algorithm == "synthesized" for run in simulations):
        echo_line(LOW_EFFORT)
    rows, styles = [], []
    for run in simulations:
        busiest = run.busiest_link
        best = len(simulations) > 1 and run.job_time_s(0) == first.job_time_s(0)
        rows.append(
            [
                f"{row_label(run)}{BEST if run is first and best else ''}",
                format_time(run.job_time_s(0)),
                f"{100 * run.efficiency:.1f} %",
                format_bandwidth(run.algbw_bytes_per_s),
                format_bandwidth(run.busbw_bytes_per_s),
                ""
                if busiest is None
                else f"{shown(busiest.src)} -> {shown(busiest.dst)}, {100 * busiest.utilisation:.1f} %",
            ]
        )
        styles.append("bold green" if best else None)
    echo_table(
        [
            Column("algorithm", left=True),
            Column("time"),
            Column("efficiency", 1),
            Column("algbw", 4),
            Column("busbw", 2),
            Column("busiest link", 3),
        ],
        rows,
        styles=styles,
    )


def print_sweep(sizes: list[list[Simulation]], algorithms: int, *, low_effort: bool) -> None:
    """Print the table of nccl-tests for simulated time; elements have four bytes, and a GB/s is 1e9 bytes a second.

    `sizes` has the runs of each size. `algorithms` is how many were tried: of more than are in the table, it shows the
    fastest at each size.
    """
    first = sizes[0][0]
    schedule = first.jobs[0].schedule
    redop, root = "sum" if schedule.contract.reduces else "none", -1 if schedule.root is None else schedule.root
    echo_comment(f"{first.collective} over {counted(first.ranks, 'rank')} on {shown(first.topology.name)}, simulated")
    several = len(sizes[0]) > 1
    for line in axes_lines(run for runs in sizes for run in runs):
        echo_comment(line)
    echo_comment("" if several or algorithms == 1 else f"the fastest of {algorithms} algorithms at each size")
    if low_effort:
        echo_comment(LOW_EFFORT)
    rows, best_busbw = [], []
    for runs in sizes:
        fastest = min(runs, key=lambda run: run.job_time_s(0))
        best_busbw.append(fastest.busbw_bytes_per_s / 1e9)
        for run in runs:
            size = int(run.size_bytes)
            rows.append(
                [
                    str(size),
                    str(size // 4),
                    "float",
                    redop,
                    str(root),
                    f"{run.job_time_s(0) * 1e6:.2f}",
                    f"{run.algbw_bytes_per_s / 1e9:.2f}",
                    f"{run.busbw_bytes_per_s / 1e9:.2f}",
                    f"{row_label(run)}{BEST if several and run is fastest else ''}",
                ]
            )
    echo_nccl_table(
        [
            Column("size"),
            Column("count", 1),
            Column("type", 4),
            Column("redop", 3),
            Column("root", 2),
            Column("time"),
            Column("algbw", 1),
            Column("busbw"),
            Column("algorithm", left=True),
        ],
        ("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", ""),
        rows,
    )
    echo_comment(f"Avg bus bandwidth    : {sum(best_busbw) / len(best_busbw):.6g}{' (the best)' if several else ''}")


def _print_packets(report: PacketReport) -> None:
    """Print what happened to the packets, and the ports that were fullest, or dropped or waited most."""
    _line("network", str(report.settings))
    again = f", {report.retransmissions} of them sent again ({counted(report.timeouts, 'time-out')})"
    _line("packets", f"{report.packets}{again if report.retransmissions else ''}")
    at_port, in_switch = format_bytes(report.peak_queue_bytes), format_bytes(report.peak_buffer_bytes)
    _line("queues", f"at most {at_port} at a port, {in_switch} in a switch")
    events = {
        f"{counted(report.pauses, 'pause')} ({format_time(report.paused_s)} in total)": report.pauses,
        counted(report.marks, "mark"): report.marks,
        f"{counted(report.drops, 'packet')} dropped": report.drops,
    }
    _line("congestion", ", ".join(text for text, count in events.items() if count) or "none")
    full = [port for port in report.ports if port.peak_queue_bytes or port.drops or port.pauses]
    full.sort(key=lambda port: (-port.drops, -port.peak_queue_bytes, -port.paused_s, port.link))
    if not full:
        return
    click.echo()
    rows = [
        [
            f"{shown(port.src)} -> {shown(port.dst)}",
            format_bytes(port.peak_queue_bytes),
            str(port.pauses),
            format_time(port.paused_s),
            str(port.marks),
            str(port.drops),
        ]
        for port in full[:FULLEST]
    ]
    heads = (Column("pauses", 2), Column("paused", 3), Column("marks", 4), Column("drops", 1))
    echo_table([Column(f"fullest of {counted(len(full), 'port')}", left=True), Column("queue"), *heads], rows)


def _print_dimensions(simulation: Simulation) -> None:
    """Print the load of each dimension of the topology."""
    if not simulation.loads.link_bytes.any():
        return
    dimension = simulation.topology.dimension_of_links()
    rows = []
    for number, block in enumerate(simulation.topology.blocks):
        here = dimension == number
        if not here.any():
            continue
        carried, used = simulation.loads.link_bytes[here], simulation.utilisation[here]
        rows.append(
            [
                shown(block.text),
                f"{int((carried > 0).sum())} of {len(carried)}",
                format_bytes(float(carried.sum())),
                format_time(float(simulation.loads.link_busy_s[here].max())),
                f"{100 * float(used.mean()):.1f} %",
                f"{100 * float(used.max()):.1f} %",
            ]
        )
    click.echo()
    echo_table(
        [
            Column("dimension", wrap=True),
            Column("links used", 2),
            Column("bytes", 3),
            Column("busy at most", 4),
            Column("mean use", 1),
            Column("max use"),
        ],
        rows,
    )


def _print_path(simulation: Simulation) -> None:
    """Print the critical path, without its middle if it is long."""
    from choreo.simulate.details import is_followed

    if not is_followed(simulation):
        return
    legs = simulation.critical_path
    if not legs:
        return
    click.echo()
    lost = sum(leg.shared_s for leg in legs)
    sharing = f"; sharing links cost it {format_time(lost)}" if lost > 0 else "; nothing on it had to share a link"
    echo_line(f"critical path: {counted(len(legs), 'message')}{sharing}")
    skipped = len(legs) - PATH_HEAD - PATH_TAIL
    for number, leg in enumerate(legs):
        if skipped > 1 and PATH_HEAD <= number < PATH_HEAD + skipped:
            if number == PATH_HEAD:
                click.echo(f"  ... {skipped} more ...")
            continue
        echo_line(_leg(simulation, leg, legs[number - 1] if number else None), indent=2, hang=4)


def _leg(simulation: Simulation, leg: Leg, before: Leg | None) -> str:
    message = "" if before is None else f"step {before.step}'s {_ends(simulation, before)}"
    why = {
        "nothing": "",
        "data": f"  after {message} arrived",
        "port": f"  after {message} left its port",
        "sender": f"  after its sender had sent {message}",
        "reader": f"  stored after {message} had read the old data",
        "writer": f"  stored after {message}",
    }[leg.waited_for]
    job = "" if len(simulation.jobs) == 1 else f" of {simulation.jobs[leg.job].schedule.collective}"
    return (
        f"step {leg.step}{job}: {_ends(simulation, leg)}, {format_bytes(leg.size_bytes)}, "
        f"{format_time(leg.start_s)} to {format_time(leg.written_s)}{why}"
    )


def _ends(simulation: Simulation, leg: Leg) -> str:
    return f"{_member(simulation, leg.job, leg.src)} -> {_member(simulation, leg.job, leg.dst)}"


def _member(simulation: Simulation, number: int, member: int) -> str:
    """A rank, by the name of its device where the topology gives names; or a switch that takes part."""
    job = simulation.jobs[number]
    if member >= job.schedule.members - job.schedule.switches:
        return job.schedule.member_name(member)
    device = int(job.node[member])
    name = simulation.topology.node_name(device)
    if name != str(device):
        return shown(name)
    return str(member) if member < job.schedule.ranks else job.schedule.member_name(member)


def _line(name: str, text: str) -> None:
    echo_line(text, label=name, indent=14)
