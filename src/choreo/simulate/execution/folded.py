"""An execution graph in which one rank stands for all that do the same.

Ranks with the same program form a class, and the nodes of its first rank stand for those of all. The calls that they
make at the same time are one call with several groups. That is exact as long as all ranks of a class finish each call
at the same time, which is checked at every call. If they do not, `Asymmetry` says which ranks to separate.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from choreo.simulate.execution.network.call import Members
from choreo.workload.execution import ExecutionGraph, NodeKind

__all__ = ["FoldedGraph", "unfolded"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=False, eq=False)
class FoldedGraph:
    """The nodes of the ranks that stand for others, and their calls.

    `stands_in[rank]` is the rank whose nodes stand for those of `rank`. By call: its nodes, its members (as ranks), and
    the channel that its groups run it on (-1 for a message).
    """

    graph: ExecutionGraph
    stands_in: Ints
    nodes: Sequence[Sequence[int]]
    members: Sequence[Members]
    channel: Sequence[int]

    @cached_property
    def first(self) -> list[int]:
        """One node of each call; for a message the sender's."""
        return [nodes[0] for nodes in self.nodes]

    @cached_property
    def copies(self) -> Ints:
        """The number of ranks that each rank stands for."""
        return np.bincount(self.stands_in, minlength=len(self.stands_in))


def unfolded(graph: ExecutionGraph) -> FoldedGraph:
    """A graph in which each rank stands for itself."""
    nodes = nodes_by_call(graph)
    first = [node[0] for node in nodes]
    known: dict[int, Members] = {}
    members = []
    for member in first:
        if graph.kind[member] == NodeKind.COLLECTIVE:
            number = int(graph.group[member])
            if number not in known:
                ranks = np.array([graph.groups[number]], np.int64)
                known[number] = Members(ranks, np.arange(ranks.size).reshape(1, -1))
        else:
            number = -1 - int(graph.rank[member]) * graph.ranks - int(graph.peer[member])
            if number not in known:
                known[number] = Members(np.array([[graph.rank[member], graph.peer[member]]]), np.array([[0, 1]]))
        members.append(known[number])
    channel = [int(graph.group[node]) if graph.kind[node] == NodeKind.COLLECTIVE else -1 for node in first]
    return FoldedGraph(graph, np.arange(graph.ranks), nodes, members, channel)


def nodes_by_call(graph: ExecutionGraph) -> list[list[int]]:
    """The nodes of each call in the order of its group's ranks; for a message the sender's first."""
    nodes, starts = ordered_by_call(graph)
    listed, edges = nodes.tolist(), [*starts.tolist(), len(nodes)]
    return [listed[here:there] for here, there in itertools.pairwise(edges)]


def ordered_by_call(graph: ExecutionGraph) -> tuple[Ints, Ints]:
    """The nodes of all calls, call by call, and where each call begins."""
    nodes = np.flatnonzero(graph.call >= 0)
    collective = graph.kind[nodes] == NodeKind.COLLECTIVE
    sizes = np.array([len(group) for group in graph.groups], np.int64)
    ranks = np.array([rank for group in graph.groups for rank in group], np.int64)
    keys = np.repeat(np.arange(len(sizes)), sizes) * graph.ranks + ranks
    place = np.arange(len(keys)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    order = np.argsort(keys)
    wanted = graph.group[nodes[collective]] * graph.ranks + graph.rank[nodes[collective]]
    at = (graph.kind[nodes] == NodeKind.RECV).astype(np.int64)
    if len(wanted):
        at[collective] = place[order[np.searchsorted(keys, wanted, sorter=order)]]
    nodes = nodes[np.lexsort((at, graph.call[nodes]))]
    return nodes, np.searchsorted(graph.call[nodes], np.arange(graph.num_calls))
