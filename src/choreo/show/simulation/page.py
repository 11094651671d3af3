"""The page of a simulation: one self-contained HTML file."""

from __future__ import annotations

from html import escape

from choreo.show.schedule.words import printable
from choreo.show.simulation.data import SimulationData, simulation_data
from choreo.show.simulation.network import scale_of
from choreo.show.simulation.words import whole
from choreo.show.web.page import assemble
from choreo.simulate import Simulation
from choreo.units import counted, format_bytes

__all__ = ["simulation_html"]

MUCH = 1.25


def simulation_html(simulation: Simulation) -> str:
    """A page that plays a simulation: the load of the links, every message, and the critical path."""
    data = simulation_data(simulation)
    by = '<span class="by">by</span>'
    parts = {
        "TITLE": escape(data["title"]),
        "HEADING": f"{escape(data['collective'])} {by} {escape(data['algorithm'])}",
        "FACTS": escape(_facts(simulation)),
        "LAYOUT": _layout(data),
    }
    return assemble("simulation", "page", data, parts)


def _facts(simulation: Simulation) -> str:
    """The size, the ranks and the topology."""
    ranks = counted(simulation.ranks, "rank")
    amount = f"{format_bytes(simulation.size_bytes)} between " if simulation.size_bytes else ""
    text = f"{amount}{ranks} on {whole(simulation.topology.name)}"
    for job in simulation.jobs[1:]:
        other = f"{job.schedule.collective} by {printable(job.schedule.algorithm)}"
        text += f"; together with {other}, {format_bytes(job.size_bytes)} between {counted(job.schedule.ranks, 'rank')}"
    return text


def _layout(data: SimulationData) -> str:
    """Where the network goes: at the side, unless it would be much larger above everything."""
    scale = scale_of(*data["network"]["box"][2:])
    return "wide" if scale["wide"] > MUCH * scale["side"] else "side"
