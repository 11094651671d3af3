"""What a schedule costs under alpha-beta-gamma, term by term, and when another algorithm wins."""

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
