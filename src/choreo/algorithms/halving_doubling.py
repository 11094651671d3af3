"""Halving-doubling: reduce_scatter by recursive halving, then all_gather by recursive doubling.

It is optimal in both terms at powers of two, and suits a switch. At other p, the ranks above the last power of two are
folded whole, as in recursive_doubling.py; rabenseifner.py folds by halves.

Source: Thakur, Rabenseifner, Gropp (see pairwise.py).
"""

from __future__ import annotations

from choreo.algorithms import Cost, algorithm, recursive_doubling
from choreo.schedule import Schedule, backwards, then


@algorithm("all_gather", cost=Cost(alpha="lg(p)", beta="(p - 1) / p", at="powers of two"))
def all_gather(ranks: int) -> Schedule:
    """Recursive doubling."""
    return recursive_doubling.all_gather(ranks)


@algorithm("reduce_scatter", cost=Cost(alpha="lg(p)", beta="(p - 1) / p", gamma="(p - 1) / p", at="powers of two"))
def reduce_scatter(ranks: int) -> Schedule:
    """Recursive halving is recursive doubling backwards."""
    return backwards(all_gather(ranks))


@algorithm(
    "all_reduce",
    cost=Cost(alpha="2 * lg(p)", beta="2 * (p - 1) / p", gamma="(p - 1) / p", at="powers of two"),
)
def all_reduce(ranks: int) -> Schedule:
    """Halving, then doubling."""
    return then(reduce_scatter(ranks), all_gather(ranks))
