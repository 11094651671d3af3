"""Print a plan's step twice: estimated in closed form, and simulated on the topology."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from choreo.cli.output.plan.training_run import print_run, with_run
from choreo.cli.output.text.table import echo_json, echo_line
from choreo.cli.output.trace import print_workload
from choreo.cli.progress import Progress
from choreo.units import format_time

if TYPE_CHECKING:
    from choreo.plan import Planning
    from choreo.plan.training_run import TrainingRun
    from choreo.simulate import Packets

__all__ = ["print_simulated"]


def print_simulated(planning: Planning, run: TrainingRun | None, packets: Packets | None, as_json: bool) -> None:
    """Simulate the best plan's step, and print it beside the estimate."""
    from choreo.plan.simulation import simulate_plan

    with Progress("the step") as progress:
        found = simulate_plan(planning, packets=packets, progress=progress)
    if as_json:
        echo_json(with_run(found.to_dict(), run))
        return
    echo_line(f"{planning.model} as {found.plan}")
    parts, simulation = found.step.parts, found.run
    estimated = {
        "compute": parts["compute"] + parts["recompute"] + parts["optimizer"],
        "communication": parts["communication"] + parts["data parallel"],
        "bubble": parts["bubble"],
    }
    names = ", ".join(f"{format_time(seconds)} {name}" for name, seconds in estimated.items())
    left_out = f"; without {format_time(parts['stragglers'])} for stragglers" if parts["stragglers"] else ""
    echo_line(f"{format_time(found.estimated_s)} ({names}{left_out})", label=f"{'estimated':23}")
    simulated = {"compute": simulation.compute_s, "exposed": simulation.exposed_s, "idle": simulation.idle_s}
    names = ", ".join(f"{format_time(seconds)} {name}" for name, seconds in simulated.items())
    echo_line(f"{format_time(simulation.time_s)} ({names})", label=f"{'simulated':23}")
    echo_line(f"{found.ratio:.3f}", label=f"{'simulated / estimated':23}")
    print_run(run)
    click.echo()
    print_workload(simulation)
