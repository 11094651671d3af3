"""A schedule for a network: made for its links, proved, and the best of several ways of making one."""

from choreo.synthesize.problem import EFFORTS
from choreo.synthesize.synthesize import Synthesis, search, synthesize

__all__ = ["EFFORTS", "Synthesis", "search", "synthesize"]
