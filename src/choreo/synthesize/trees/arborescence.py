"""The cheapest arborescence: the least-cost tree from a root to every device.

Every device takes its cheapest incoming hop. Where these form cycles, each cycle is contracted to one device, the
smaller problem is solved, and the cycle is opened where the solution enters it.

Source: Y. J. Chu and T. H. Liu, "On the shortest arborescence of a directed graph", Science Sinica 14, 1965; J.
Edmonds, "Optimum branchings", Journal of Research of the National Bureau of Standards 71B, 1967.
"""

from __future__ import annotations

import numpy as np

from choreo.topology.graph import Floats, Ints

__all__ = ["cheapest_arborescence"]


def cheapest_arborescence(cost: Floats, root: int) -> Ints:
    """The parent of every device, -1 for the root; `cost[u, v]` is the cost of the hop u to v, or infinite.

    >>> cheapest_arborescence(np.array([[np.inf, 1, 5], [1, np.inf, 1], [1, 1, np.inf]]), 0)
    array([-1,  0,  1])
    """
    costs = cost.copy()
    np.fill_diagonal(costs, np.inf)
    parent: Ints = np.argmin(costs, axis=0)
    parent[root] = -1
    cycles = _cycles(parent.tolist())
    if not cycles:
        return parent
    # The contracted graph: one device for each cycle, and one for each device outside all cycles.
    label = np.full(len(costs), -1)
    for number, cycle in enumerate(cycles):
        label[cycle] = number
    alone = np.flatnonzero(label < 0)
    label[alone] = len(cycles) + np.arange(len(alone))
    inner = np.concatenate(cycles)
    costs[:, inner] -= costs[parent[inner], inner]  # entering a cycle at v saves the hop that leads to v now
    order = np.argsort(label, kind="stable")
    starts = np.searchsorted(label[order], np.arange(len(cycles) + len(alone) + 1))
    between = costs[order][:, order]
    smaller = np.minimum.reduceat(np.minimum.reduceat(between, starts[:-1], axis=0), starts[:-1], axis=1)
    found = cheapest_arborescence(smaller, int(label[root]))
    single = np.diff(starts) == 1
    both = np.flatnonzero(single & single[found] & (found >= 0))
    parent[order[starts[both]]] = order[starts[found[both]]]
    for here in np.flatnonzero(~(single & single[found]) & (found >= 0)).tolist():
        above = int(found[here])
        rows, columns = slice(starts[above], starts[above + 1]), slice(starts[here], starts[here + 1])
        block = between[rows, columns]
        best = divmod(int(np.argmin(block)), block.shape[1])
        parent[order[columns][best[1]]] = order[rows][best[0]]
    return parent


def _cycles(parent: list[int]) -> list[list[int]]:
    """The devices of each cycle in the parent graph."""
    found: list[list[int]] = []
    state = [0] * len(parent)
    for start in range(len(parent)):
        path, at = [], start
        while at >= 0 and not state[at]:
            state[at] = 1
            path.append(at)
            at = parent[at]
        if at >= 0 and state[at] == 1:
            found.append(path[path.index(at) :])
        for device in path:
            state[device] = 2
    return found
