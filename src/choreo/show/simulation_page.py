"""The page of a simulation: one HTML file that needs nothing else.

The markup, the style and the scripts are plain files in the folder `page`; here they are put into one, with the data
of the simulation. Names may come from anybody's file, so they are escaped for where they stand.
"""

from __future__ import annotations

import json
import re
from html import escape
from importlib.resources import files

from choreo.show.simulation_data import SimulationData, simulation_data
from choreo.show.simulation_network import scale_of
from choreo.show.simulation_words import whole
from choreo.show.words import printable
from choreo.simulate import Simulation
from choreo.units import counted, format_bytes

__all__ = ["simulation_html"]

SCRIPTS = (
    "simulation_words.js",
    "simulation_network.js",
    "simulation_diagram.js",
    "simulation_lists.js",
    "simulation.js",
)
MUCH = 1.25


def simulation_html(simulation: Simulation) -> str:
    """A page that plays a simulation: the load of the links, every message, and the critical path."""
    data = simulation_data(simulation)
    by = '<span class="by">by</span>'
    parts = {
        "TITLE": escape(data["title"]),
        "STYLE": _file("simulation.css"),
        "HEADING": f"{escape(data['collective'])} {by} {escape(data['algorithm'])}",
        "FACTS": escape(_facts(simulation)),
        "LAYOUT": _layout(data),
        "DATA": _embedded(data),
        "SCRIPT": "\n".join(_file(name) for name in SCRIPTS),
    }
    # One pass, so that a name that looks like a placeholder stays what it is.
    return re.sub("@([A-Z]+)@", lambda found: parts[found[1]], _file("simulation.html"))


def _facts(simulation: Simulation) -> str:
    """How much, between how many, and where."""
    ranks = counted(simulation.ranks, "rank")
    amount = f"{format_bytes(simulation.size_bytes)} between " if simulation.size_bytes else ""
    text = f"{amount}{ranks} on {whole(simulation.topology.name)}"
    for job in simulation.jobs[1:]:
        other = f"{job.schedule.collective} by {printable(job.schedule.algorithm)}"
        text += f"; together with {other}, {format_bytes(job.size_bytes)} between {counted(job.schedule.ranks, 'rank')}"
    return text


def _layout(data: SimulationData) -> str:
    """Above everything, or at the side: there, which leaves room for the rest, unless it would be much smaller."""
    scale = scale_of(*data["network"]["box"][2:])
    return "wide" if scale["wide"] > MUCH * scale["side"] else "side"


def _embedded(data: SimulationData) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _file(name: str) -> str:
    return (files("choreo.show") / "page" / name).read_text(encoding="utf-8")
