"""The cheapest arborescence: of all trees that lead from a root to every device, the one whose hops cost least.

Every device takes its cheapest hop in; where these make a cycle, the cycle is contracted to one device, solved, and
opened where it is entered.

Source: Y. J. Chu and T. H. Liu, "On the shortest arborescence of a directed graph", Science Sinica 14, 1965;
J. Edmonds, "Optimum branchings", Journal of Research of the National Bureau of Standards 71B, 1967.
"""

from __future__ import annotations

import numpy as np

from choreo.topology.graph import Floats, Ints

__all__ = ["cheapest_arborescence"]


def cheapest_arborescence(cost: Floats, root: int) -> Ints:
    """The parent of every device, -1 for the root's; `cost[u, v]` is that of the hop from u to v, infinite if none.

    >>> cheapest_arborescence(np.array([[np.inf, 1, 5], [1, np.inf, 1], [1, 1, np.inf]]), 0)
    array([-1,  0,  1])
    """
    costs = cost.copy()
    np.fill_diagonal(costs, np.inf)
    parent: Ints = np.argmin(costs, axis=0)
    parent[root] = -1
    cycle = np.array(_cycle(parent.tolist()), np.int64)
    if not len(cycle):
        return parent
    outside = np.setdiff1d(np.arange(len(costs)), cycle)
    # The contracted graph: the devices outside, and the cycle as the last.
    saved = costs[parent[cycle], cycle]  # to enter the cycle at v saves the hop that leads to v now
    into = costs[np.ix_(outside, cycle)] - saved
    out = costs[np.ix_(cycle, outside)]
    smaller = np.full((len(outside) + 1,) * 2, np.inf)
    smaller[:-1, :-1] = costs[np.ix_(outside, outside)]
    smaller[:-1, -1], smaller[-1, :-1] = into.min(axis=1), out.min(axis=0)
    found = cheapest_arborescence(smaller, int(np.searchsorted(outside, root)))
    last = len(outside)
    for index, device in enumerate(outside.tolist()):
        above = int(found[index])
        if above == last:
            parent[device] = cycle[int(np.argmin(out[:, index]))]
        elif above >= 0:
            parent[device] = outside[above]
    entered = int(found[last])
    parent[cycle[int(np.argmin(into[entered]))]] = outside[entered]
    return parent


def _cycle(parent: list[int]) -> list[int]:
    """The devices of a cycle of parents, if there is one."""
    state = [0] * len(parent)
    for start in range(len(parent)):
        path, at = [], start
        while at >= 0 and not state[at]:
            state[at] = 1
            path.append(at)
            at = parent[at]
        if at >= 0 and state[at] == 1:
            return sorted(path[path.index(at) :])
        for device in path:
            state[device] = 2
    return []
