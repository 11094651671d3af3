"""Naive decentralised: each rank in turn collects everybody's whole vector, one message after another.

P (P - 1) rounds, in each of which all but two ranks are idle. The second of five steps from the parameter server to the
ring.
"""

from __future__ import annotations

from choreo.algorithms import Cost, algorithm
from choreo.schedule import Schedule, move


@algorithm("all_reduce", cost=Cost(alpha="p * (p - 1)", beta="p * (p - 1)", gamma="p * (p - 1)"), same_bits=False)
def all_reduce(ranks: int) -> Schedule:
    """In step k the rank whose turn it is, k // (P - 1), gets the input of the next rank on its list."""
    return Schedule.from_rule(
        "all_reduce",
        ranks,
        ranks * (ranks - 1),
        lambda k: move(
            (k // (ranks - 1) + 1 + k % (ranks - 1)) % ranks,
            k // (ranks - 1),
            0,
            reduce=True,
            from_input=True,
        ),
    )
