"""Shares of the ranks that minimize the bound: a rank with slow links gets a block of the size that suits it best.

In an all_gather a rank sends its own block and receives all others. A larger block for a slow rank is less to receive
and more to send, and somewhere in between both take equally long. Cuts of several ranks count likewise, so it is a
linear program: no set of ranks may hold more than the links out of it carry in the time. It starts with a few sets. The
bound of its solution names the slowest set, which is added, until the bound agrees with the program.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog

from choreo.bound import bound
from choreo.errors import UsageError
from choreo.topology import Topology
from choreo.topology.graph import Floats, Ints

__all__ = ["best_shares", "evener"]

# How far the bound may be above the program's time, and the most sets that are added.
TOLERANCE, ROUNDS = 1e-4, 200
# The cost of unequal shares, as a fraction of the slowest cut's time: of equally good ones the most even are taken.
UNEQUAL = 1e-3
# Shares that gain less than this are left equal.
WORTH = 1.01
# What is slower than this fraction of the fastest is taken to be as fast as this.
SLOWEST = 1e-6
# Shares are given to the bound in multiples of this fraction of all data. A smaller share is a rounding error.
PARTS = 1 << 20
GB = 1e9


def best_shares(collective: str, topology: Topology, devices: Ints) -> Floats:
    """The fraction of the data that each rank's block should be, for an all_gather or a reduce_scatter.

    Shares are equal if others gain nothing.

    >>> from choreo.topology import get_topology
    >>> slow = get_topology("switch(4, 100GB/s, 1us)").with_slow_device(3, 2)
    >>> best_shares("all_gather", slow, np.arange(4)).round(3).tolist()
    [0.167, 0.167, 0.167, 0.5]
    """
    if collective not in ("all_gather", "reduce_scatter"):
        raise UsageError(
            f"shares are found for all_gather and reduce_scatter, not for {collective}; give them as numbers, or leave "
            "them out"
        )
    ranks = len(devices)
    if ranks < 2:
        return np.ones(ranks)
    even_s = bound(collective, topology, GB, devices=devices).bandwidth_bound_s
    inside, capacity = _single_ranks(collective, topology, devices)
    for _ in range(ROUNDS):
        shares, time_s = _solved(inside, capacity)
        found = bound(collective, topology, GB, devices=devices, weights=_whole(shares))
        if found.bandwidth_bound_s <= time_s * (1 + TOLERANCE):
            break
        cut = np.isin(devices, found.cut.devices)
        inside = np.vstack((inside, ~cut if collective == "reduce_scatter" else cut))
        capacity = np.append(capacity, sum(link["bandwidth_bytes_per_s"] for link in found.cut_links) / GB)
    equal = np.full(ranks, 1 / ranks)
    return equal if even_s <= time_s * WORTH else _whole(shares) / PARTS


def evener(weights: Ints, part: float) -> Ints:
    """Weights that are only partly as uneven.

    >>> evener(np.array([10, 20, 60]), 0.5).tolist()
    [20, 25, 45]
    """
    found: Ints = np.round(part * weights + (1 - part) * weights.mean()).astype(np.int64)
    return found


def _single_ranks(collective: str, topology: Topology, devices: Ints) -> tuple[Floats, Floats]:
    """Each rank alone, and all ranks but one: who holds what must leave, and the GB/s at which it may leave."""
    links, count = topology.links, topology.num_nodes
    out, into = (np.bincount(end, links.bandwidth_bytes_per_s, count)[devices] / GB for end in (links.src, links.dst))
    if collective == "reduce_scatter":  # in a reduce_scatter the contributions to a rank's block come in
        out, into = into, out
    alone = np.eye(len(devices))
    return np.vstack((alone, 1 - alone)), np.concatenate((out, into))


def _solved(inside: Floats, capacity: Floats) -> tuple[Floats, float]:
    """The shares, and the least seconds per GB of all data if only these sets of ranks count."""
    sets, ranks = inside.shape
    fastest = float(capacity.max())
    # The solver fails at numbers of very different size.
    capacity = np.where(capacity > 0, np.maximum(capacity / fastest, SLOWEST), 0.0)
    one, none = np.ones((ranks, 1)), np.zeros((ranks, 1))
    # After the shares come the time, the smallest share, and the largest.
    most = np.vstack(
        (
            np.hstack((inside, -capacity[:, None], np.zeros((sets, 2)))),
            np.hstack((-np.eye(ranks), none, one, none)),
            np.hstack((np.eye(ranks), none, none, -one)),
        )
    )
    slow_s = 1 / float(capacity[capacity > 0].min())
    cost = np.concatenate((np.zeros(ranks), [1.0, -UNEQUAL * slow_s, UNEQUAL * slow_s / ranks]))
    whole = np.concatenate((np.ones(ranks), np.zeros(3)))[None, :]
    found = linprog(cost, most, np.zeros(sets + 2 * ranks), whole, [1.0], method="highs")
    assert found.x is not None, found.message
    return np.maximum(found.x[:ranks], 0.0), float(found.x[ranks]) / fastest


def _whole(shares: Floats) -> Ints:
    whole: Ints = np.round(shares / shares.sum() * PARTS).astype(np.int64)
    return whole
