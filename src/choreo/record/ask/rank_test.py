"""The Mann-Whitney rank test: are these samples larger than those, whatever their distribution?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache

__all__ = ["larger_p"]

MOST_EXACT = 20  # samples per side


def larger_p(after: Sequence[float], before: Sequence[float]) -> float:
    """The p-value: how likely `after` is this much larger than `before` if both have the same distribution.

    Exact for few samples without ties; otherwise by the normal distribution, with corrections for ties and continuity.

    >>> round(larger_p([5, 6, 7, 8, 9], [0, 1, 2, 3, 4]), 4)
    0.004
    >>> larger_p([1, 2, 3], [1, 2, 3]) > 0.5
    True
    """
    n, m = len(after), len(before)
    if not n or not m:
        return 1.0
    wins = sum((x > y) + 0.5 * (x == y) for x in after for y in before)
    ties = [count for count in Counter([*after, *before]).values() if count > 1]
    if not ties and max(n, m) <= MOST_EXACT:
        ways = [_ways(n, m, u) for u in range(n * m + 1)]
        return sum(ways[round(wins) :]) / sum(ways)
    total = n + m
    spread = n * m / 12 * (total + 1 - sum(count**3 - count for count in ties) / (total * (total - 1)))
    if spread <= 0:
        return 1.0  # all samples are equal
    z = (wins - n * m / 2 - 0.5) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2))


@cache
def _ways(n: int, m: int, wins: int) -> int:
    """The number of orders of n and m samples in which the n have that many wins."""
    if wins < 0 or wins > n * m:
        return 0
    if n == 0 or m == 0:
        return int(wins == 0)
    return _ways(n - 1, m, wins - m) + _ways(n, m - 1, wins)
