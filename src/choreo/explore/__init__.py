"""The page where everything hangs together, served from this machine."""

from choreo.explore.explore import explore

__all__ = ["explore"]
