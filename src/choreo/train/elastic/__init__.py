"""Elastic training: ranks die, stop and come back, and no step is lost."""

from choreo.train.elastic.elastic import Change, Elastic

__all__ = ["Change", "Elastic"]
