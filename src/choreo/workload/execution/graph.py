"""The execution graph: nodes of computation and communication at every rank, and their dependencies.

A graph is columns. A node runs at one rank, after the nodes that it depends on. A collective of all ranks of a group is
one *call*, and so are a send and its receive.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from choreo.errors import TraceError, shown
from choreo.units import counted

__all__ = ["COLLECTIVES", "ExecutionGraph", "NodeKind"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# The collectives that a node may name, by their number in the column `collective`.
COLLECTIVES = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
    "barrier",
)


class NodeKind(enum.IntEnum):
    """The kinds of nodes."""

    HOST = 0  # the CPU that launches kernels: other nodes wait for it, but it does not occupy the device
    COMPUTE = 1
    MEMORY = 2  # a copy, or a load or store of a remote memory
    SEND = 3
    RECV = 4
    COLLECTIVE = 5


@dataclass(frozen=True, slots=False, eq=False)
class ExecutionGraph:
    """Nodes as columns, one row per node; those of one rank are in the order in which the program issued them.

    `duration_s` is the recorded duration of a node, NaN if unknown. `size_bytes` counts as nccl-tests does: the whole
    vector of an all_reduce, all_gather or reduce_scatter, what one rank sends in an all_to_all. `peer` is the other
    rank of a send or receive, and the root of a collective. Nodes of one rank and one `stream` run one at a time.
    Node i waits for deps[offsets[i] : offsets[i + 1]]. `call` numbers the calls; -1 is none.
    """

    ranks: int
    groups: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    rank: Ints
    kind: npt.NDArray[np.int8]
    name: Ints  # its place in `names`
    duration_s: Floats
    flops: Floats
    memory_bytes: Floats
    size_bytes: Floats
    collective: npt.NDArray[np.int8]
    group: Ints
    peer: Ints
    tag: Ints
    stream: Ints
    priority: Ints
    call: Ints
    offsets: Ints
    deps: Ints

    def __len__(self) -> int:
        return len(self.rank)

    def __repr__(self) -> str:
        return f"<ExecutionGraph of {counted(self.ranks, 'rank')}: {counted(len(self), 'node')}>"

    @cached_property
    def num_calls(self) -> int:
        """The number of collectives and messages."""
        return int(self.call.max(initial=-1)) + 1

    def deps_of(self, node: int) -> Ints:
        """The nodes that a node waits for."""
        return self.deps[self.offsets[node] : self.offsets[node + 1]]

    def name_of(self, node: int) -> str:
        """The program's name for this node."""
        return self.names[int(self.name[node])]

    def described(self, node: int) -> str:
        """A node as an error names it.

        >>> from choreo.workload.execution import GraphBuilder
        >>> graph = GraphBuilder(2)
        >>> for rank in range(2): _ = graph.collective(rank, "all_reduce", 1024, (0, 1))
        >>> graph.finish().described(1)
        'all_reduce of 1024 bytes at rank 1'
        """
        kind, size = NodeKind(self.kind[node]), f"{self.size_bytes[node]:g} bytes"
        if kind is NodeKind.COLLECTIVE:
            what = f"{COLLECTIVES[self.collective[node]]} of {size}"
        elif kind is NodeKind.SEND:
            what = f"send of {size} to rank {self.peer[node]}"
        elif kind is NodeKind.RECV:
            what = f"receive of {size} from rank {self.peer[node]}"
        else:
            what = shown(self.name_of(node)) or kind.name.lower()
        return f"{what} at rank {self.rank[node]}"

    @cached_property
    def order(self) -> Ints:
        """The nodes in an order in which they can run: those that depend on nothing first."""
        return _topological(self)

    def dependents(self) -> tuple[Ints, Ints]:
        """For each node, the nodes that wait for it: offsets, and nodes."""
        waits = np.repeat(np.arange(len(self)), np.diff(self.offsets))
        order = np.argsort(self.deps, kind="stable")
        offsets = np.concatenate(([0], np.cumsum(np.bincount(self.deps, minlength=len(self)))))
        return offsets, waits[order]

    def to_dict(self) -> dict[str, Any]:
        """The graph in figures."""
        kinds = np.bincount(self.kind, minlength=len(NodeKind))
        return {
            "ranks": self.ranks,
            "nodes": len(self),
            "calls": self.num_calls,
            "groups": len(self.groups),
            "dependencies": len(self.deps),
            **{kind.name.lower(): int(kinds[kind]) for kind in NodeKind},
        }


def _topological(graph: ExecutionGraph) -> Ints:
    """A topological order. A cycle is an error that lists its nodes."""
    if (graph.deps < np.repeat(np.arange(len(graph)), np.diff(graph.offsets))).all():
        return np.arange(len(graph))
    offsets, after = (column.tolist() for column in graph.dependents())
    left = np.diff(graph.offsets).tolist()
    found = [node for node, waits in enumerate(left) if not waits]
    for node in found:  # it grows during the loop
        for other in after[offsets[node] : offsets[node + 1]]:
            left[other] -= 1
            if not left[other]:
                found.append(other)
    if len(found) < len(graph):
        cycle = _cycle(graph, left)
        story = ", which waits for ".join(graph.described(node) for node in (*cycle[:4], *cycle[:1])[:5])
        more = f" and {len(cycle) - 4} more" if len(cycle) > 4 else ""
        raise TraceError(f"nodes wait for each other in a cycle: {story}{more}; no such program can have run")
    return np.array(found, np.int64)


def _cycle(graph: ExecutionGraph, left: Sequence[int]) -> Sequence[int]:
    """Nodes that wait for each other, beginning anywhere."""
    node, seen = next(node for node, waits in enumerate(left) if waits), dict[int, int]()
    while node not in seen:
        seen[node] = len(seen)
        node = next(int(dependency) for dependency in graph.deps_of(node) if left[dependency] > 0)
    return [other for other, at in seen.items() if at >= seen[node]]
