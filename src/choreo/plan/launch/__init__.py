"""A plan as command-line options of the programs that can run it."""

from choreo.plan.launch.launch import Launch, launches

__all__ = ["Launch", "launches"]
