"""Synthesize a schedule for a given network, prove it, and keep the fastest of several approaches."""

from choreo.synthesize.problem import EFFORTS
from choreo.synthesize.synthesize import Synthesis, search, synthesize

__all__ = ["EFFORTS", "Synthesis", "search", "synthesize"]
