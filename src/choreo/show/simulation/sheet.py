"""A simulation in figures, with the network coloured by the load of its links."""

from __future__ import annotations

from choreo.errors import ChoreoError
from choreo.show.schedule.words import printable
from choreo.show.sheet import Sheet, SheetTable
from choreo.show.simulation.words import title
from choreo.show.topology.picture import topology_svg
from choreo.simulate import Simulation
from choreo.units import counted, format_bandwidth, format_bytes, format_time

__all__ = ["load_svg", "simulation_sheet"]


def simulation_sheet(simulation: Simulation) -> Sheet:
    """Its time against the bound, its bandwidth, and where the load is."""
    facts = [("ranks", f"{simulation.ranks:,}"), ("time", format_time(simulation.job_time_s(0))), _bound(simulation)]
    facts += [
        ("algbw", format_bandwidth(simulation.algbw_bytes_per_s)),
        ("busbw", format_bandwidth(simulation.busbw_bytes_per_s)),
    ]
    busiest = simulation.busiest_link
    if busiest is not None:
        ends = f"{printable(busiest.src)} → {printable(busiest.dst)}"
        facts.append(("busiest link", f"{ends}: {100 * busiest.utilisation:.1f} % of its bandwidth"))
    return Sheet(title(simulation), tuple(facts), _others(simulation))


def load_svg(simulation: Simulation) -> str:
    """The network, every link coloured by the part of its bandwidth that was used."""
    return topology_svg(simulation.topology, load=simulation.utilisation)


def _bound(simulation: Simulation) -> tuple[str, str]:
    try:
        bound_s = simulation.bound.bound_s
        return "bound", f"{format_time(bound_s)}, {100 * simulation.efficiency:.1f} % of it reached"
    except ChoreoError as error:
        return "bound", f"none: {error}"


def _others(simulation: Simulation) -> tuple[SheetTable, ...]:
    """The collectives that ran beside the first."""
    rows = tuple(
        (
            job.schedule.collective,
            printable(job.schedule.algorithm),
            counted(job.schedule.ranks, "rank"),
            format_bytes(job.size_bytes),
            format_time(simulation.job_time_s(number)),
        )
        for number, job in enumerate(simulation.jobs)
    )
    columns = ("collective", "algorithm", "ranks", "size", "time")
    return (SheetTable("all collectives", columns, rows, (2, 3, 4)),) if len(rows) > 1 else ()
