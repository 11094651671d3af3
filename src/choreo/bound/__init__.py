"""A lower bound on the time of any schedule on a network, and the cut that proves it."""

from choreo.bound.bound import Bound, Cut, bound

__all__ = ["Bound", "Cut", "bound"]
