"""How far predictions are from measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = ["grouped", "mean", "relative_error"]

R = TypeVar("R")


def relative_error(predicted: float, measured: float) -> float:
    """Predicted over measured, minus one: 0.1 is ten per cent too much.

    >>> relative_error(3.0, 2.0)
    0.5
    """
    return predicted / measured - 1


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are not None; None if there are none.

    >>> mean([1.0, None, 2.0]), mean([])
    (1.5, None)
    """
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


def grouped(rows: Iterable[R], key: Callable[[R], str]) -> dict[str, list[R]]:
    """Rows by a key, in the order the keys first appear.

    >>> grouped(["ab", "c", "de"], lambda text: str(len(text)))
    {'2': ['ab', 'de'], '1': ['c']}
    """
    found: dict[str, list[R]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found
