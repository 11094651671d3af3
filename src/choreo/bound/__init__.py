"""The least time that any schedule could take on a network, and the cut that proves it."""

from choreo.bound.bound import Bound, Cut, bound

__all__ = ["Bound", "Cut", "bound"]
