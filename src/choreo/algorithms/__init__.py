"""The library of algorithms, one file each, and the registry that finds them.

A module here whose name does not start with an underscore is an algorithm of that name. Adding one is adding a file.
"""

from choreo.algorithms._axes import BLOCK_ALGORITHM, Axes, AxesLike, axes_for, axes_of, parse_axes, squarest
from choreo.algorithms._build import build
from choreo.algorithms._cost import Cost
from choreo.algorithms._load import load_algorithms
from choreo.algorithms._registry import Algorithm, algorithm, get_algorithm, list_algorithms
from choreo.algorithms._requires import EVEN, POWER_OF_TWO, Requirement

__all__ = [
    "BLOCK_ALGORITHM",
    "EVEN",
    "POWER_OF_TWO",
    "Algorithm",
    "Axes",
    "AxesLike",
    "Cost",
    "Requirement",
    "algorithm",
    "axes_for",
    "axes_of",
    "build",
    "get_algorithm",
    "list_algorithms",
    "load_algorithms",
    "parse_axes",
    "squarest",
]
