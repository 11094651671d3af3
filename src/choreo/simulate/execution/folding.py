"""Find the ranks of a graph that do the same, and fold them into one.

Ranks are distinguished by their programs, then by the classes of the ranks they meet in each call, until nothing
changes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from choreo.simulate.execution.classes import Hashes, classes_of, hashed, summed
from choreo.simulate.execution.folded import FoldedGraph, ordered_by_call
from choreo.simulate.execution.loop import Times
from choreo.simulate.execution.network.call import Members
from choreo.workload.execution import ExecutionGraph, NodeKind

__all__ = ["Folding"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
# With more classes than this fraction of the ranks, folding costs more than it saves.
WORTH_FOLDING = 0.5


class Folding:
    """Folds one graph, with finer and finer classes."""

    def __init__(self, graph: ExecutionGraph, duration_s: Floats) -> None:
        self.graph, self._duration_s = graph, duration_s
        order = np.argsort(graph.rank, kind="stable")
        self.start = np.searchsorted(graph.rank[order], np.arange(graph.ranks + 1))
        self.at = np.empty(len(graph), np.int64)  # the position of each node in its rank's program
        self.at[order] = np.arange(len(graph)) - self.start[graph.rank[order]]
        self._order = order
        self._calls = np.flatnonzero(graph.call >= 0)
        waits = np.repeat(np.arange(len(graph)), np.diff(graph.offsets))
        self.possible = bool((graph.rank[graph.deps] == graph.rank[waits]).all())
        self._program = self._programs(duration_s, waits) if self.possible else np.zeros(0, np.uint64)

    def _programs(self, duration_s: Floats, waits: Ints) -> Hashes:
        """A hash of each rank's program: what its nodes do and wait for, and which of its groups they use."""
        graph = self.graph
        key = graph.rank * (len(graph.groups) + 1) + graph.group + 1
        used, first, inverse = np.unique(key[self._order], return_index=True, return_inverse=True)
        by_use = np.argsort(first, kind="stable")
        ranks = used[by_use] // (len(graph.groups) + 1)
        local = np.empty(len(used), np.int64)
        local[by_use] = np.arange(len(used)) - np.searchsorted(ranks, ranks)
        label = np.empty(len(graph), np.int64)
        label[self._order] = local[np.ravel(inverse)]
        nodes = hashed(
            self.at,
            graph.kind,
            duration_s,
            graph.size_bytes,
            graph.collective,
            label,
            graph.peer == graph.rank,  # the root of its group
            graph.stream,
            graph.priority,
        )
        depends = hashed(self.at[waits], self.at[graph.deps])
        with np.errstate(over="ignore"):
            return summed(nodes, graph.rank, graph.ranks) + summed(depends, graph.rank[waits], graph.ranks)

    def classes(self, stands_in: Ints | None = None) -> Ints:
        """For each rank the first one that does the same, unless `stands_in` separates them."""
        graph = self.graph
        if not self.possible:
            return np.arange(graph.ranks)
        found = classes_of(self._program if stands_in is None else hashed(self._program, stands_in))
        rank, call, at = graph.rank[self._calls], graph.call[self._calls], self.at[self._calls]
        while True:
            meets = summed(hashed(found[rank], at), call, graph.num_calls)
            finer = classes_of(hashed(found, summed(hashed(meets[call], at), rank, graph.ranks)))
            if len(np.unique(finer)) == len(np.unique(found)):
                return finer
            found = finer

    def fold(self, stands_in: Ints) -> tuple[FoldedGraph, Floats] | None:
        """The graph of these classes; None if it would hardly be smaller."""
        graph = self.graph
        if len(np.unique(stands_in)) > graph.ranks * WORTH_FOLDING:
            return None
        kept = np.flatnonzero(stands_in[graph.rank] == graph.rank)
        number = np.full(len(graph), -1, np.int64)
        number[kept] = np.arange(len(kept))
        self.folded = folded = number[self._order[self.start[stands_in[graph.rank]] + self.at]]
        nodes, starts = ordered_by_call(graph)
        first = np.minimum.reduceat(folded[nodes], starts) if len(starts) else np.zeros(0, np.int64)
        _, real, bundle = np.unique(first, return_index=True, return_inverse=True)
        bundle = np.argsort(np.argsort(real))[np.ravel(bundle)]  # numbered by the first call of each
        call = np.full(len(graph), -1, np.int64)
        call[nodes] = np.repeat(bundle, np.diff(np.append(starts, len(nodes))))
        self._kept, self._call = kept, call
        by_bundle = nodes[np.argsort(call[nodes], kind="stable")]
        sizes = np.bincount(bundle, minlength=len(real))  # groups of each call
        edges = np.searchsorted(call[by_bundle], np.arange(len(real) + 1)).tolist()
        members, lists, channel = [], [], []
        known: dict[tuple[int, bytes, bytes], Members] = {}
        for nth, groups in enumerate(sizes.tolist()):
            those = by_bundle[edges[nth] : edges[nth + 1]]
            ours, place = np.unique(folded[those], return_inverse=True)
            place = np.ravel(place)
            message = graph.kind[those[0]] != NodeKind.COLLECTIVE
            if message:
                ours, place = folded[those[:2]], np.tile((0, 1), groups)
            ranks = graph.rank[those].reshape(groups, -1)
            key = groups, ranks.tobytes(), place.tobytes()
            if key not in known:
                known[key] = Members(ranks, place.reshape(groups, -1))
            members.append(known[key])
            lists.append(ours.tolist())
            channel.append(-1 if message else int(graph.group[those].min()))
        folded_graph = FoldedGraph(self._subgraph(kept, number, call), stands_in, lists, members, channel)
        return folded_graph, self._duration_s[kept]

    def _subgraph(self, kept: Ints, number: Ints, call: Ints) -> ExecutionGraph:
        graph = self.graph
        counts = np.diff(graph.offsets)
        waits = np.repeat(number >= 0, counts)
        columns = {
            name: getattr(graph, name)[kept]
            for name in (
                *("rank", "kind", "name", "duration_s", "flops", "memory_bytes", "size_bytes", "collective"),
                *("group", "peer", "tag", "stream", "priority"),
            )
        }
        return ExecutionGraph(
            ranks=graph.ranks,
            groups=graph.groups,
            names=graph.names,
            call=call[kept],
            offsets=np.concatenate((np.zeros(1, np.int64), np.cumsum(counts[kept]))),
            deps=number[graph.deps[waits]],
            **columns,
        )

    def expand(self, times: Times) -> Times:
        """The times of all nodes, from those of the folded graph."""
        graph, folded = self.graph, self.folded
        kept = self._kept
        causes = times.cause[folded]
        cause = np.where(causes >= 0, kept[causes], -1)
        same_class = (cause >= 0) & (graph.rank[cause] == graph.rank[kept[folded]])
        own = np.minimum(self.start[graph.rank] + self.at[cause], max(len(graph) - 1, 0))
        found = np.where(same_class, self._order[own], cause)
        # A node that waited for another member of its call waited for one of its own group.
        calls = self._calls
        key = graph.call[calls] * len(kept) + folded[calls]
        order = np.argsort(key, kind="stable")
        waited = calls[(cause[calls] >= 0) & (self._call[cause[calls]] == self._call[calls])]
        wanted = graph.call[waited] * len(kept) + causes[waited]
        found[waited] = calls[order[np.searchsorted(key, wanted, sorter=order)]]
        return Times(times.ready_s[folded], times.start_s[folded], times.end_s[folded], found)
