"""Parameter server: everybody sends the whole vector to one rank, which sends the sum back to everybody.

Two rounds, but P - 1 vectors pass through the server's port each way. The first of five steps from the parameter server
to the ring, which docs/explanation/price.md compares.

Source: M. Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014.
"""

from __future__ import annotations

from choreo.algorithms import Cost, algorithm, linear
from choreo.schedule import Schedule, then


@algorithm("all_reduce", cost=Cost(alpha="2 * (p - 1)", beta="2 * (p - 1)", gamma="p - 1"))
def all_reduce(ranks: int) -> Schedule:
    """Reduce to rank 0, then broadcast from there."""
    return then(linear.reduce(ranks, 0), linear.broadcast(ranks, 0))
