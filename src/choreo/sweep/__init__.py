"""A verb over many cases at once: a graph of tasks on all cores, or on a Ray cluster; every case is kept."""

from choreo.sweep.sweep import sweep
from choreo.sweep.table import Table

__all__ = ["Table", "sweep"]
