"""The outputs that each kind of object has: text, a page, a picture, and a notebook cell.

Each kind imports its own modules on demand, so that drawing a schedule does not load the planner.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from choreo.errors import UsageError
from choreo.results import Result
from choreo.show.sheet import Sheet, sheet_html, sheet_page, sheet_text

__all__ = ["notebook_html", "to_html", "to_svg", "to_text"]


@dataclass(frozen=True, slots=True)
class Kind:
    """What there is for one kind; `sheet` gives facts and tables, for kinds without a function of their own."""

    sheet: Callable[[Any], Sheet] | None = None
    text: Callable[..., str] | None = None
    page: Callable[[Any], str] | None = None
    picture: Callable[[Any], str] | None = None
    cell: Callable[[Any], str] | None = None
    only_picture: bool = False  # the picture shows what the sheet says, so a cell and a page need no more


def _schedule() -> Kind:
    from choreo.show.schedule.notebook import schedule_cell
    from choreo.show.schedule.page import to_html
    from choreo.show.schedule.svg.picture import to_svg
    from choreo.show.schedule.text.text import to_text

    return Kind(text=to_text, page=to_html, picture=to_svg, cell=schedule_cell)


def _topology() -> Kind:
    from choreo.show.topology.picture import topology_svg
    from choreo.show.topology.sheet import topology_sheet

    return Kind(topology_sheet, picture=topology_svg, only_picture=True)


def _simulation() -> Kind:
    from choreo.show.simulation.page import simulation_html
    from choreo.show.simulation.sheet import load_svg, simulation_sheet

    return Kind(simulation_sheet, page=simulation_html, picture=load_svg)


def _planning() -> Kind:
    from choreo.show.plan.page import plan_html
    from choreo.show.plan.sheet import planning_sheet

    return Kind(planning_sheet, page=plan_html)


def _planned() -> Kind:
    from choreo.show.plan.sheet import planned_sheet

    return Kind(planned_sheet)


def _step() -> Kind:
    from choreo.show.plan.sheet import step_sheet

    return Kind(step_sheet)


def _benchmark() -> Kind:
    from choreo.show.bench import benchmark_sheet

    return Kind(benchmark_sheet)


def _training_run() -> Kind:
    from choreo.show.train.picture import training_svg
    from choreo.show.train.sheet import training_sheet

    return Kind(training_sheet, picture=training_svg)


def _workload() -> Kind:
    from choreo.show.workload.picture import workload_svg
    from choreo.show.workload.sheet import workload_sheet

    return Kind(workload_sheet, picture=workload_svg)


def _table() -> Kind:
    from choreo.show.sweep import sweep_cell, sweep_page, sweep_sheet, sweep_svg

    return Kind(sweep_sheet, page=sweep_page, picture=sweep_svg, cell=sweep_cell)


def _any_result() -> Kind:
    from choreo.show.values import result_sheet

    return Kind(result_sheet)


# By the name of the class.
KINDS: Mapping[str, Callable[[], Kind]] = {
    "Schedule": _schedule,
    "Topology": _topology,
    "Simulation": _simulation,
    "Planning": _planning,
    "Planned": _planned,
    "Step": _step,
    "Benchmark": _benchmark,
    "TrainingRun": _training_run,
    "WorkloadSimulation": _workload,
    "Table": _table,
}
PICTURES = "Schedule, Topology, Simulation, Table, TrainingRun, WorkloadSimulation"


def to_text(thing: object, *, width: int | None = None, color: bool = False) -> str:
    """A schedule step by step, or any other thing as facts and tables, at most `width` columns wide.

    `width` is the terminal's unless given. `color` adds terminal colours: in a schedule, orange is what a step adds,
    blue what it copies, and red what is wrong.

    >>> from choreo import CostModel, build, price
    >>> prices = [price(build("broadcast", "mst", p), 1024, CostModel(1e-6, 1e9)) for p in (4, 8)]
    >>> print(to_text(prices, width=60), end="")
    collective  ranks   size  algorithm  steps    alpha     beta
    broadcast       4  1 KiB  mst            2  2.00 us  2.05 us
    broadcast       8  1 KiB  mst            3  3.00 us  3.07 us
    too narrow for: gamma, total time, max bytes sent, max bytes
      received, max fan in, total bytes
    """
    columns = max(40, width or shutil.get_terminal_size((120, 40)).columns)
    kind = _kind(thing)
    if kind.text is not None:
        return kind.text(thing, width=columns, color=color)
    assert kind.sheet is not None
    return sheet_text(kind.sheet(thing), width=columns, color=color)


def to_html(thing: object) -> str:
    """A page, one HTML file that needs nothing else. Schedules and simulations play; plans can be compared.

    >>> from choreo import build
    >>> to_html(build("all_reduce", "ring", 4)).splitlines()[0]
    '<!doctype html>'
    """
    kind = _kind(thing)
    return sheet_page(_drawn_sheet(kind, thing)) if kind.page is None else kind.page(thing)


def to_svg(thing: object) -> str:
    """A still picture for a paper, a slide or a README: of a schedule, a topology, or the links a simulation used.

    >>> from choreo import get_topology
    >>> to_svg(get_topology("ring(4, 50GB/s, 1us)")).startswith("<svg ")
    True
    """
    kind = _kind(thing)
    if kind.picture is None:
        raise UsageError(f"there is no SVG picture of a {type(thing).__name__}, only of {PICTURES}; use text or html")
    return kind.picture(thing)


def notebook_html(thing: object) -> str:
    """What a notebook shows for an object: its picture if it has one, and its facts and tables."""
    kind = _kind(thing)
    return sheet_html(_drawn_sheet(kind, thing)) if kind.cell is None else kind.cell(thing)


def _kind(thing: object) -> Kind:
    for ancestor in type(thing).__mro__:
        if ancestor.__module__.startswith("choreo.") and ancestor.__name__ in KINDS:
            return KINDS[ancestor.__name__]()
    several = isinstance(thing, list | tuple) and bool(thing)
    if all(map(_shown, thing)) if several else _shown(thing):  # type: ignore[call-overload]
        return _any_result()
    raise UsageError(
        f"an object of type {type(thing).__name__} cannot be shown; give a schedule, a topology, the result of a verb, "
        "or a list of results"
    )


def _shown(thing: object) -> bool:
    return isinstance(thing, Result) or (
        dataclasses.is_dataclass(thing) and type(thing).__module__.startswith("choreo.")
    )


def _drawn_sheet(kind: Kind, thing: object) -> Sheet:
    """The sheet with its picture, where there is one."""
    picture = "" if kind.picture is None else kind.picture(thing)
    if kind.only_picture:
        return Sheet("", picture=picture)
    assert kind.sheet is not None
    return dataclasses.replace(kind.sheet(thing), picture=picture)
