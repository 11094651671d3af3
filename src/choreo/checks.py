"""Checks of arguments that several verbs take: whole numbers, numbers of ranks, roots."""

from __future__ import annotations

from numbers import Integral
from typing import SupportsIndex, TypeGuard

from choreo.errors import UsageError, excerpt

__all__ = ["MAX_RANKS", "check_rank", "check_ranks", "is_whole", "whole_number"]

MAX_RANKS = 1 << 22


def is_whole(value: object) -> TypeGuard[int]:
    """Whether this is a whole number, Python's or NumPy's. NumPy registers durations as whole numbers, too.

    >>> import numpy as np
    >>> is_whole(np.int8(3)), is_whole(np.timedelta64(3, "s")), is_whole(True)
    (True, False, False)
    """
    if type(value) is int:  # nearly always, and much faster
        return True
    return isinstance(value, Integral) and not isinstance(value, bool) and isinstance(value, SupportsIndex)


def whole_number(name: str, value: object, least: int = 1) -> int:
    """A whole number, Python's or NumPy's, of at least `least`.

    >>> whole_number("segments", 4)
    4
    >>> whole_number("segments", 0)
    Traceback (most recent call last):
    choreo.errors.UsageError: segments must be a whole number of at least 1, not 0
    """
    if not is_whole(value) or value < least:
        raise UsageError(f"{name} must be a whole number of at least {least}, not {excerpt(value)}")
    return int(value)


def check_ranks(ranks: object) -> int:
    """The number of ranks, if it is one.

    >>> check_ranks(8)
    8
    """
    if not is_whole(ranks) or not 1 <= ranks <= MAX_RANKS:
        raise UsageError(f"ranks must be a whole number from 1 to {MAX_RANKS}, not {excerpt(ranks)}")
    return int(ranks)


def check_rank(name: str, rank: object, ranks: int) -> int:
    """One of the ranks 0 to `ranks` - 1; `name` says what it is for.

    >>> check_rank("root", 8, ranks=8)
    Traceback (most recent call last):
    choreo.errors.UsageError: root 8 is not a rank: with 8 ranks it must be 0 to 7
    """
    if not is_whole(rank) or not 0 <= rank < ranks:
        among = f"with {ranks} ranks it must be 0 to {ranks - 1}" if ranks > 1 else "with 1 rank it must be 0"
        raise UsageError(f"{name} {excerpt(rank)} is not a rank: {among}")
    return int(rank)
