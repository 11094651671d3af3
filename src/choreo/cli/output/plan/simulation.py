"""Print a plan's step twice: estimated in closed form, and simulated on the topology."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from choreo.cli.output.text.table import echo_json, echo_line
from choreo.cli.output.trace import print_workload
from choreo.cli.progress import Progress
from choreo.units import format_time

if TYPE_CHECKING:
    from choreo.plan import Planning
    from choreo.simulate import Packets

__all__ = ["print_simulated"]


def print_simulated(planning: Planning, packets: Packets | None, as_json: bool) -> None:
    """Simulate the best plan, and say where the two differ."""
    from choreo.plan.simulation import simulate_plan

    with Progress("the step") as progress:
        found = simulate_plan(planning, packets=packets, progress=progress)
    if as_json:
        echo_json(found.to_dict())
        return
    echo_line(f"{planning.model} as {found.plan}")
    parts, run = found.step.parts, found.run
    estimated = {
        "compute": parts["compute"] + parts["recompute"] + parts["optimizer"],
        "communication": parts["communication"] + parts["data parallel"],
        "bubble": parts["bubble"],
    }
    names = ", ".join(f"{format_time(seconds)} {name}" for name, seconds in estimated.items())
    echo_line(f"{format_time(found.estimated_s)} ({names})", label=f"{'estimated':23}")
    simulated = (
        f"{format_time(run.compute_s)} compute, {format_time(run.exposed_s)} exposed, {format_time(run.idle_s)} idle"
    )
    echo_line(f"{format_time(run.time_s)} ({simulated})", label=f"{'simulated':23}")
    echo_line(f"{found.ratio:.3f}", label=f"{'simulated / estimated':23}")
    click.echo()
    print_workload(run)
