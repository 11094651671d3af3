"""Pictures: of a schedule as text, SVG and an animated page, with the data behind them; of a network as SVG;
of a simulation as a page and as a timeline.
"""

from choreo.show.data import to_data
from choreo.show.notebook import notebook_html
from choreo.show.page import to_html
from choreo.show.show import show
from choreo.show.simulation_page import simulation_html
from choreo.show.svg import to_svg
from choreo.show.text import to_text
from choreo.show.topology_picture import topology_svg
from choreo.show.trace import write_trace

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
