"""Requirements of algorithms on the number of ranks, with the words that errors quote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["EVEN", "POWER_OF_TWO", "Requirement"]


@dataclass(frozen=True, slots=True)
class Requirement:
    """A condition on the number of ranks and the words for it: "a power of two"."""

    text: str
    holds: Callable[[int], bool]


POWER_OF_TWO = Requirement("a number of ranks that is a power of two", lambda ranks: ranks & (ranks - 1) == 0)
EVEN = Requirement("an even number of ranks", lambda ranks: ranks % 2 == 0)
