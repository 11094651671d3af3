"""Draw schedules, networks, simulations, plans and every verb's result: as text, SVG, pages and notebook cells."""

from choreo.show.kinds import notebook_html, to_html, to_svg, to_text
from choreo.show.schedule.data import to_data
from choreo.show.show import show
from choreo.show.simulation.page import simulation_html
from choreo.show.simulation.trace import write_trace
from choreo.show.topology.picture import topology_svg

__all__ = [
    "notebook_html",
    "show",
    "simulation_html",
    "to_data",
    "to_html",
    "to_svg",
    "to_text",
    "topology_svg",
    "write_trace",
]
