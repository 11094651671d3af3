"""A verb over many cases: a graph of tasks on all cores, or on a Ray cluster. Every case is stored."""

from choreo.sweep.sweep import sweep
from choreo.sweep.table import Table

__all__ = ["Table", "sweep"]
