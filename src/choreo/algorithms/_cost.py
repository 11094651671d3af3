"""Closed-form costs that algorithms state. The tests compare them with the price of the schedule."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from choreo.errors import UsageError

__all__ = ["Cost"]

_NATURAL: dict[str, Callable[[int], bool]] = {
    "any p": lambda p: True,
    "even p": lambda p: p % 2 == 0,
    "odd p": lambda p: p % 2 == 1,
    "powers of two": lambda p: p & (p - 1) == 0,
    "powers of two above 2": lambda p: p & (p - 1) == 0 and p > 2,
    "powers of four": lambda p: p & (p - 1) == 0 and p.bit_length() % 2 == 1,
    "squares": lambda p: math.isqrt(p) ** 2 == p,
}


@dataclass(frozen=True, slots=True)
class Cost:
    """The closed-form cost of an algorithm: the coefficients of α, n β and n γ.

    Each is a Python expression in `p` (ranks), `k` (segments), `lg` (the logarithm to base 2, rounded up) and `sqrt`
    (of a square). The text that is shown is the text that the tests check. `at` says at which numbers of ranks the
    formula is exact.
    """

    alpha: str
    beta: str = "0"
    gamma: str = "0"
    at: str = "any p"

    def __post_init__(self) -> None:
        for text in (self.alpha, self.beta, self.gamma):
            try:
                ast.parse(text, mode="eval")
            except (SyntaxError, TypeError, ValueError):
                raise UsageError(f"{text!r:.80} is not a cost; write an expression like 2 * (p - 1) / p") from None
        if self.at not in _NATURAL:
            raise UsageError(f"a cost cannot be stated at {self.at!r}; choose one of {', '.join(_NATURAL)}")

    def holds_at(self, ranks: int) -> bool:
        """Whether the formula is exact for this number of ranks."""
        return ranks > 1 and _NATURAL[self.at](ranks)

    def terms(self, ranks: int, segments: int = 1) -> tuple[Fraction, Fraction, Fraction]:
        """Messages, and the multiples of n sent and reduced, along the slowest ranks."""
        names = {"p": Fraction(ranks), "k": Fraction(segments), "lg": _ceil_log2, "sqrt": _root}
        # The expressions are the algorithm author's own code, from the same file as the algorithm.
        values = (Fraction(eval(text, {"__builtins__": {}}, names)) for text in (self.alpha, self.beta, self.gamma))
        alpha, beta, gamma = values
        return alpha, beta, gamma

    def __str__(self) -> str:
        factors = ((self.alpha, "α"), (self.beta, "n β"), (self.gamma, "n γ"))
        terms = " + ".join(_term(text, symbol) for text, symbol in factors if text != "0")
        return terms if self.at == "any p" else f"{terms} ({self.at})"


def _ceil_log2(value: Fraction) -> int:
    return (int(value) - 1).bit_length()


def _root(value: Fraction) -> Fraction:
    return Fraction(math.isqrt(int(value)))


def _term(text: str, symbol: str) -> str:
    if text == "1":
        return symbol
    shown = text.replace("*", "").replace("  ", " ").replace("lg(p)", "lg p").replace("sqrt(p)", "√p")
    top = ast.parse(text, mode="eval").body
    is_sum = isinstance(top, ast.BinOp) and isinstance(top.op, ast.Add | ast.Sub)
    return f"({shown}) {symbol}" if is_sum else f"{shown} {symbol}"
