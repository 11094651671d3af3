"""The best that any schedule could do on a network, and the cut that proves it."""

from choreo.bound.bound import Bound, Cut, bound

__all__ = ["Bound", "Cut", "bound"]
