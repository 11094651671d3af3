"""Pictures: of a schedule as text, SVG and an animated page, with the data behind them; of a network as SVG;
of a simulation as a page and as a timeline.
"""

from choreo.show.notebook import notebook_html
from choreo.show.schedule.data import to_data
from choreo.show.schedule.page import to_html
from choreo.show.schedule.svg.picture import to_svg
from choreo.show.schedule.text.text import to_text
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
