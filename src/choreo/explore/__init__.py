"""The page that brings everything together, served from this machine."""

from choreo.explore.explore import explore

__all__ = ["explore"]
