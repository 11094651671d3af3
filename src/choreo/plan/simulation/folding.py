"""The step of a plan with one rank for all that do the same: at first one for each pipeline stage.

Ranks of a stage have the same program, in groups along the axes of the plan. So the step is built for only one rank of
each class, and its peers in each call follow from the axes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from choreo.simulate.execution.classes import classes_of, hashed, summed
from choreo.simulate.execution.folded import FoldedGraph
from choreo.simulate.execution.network.call import Members
from choreo.workload.execution import ExecutionGraph, NodeKind

__all__ = ["Axis", "FoldedStep", "groups_along"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, order=True)
class Axis:
    """Groups of this many ranks, this far apart."""

    ranks: int
    stride: int


def groups_along(axis: Axis, ranks: Ints) -> Ints:
    """The group of each of these ranks, one per row.

    >>> groups_along(Axis(2, 4), np.array([1, 6])).tolist()
    [[1, 5], [2, 6]]
    """
    first = ranks - ranks // axis.stride % axis.ranks * axis.stride
    found: Ints = first[:, None] + np.arange(axis.ranks) * axis.stride
    return found


@dataclass(slots=True)
class FoldedStep:
    """A step whose ranks can be put into classes. `build` makes the nodes of some ranks, without their calls."""

    ranks: int
    stages: int
    axes: tuple[Axis, ...]
    build: Callable[[list[int]], ExecutionGraph | None]

    def classes(self, stands_in: Ints | None = None) -> Ints:
        """Stages at first; then ranks that meet different classes in a group, or in a neighbouring stage, are split."""
        everybody = np.arange(self.ranks)
        stage = self.ranks // self.stages
        found = everybody // stage * stage if stands_in is None else stands_in
        while True:
            labels = [found, found[(everybody + stage) % self.ranks], found[(everybody - stage) % self.ranks]]
            for axis in self.axes:
                groups = groups_along(axis, everybody)
                meets = summed(hashed(found[groups.ravel()]), np.repeat(everybody, axis.ranks), self.ranks)
                labels.append(meets.view(np.int64))
            finer = classes_of(hashed(*labels))
            if len(np.unique(finer)) == len(np.unique(found)):
                return finer
            found = finer

    def fold(self, stands_in: Ints) -> tuple[FoldedGraph, Floats] | None:
        """The graph of these classes; None if it would be too long."""
        graph = self.build(np.unique(stands_in).tolist())
        if graph is None:
            return None
        calls = _Matched(graph, stands_in)
        for node in np.flatnonzero(graph.kind >= NodeKind.SEND).tolist():
            calls.add(node)
        folded = FoldedGraph(replace(graph, call=calls.call), stands_in, calls.nodes, calls.members, calls.channel)
        return folded, np.where(graph.kind <= NodeKind.MEMORY, graph.duration_s, 0.0)


class _Matched:
    """The calls of a folded graph, matched node by node.

    A call is the n-th of its ranks along an axis, or the n-th message with a tag from one class to another.
    """

    def __init__(self, graph: ExecutionGraph, stands_in: Ints) -> None:
        self.graph, self.stands_in = graph, stands_in
        self.call = np.full(len(graph), -1, np.int64)
        self.nodes: list[list[int]] = []
        self.members: list[Members] = []
        self.channel: list[int] = []
        self._numbers: dict[tuple[object, ...], int] = {}
        self._made: dict[tuple[object, ...], tuple[int, Members]] = {}
        self._axes: dict[int, tuple[object, ...]] = {}
        self._seen: dict[tuple[object, ...], int] = defaultdict(int)

    def add(self, node: int) -> None:
        """Put a node into its call."""
        graph, rank = self.graph, int(self.graph.rank[node])
        collective = graph.kind[node] == NodeKind.COLLECTIVE
        what = self._along(node) if collective else self._between(node)
        nth = self._seen[rank, what]
        self._seen[rank, what] += 1
        number = self._numbers.setdefault((what, nth), len(self.nodes))
        if number == len(self.nodes):
            channel, members = self._members_along(what, rank) if collective else self._pairs(node)
            self.nodes.append([])
            self.members.append(members)
            self.channel.append(channel if collective else -1)
        self.call[node] = number
        self.nodes[number].append(node)
        if graph.kind[node] == NodeKind.SEND:
            self.nodes[number].reverse()  # the sender is first

    def _along(self, node: int) -> tuple[object, ...]:
        """An axis, and the classes that meet there."""
        number = int(self.graph.group[node])
        if number not in self._axes:
            group = self.graph.groups[number]
            classes = np.unique(self.stands_in[list(group)]).tolist()
            self._axes[number] = Axis(len(group), group[1] - group[0]), *classes
        return self._axes[number]

    def _between(self, node: int) -> tuple[object, ...]:
        """The classes of a sender and a receiver, and the tag."""
        ends = self._ends(node)
        return int(self.stands_in[ends[0]]), int(self.stands_in[ends[1]]), int(self.graph.tag[node])

    def _ends(self, node: int) -> tuple[int, int]:
        rank, peer = int(self.graph.rank[node]), int(self.graph.peer[node])
        return (rank, peer) if self.graph.kind[node] == NodeKind.SEND else (peer, rank)

    def _members_along(self, what: tuple[object, ...], rank: int) -> tuple[int, Members]:
        if what not in self._made:
            axis, *classes = what
            assert isinstance(axis, Axis)
            groups = np.unique(groups_along(axis, np.flatnonzero(self.stands_in == rank)), axis=0)
            place = np.searchsorted(np.array(classes), self.stands_in[groups])
            self._made[what] = len(self._made), Members(groups, place)
        return self._made[what]

    def _pairs(self, node: int) -> tuple[int, Members]:
        src, dst = self._ends(node)
        key = "message", int(self.stands_in[src]), dst - src
        if key not in self._made:
            senders = np.flatnonzero(self.stands_in == self.stands_in[src])
            pairs = np.stack((senders, senders + dst - src), axis=1)
            self._made[key] = len(self._made), Members(pairs, np.tile((0, 1), (len(pairs), 1)))
        return self._made[key]
