"""Pictures of a schedule: text for a terminal, one SVG, an animated page, and the data behind them."""

from choreo.show.data import to_data
from choreo.show.display import show
from choreo.show.notebook import notebook_html
from choreo.show.page import to_html
from choreo.show.svg import to_svg
from choreo.show.text import to_text

__all__ = ["notebook_html", "show", "to_data", "to_html", "to_svg", "to_text"]
