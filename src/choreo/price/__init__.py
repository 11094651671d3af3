"""The price of a schedule under alpha-beta-gamma, term by term, and the sizes at which another algorithm wins."""

from choreo.price.compare import WinningRange, compare, winners
from choreo.price.price import CostModel, Price, price
from choreo.price.profile import Profile, StepKind, Terms, profile

__all__ = [
    "CostModel",
    "Price",
    "Profile",
    "StepKind",
    "Terms",
    "WinningRange",
    "compare",
    "price",
    "profile",
    "winners",
]
