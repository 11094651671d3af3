"""The web page that combines all verbs, served from this machine."""

from choreo.explore.explore import explore

__all__ = ["explore"]
