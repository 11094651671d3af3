"""Print a synthesized schedule: its generator, its share of the bound, and the best algorithm of the library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from choreo.cli.output.text.table import echo_line
from choreo.errors import shown
from choreo.units import counted, format_bytes, format_time

if TYPE_CHECKING:
    from choreo.synthesize import Synthesis

__all__ = ["print_synthesis"]

# At most this many shares are listed.
MOST_SHARES = 16


def print_synthesis(found: Synthesis, output: Path | None) -> None:
    """Print the times and shares of the bound, and where the schedule was written."""
    size = "" if found.collective == "barrier" else f" of {format_bytes(found.size_bytes)}"
    echo_line(f"{found.collective}{size} over {counted(found.ranks, 'rank')} on {shown(found.topology)}")
    click.echo()
    _line("synthesized", found.time_s, f"{_percent(found.efficiency)} of the bound, by {found.generator}", bold=True)
    if found.library is not None:
        best = found.library
        reached = f"{_percent(best['efficiency'])} of the bound, by {best['algorithm']}"
        if best.get("at_least"):  # its simulation was given up
            reached = f"or more, so at most {reached}"
        _line("the library", best["time_s"], reached)
    _line("the bound", found.bound_s, "")
    if found.problem.packets is not None:
        echo_line(str(found.problem.packets), label=f"{'network':<12} ", indent=13)
    click.echo()
    schedule = found.schedule
    cut = f"{counted(schedule.num_chunks, 'chunk')}, {counted(schedule.num_steps, 'step')}"
    echo_line(f"Proved: {cut}. Made in {format_time(found.made_in_s)}.")
    if found.proved is not None:
        echo_line(f"Exact search: {found.proved}.")
    if found.shares is not None:
        few = ", ".join(f"{100 * share:.1f}" for share in found.shares[:MOST_SHARES])
        echo_line(f"The ranks' blocks, in % of all data: {few}{', ...' * (found.ranks > MOST_SHARES)}.")
    if schedule.relays:
        echo_line(f"{counted(schedule.relays, 'device')} that no rank is on relay.")
    if output is not None:
        echo_line(f"wrote {shown(output)}: {schedule.summary()}")


def _line(name: str, time_s: float, why: str, *, bold: bool = False) -> None:
    echo_line(why, label=f"{name:<12} {format_time(time_s):>8}  ", indent=23, bold=bold)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
