"""The contracts: for each collective, what every rank holds before and must hold after."""

from choreo.collectives.bandwidth import Bandwidths
from choreo.collectives.contract import COLLECTIVES, Collective, Layout, collective_between, get_collective

__all__ = ["COLLECTIVES", "Bandwidths", "Collective", "Layout", "collective_between", "get_collective"]
