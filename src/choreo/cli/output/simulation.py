"""Simulations as a person reads them: one in detail, several ranked, or swept over sizes as nccl-tests prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from choreo.cli.output.table import echo_table
from choreo.errors import shown
from choreo.units import counted, format_bandwidth, format_bytes, format_time

if TYPE_CHECKING:
    from choreo.simulate import Leg, Simulation

__all__ = ["print_ranking", "print_simulation", "print_sweep"]

PATH_HEAD, PATH_TAIL = 4, 3


def print_simulation(simulation: Simulation, axes: str | None) -> None:
    """One run: its time against the bound, where the load is, and the chain of messages that decided it."""
    first = simulation.jobs[0].schedule
    along = "" if axes is None else f" along {shown(axes)}"
    click.echo(
        f"{first.collective} of {format_bytes(simulation.size_bytes)} by {shown(first.algorithm)}{along} over "
        f"{counted(first.ranks, 'rank')} on {shown(simulation.topology.name)}"
    )
    click.echo()
    time_s, bound = simulation.job_time_s(0), simulation.bound
    binds = "latency" if bound.latency_bound_s > bound.bandwidth_bound_s else "bandwidth"
    _line("time", format_time(time_s))
    _line("bound", f"{format_time(bound.bound_s)} ({binds}): {100 * simulation.efficiency:.1f} % of it reached")
    _line("algbw", f"{format_bandwidth(simulation.algbw_bytes_per_s)}, busbw {_busbw(simulation)}")
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
            f"{job.schedule.collective} of {format_bytes(job.size_bytes)} by {shown(job.schedule.algorithm)} over "
            f"{counted(job.schedule.ranks, 'rank')}: {format_time(simulation.job_time_s(number))}",
        )
    _print_dimensions(simulation)
    _print_path(simulation)


def print_ranking(simulations: list[Simulation]) -> None:
    """Every algorithm's time on the same topology, the fastest first."""
    from rich.table import Table
    from rich.text import Text

    first = simulations[0]
    click.echo(
        f"{first.collective} of {format_bytes(first.size_bytes)} over {counted(first.ranks, 'rank')} on "
        f"{shown(first.topology.name)}; no schedule can take less than {format_time(first.bound.bound_s)}"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("algorithm", no_wrap=True)
    for name in ("time", "of the bound", "algbw", "busbw", "busiest link", "used"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in simulations:
        busiest = one.busiest_link
        best = len(simulations) > 1 and one.job_time_s(0) == first.job_time_s(0)
        table.add_row(
            Text(f"{shown(one.algorithm)}{' ← best' if one is first and best else ''}"),
            format_time(one.job_time_s(0)),
            f"{100 * one.efficiency:.1f} %",
            format_bandwidth(one.algbw_bytes_per_s),
            _busbw(one),
            "" if busiest is None else Text(f"{shown(busiest.src)} -> {shown(busiest.dst)}"),
            "" if busiest is None else f"{100 * busiest.utilisation:.1f} %",
            style="bold green" if best else None,
        )
    echo_table(table, 120)


def print_sweep(simulations: list[Simulation]) -> None:
    """The table of nccl-tests, for simulated time; elements are of four bytes, bandwidth in 1e9 bytes a second."""
    first = simulations[0]
    contract = first.jobs[0].schedule.contract
    redop = "sum" if contract.reduces else "none"
    root = -1 if first.jobs[0].schedule.root is None else first.jobs[0].schedule.root
    click.echo(f"# {first.collective} over {counted(first.ranks, 'rank')} on {shown(first.topology.name)}, simulated")
    click.echo("#")
    head = ("size", "count", "type", "redop", "root", "time", "algbw", "busbw")
    units = ("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)")
    for words, last in ((head, "algorithm"), (units, "")):
        click.echo(f"#{words[0]:>12}{words[1]:>14}{''.join(f'{word:>10}' for word in words[2:])}  {last}".rstrip())
    total = 0.0
    for one in simulations:
        size, busbw = int(one.size_bytes), one.busbw_bytes_per_s / 1e9
        total += busbw
        click.echo(
            f"{size:>13}{size // 4:>14}{'float':>10}{redop:>10}{root:>10}{one.job_time_s(0) * 1e6:>10.2f}"
            f"{one.algbw_bytes_per_s / 1e9:>10.2f}{busbw:>10.2f}  {shown(one.algorithm)}"
        )
    click.echo(f"# Avg bus bandwidth    : {total / len(simulations):.6g}")


def _print_dimensions(simulation: Simulation) -> None:
    """The load by dimension of the topology."""
    from rich.table import Table
    from rich.text import Text

    if not simulation.loads.link_bytes.any():
        return
    dimension = simulation.topology.dimension_of_links()
    table = Table(box=None, pad_edge=False)
    table.add_column("links of", no_wrap=True)
    for name in ("used", "bytes", "busy at most", "used on average", "at most"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, block in enumerate(simulation.topology.blocks):
        here = dimension == number
        if not here.any():
            continue
        carried, used = simulation.loads.link_bytes[here], simulation.utilisation[here]
        table.add_row(
            Text(shown(block.text)),
            f"{int((carried > 0).sum())} of {len(carried)}",
            format_bytes(float(carried.sum())),
            format_time(float(simulation.loads.link_busy_s[here].max())),
            f"{100 * float(used.mean()):.1f} %",
            f"{100 * float(used.max()):.1f} %",
        )
    click.echo()
    echo_table(table, 120)


def _print_path(simulation: Simulation) -> None:
    """The critical path, its middle left out where it is long."""
    from choreo.simulate.details import is_followed

    if not is_followed(simulation):
        return
    legs = simulation.critical_path
    if not legs:
        return
    click.echo()
    lost = sum(leg.shared_s for leg in legs)
    sharing = f"; sharing links cost it {format_time(lost)}" if lost > 0 else "; nothing on it had to share a link"
    click.echo(f"critical path: {counted(len(legs), 'message')}{sharing}")
    skipped = len(legs) - PATH_HEAD - PATH_TAIL
    for number, leg in enumerate(legs):
        if skipped > 1 and PATH_HEAD <= number < PATH_HEAD + skipped:
            if number == PATH_HEAD:
                click.echo(f"  ... {skipped} more ...")
            continue
        click.echo(_leg(simulation, leg, legs[number - 1] if number else None))


def _leg(simulation: Simulation, leg: Leg, before: Leg | None) -> str:
    one = "" if before is None else f"step {before.step}'s {_ends(simulation, before)}"
    why = {
        "nothing": "",
        "data": f"  after {one} was written",
        "port": f"  after {one} was out of its port",
        "reader": f"  written after {one} had read the place",
        "writer": f"  written after {one}",
    }[leg.waited_for]
    job = "" if len(simulation.jobs) == 1 else f" of {simulation.jobs[leg.job].schedule.collective}"
    return (
        f"  step {leg.step}{job}: {_ends(simulation, leg)}, {format_bytes(leg.size_bytes)}, "
        f"{format_time(leg.start_s)} to {format_time(leg.written_s)}{why}"
    )


def _ends(simulation: Simulation, leg: Leg) -> str:
    ranks = simulation.jobs[leg.job].schedule.ranks
    names = [str(end) if end < ranks else f"switch {end - ranks}" for end in (leg.src, leg.dst)]
    return f"{names[0]} -> {names[1]}"


def _line(name: str, text: str) -> None:
    click.echo(f"{name:<14}{text}")


def _busbw(simulation: Simulation) -> str:
    return format_bandwidth(simulation.busbw_bytes_per_s)
