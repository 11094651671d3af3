"""What `choreo simulate` runs for a collective or a schedule file: one schedule, several, or several sizes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from choreo.cli.options.packets import PACKET_OPTIONS
from choreo.cli.options.simulate import Asked, StoppedError
from choreo.cli.output.text.files import afterwards, on_stdout, write_page
from choreo.cli.output.text.table import echo_json, echo_note
from choreo.cli.recording import keep

if TYPE_CHECKING:
    from choreo.simulate import Simulation

__all__ = ["rank_all", "simulate_one", "simulate_sweep"]

# What distinguishes runs; `--compare` says which of these differ.
SETTINGS = (
    "placement",
    "slow_link",
    "slow_rank",
    "routing",
    "gamma",
    "store_and_forward",
    "segments",
    "rotate",
    "beside",
    "packets",
    *PACKET_OPTIONS,
)


def simulate_one(asked: Asked, size: int, as_json: bool, trace: Path | None, html: Path | None) -> None:
    """Simulate one schedule at one size, and write its pictures."""
    from choreo.cli.output.collective.simulation import print_simulation

    schedule = asked.schedule(size)
    simulation = asked.run(schedule, size)
    keep(simulation)
    with afterwards(lambda: _write(simulation, trace, html)):
        if as_json:
            options = click.get_current_context().params
            settings = {name: options[name] for name in SETTINGS if options[name]}
            if options["lossless"] is False:
                settings["lossless"] = False
            echo_json(simulation.to_dict(details=True) | {"settings": settings})
        elif not on_stdout(html):
            print_simulation(simulation)


def _write(simulation: Simulation, trace: Path | None, html: Path | None) -> None:
    if html is not None:
        from choreo.show import simulation_html

        write_page(html, simulation_html(simulation))
    if trace is not None:
        from choreo.show import write_trace

        write_trace(simulation, trace)
        click.echo(f"wrote {trace}: open it in ui.perfetto.dev or chrome://tracing", err=True)


def rank_all(asked: Asked, size: int, as_json: bool) -> None:
    """Simulate several schedules at one size, and print the fastest first."""
    from choreo.cli.output.collective.simulation import print_ranking

    try:
        simulations = asked.run_all(asked.schedules(), size)
    except StoppedError as stopped:
        if stopped.done and not as_json:
            print_ranking(sorted(stopped.done, key=_time_s), low_effort=asked.low_effort)
            echo_note(f"stopped: {len(stopped.done)} of {stopped.asked} algorithms were simulated")
        raise
    simulations.sort(key=_time_s)
    keep(simulations)
    if as_json:
        echo_json(simulations)
    else:
        print_ranking(simulations, low_effort=asked.low_effort)


def simulate_sweep(asked: Asked, sizes: list[int], as_json: bool) -> None:
    """A run of each algorithm at each size; of --algorithm all, only the fastest is printed."""
    from choreo.cli.output.collective.simulation import print_sweep

    schedules = asked.schedules()
    if len(schedules) > 1:  # what cannot run here is said once
        schedules = asked.those_that_run(schedules)
    runs = [asked.run_all(schedules, size) for size in sizes]
    keep([run for here in runs for run in here])
    if "all" in asked.chosen.algorithms:
        runs = [[min(here, key=_time_s)] for here in runs]
    if not as_json:
        print_sweep(runs, len(schedules) + asked.synthesizes, low_effort=asked.low_effort)
    elif asked.many and "all" not in asked.chosen.algorithms:
        echo_json([run.to_dict() | {"best": run is min(here, key=_time_s)} for here in runs for run in here])
    else:
        echo_json([here[0] for here in runs])


def _time_s(simulation: Simulation) -> float:
    return simulation.job_time_s(0)
