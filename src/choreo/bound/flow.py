"""Minimum cuts between two nodes, by max-flow in whole numbers of any size.

The plain version is Dinic's algorithm (1970): breadth-first levels, then a blocking flow along them, at most as many
times as there are nodes. The compiled version is SciPy's, for graphs that are worth its start-up and capacities that
fit its 32 bits; its result is checked against the capacity of the cut.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from choreo.topology.graph import Bools, Ints

__all__ = ["MOST_COMPILED", "Arcs", "minimum_cut"]

# Capacities may add up to half the 32-bit range, because the reverse flow over a link is added to its capacity.
MOST_COMPILED = 1 << 30


@dataclass(frozen=True, slots=True, eq=False)
class Arcs:
    """A graph of `nodes` nodes; arc k carries capacity[k] units from src[k] to dst[k]."""

    nodes: int
    src: Ints
    dst: Ints
    capacity: list[int]


def minimum_cut(arcs: Arcs, source: int, sink: int, *, compiled: bool) -> tuple[int, Bools]:
    """The capacity of the smallest cut between two nodes, and the nodes on the source's side of it."""
    if compiled and sum(arcs.capacity) < MOST_COMPILED:
        return _compiled(arcs, source, sink)
    return _plain(arcs, source, sink)


def _compiled(arcs: Arcs, source: int, sink: int) -> tuple[int, Bools]:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    # Every arc with its reverse, parallel arcs merged: then the flow has the same sparsity as the graph.
    nodes, shape = arcs.nodes, (arcs.nodes, arcs.nodes)
    both = np.concatenate((arcs.src * nodes + arcs.dst, arcs.dst * nodes + arcs.src))
    entry, at = np.unique(both, return_inverse=True)
    capacity = np.bincount(at[: len(arcs.src)], arcs.capacity, len(entry)).astype(np.int32)
    src, dst = np.divmod(entry, nodes)
    graph = csr_array((capacity, dst, np.searchsorted(src, np.arange(nodes + 1))), shape=shape)
    flow = maximum_flow(graph, source, sink)
    left = flow.flow.data < capacity
    residual = csr_array((capacity[left], dst[left], np.searchsorted(src[left], np.arange(nodes + 1))), shape=shape)
    inside = np.zeros(nodes, np.bool_)
    inside[breadth_first_order(residual, source, return_predecessors=False)] = True
    value = int(capacity[inside[src] & ~inside[dst]].sum())
    assert value == flow.flow_value, f"a flow of {flow.flow_value} in front of a cut of {value}"
    return value, inside


def _plain(arcs: Arcs, source: int, sink: int) -> tuple[int, Bools]:
    residual, value = _Residual(arcs), 0
    while (level := residual.levels(source))[sink] >= 0:
        following = [0] * arcs.nodes
        while (sent := residual.augment(source, sink, level, following)) > 0:
            value += sent
    return value, np.array(level) >= 0


class _Residual:
    """The residual graph: arc 2k holds the capacity left on arc k, and arc 2k + 1 what may be sent back."""

    def __init__(self, arcs: Arcs) -> None:
        self.head: list[int] = []
        self.left: list[int] = []
        self.leaving: list[list[int]] = [[] for _ in range(arcs.nodes)]
        for src, dst, capacity in zip(arcs.src.tolist(), arcs.dst.tolist(), arcs.capacity, strict=True):
            self.leaving[src].append(len(self.head))
            self.leaving[dst].append(len(self.head) + 1)
            self.head += (dst, src)
            self.left += (capacity, 0)

    def levels(self, source: int) -> list[int]:
        """The distance of each node from the source over arcs with capacity left; -1 if it cannot be reached."""
        head, left = self.head, self.left
        level = [-1] * len(self.leaving)
        level[source] = 0
        waiting = [source]
        for node in waiting:
            for arc in self.leaving[node]:
                if left[arc] and level[head[arc]] < 0:
                    level[head[arc]] = level[node] + 1
                    waiting.append(head[arc])
        return level

    def augment(self, source: int, sink: int, level: list[int], following: list[int]) -> int:
        """Send what fits along one path of rising levels; `following` is each node's first arc not yet exhausted."""
        head, left, node = self.head, self.left, source
        path: list[int] = []
        while node != sink:
            arcs = self.leaving[node]
            while following[node] < len(arcs):
                arc = arcs[following[node]]
                if left[arc] and level[head[arc]] == level[node] + 1:
                    break
                following[node] += 1
            else:
                if not path:
                    return 0
                node = head[path.pop() ^ 1]
                following[node] += 1
                continue
            path.append(arc)
            node = head[arc]
        sent = min(left[arc] for arc in path)
        for arc in path:
            left[arc] -= sent
            left[arc ^ 1] += sent
        return sent
