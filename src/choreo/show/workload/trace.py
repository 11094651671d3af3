"""A workload's run as a timeline for Perfetto: for each rank its streams, and its communication."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import numpy as np

from choreo.errors import UsageError
from choreo.show.trace_events import Event, Slice, Tracks, write_events
from choreo.workload.execution import COLLECTIVES, NodeKind

if TYPE_CHECKING:
    from choreo.simulate.execution import WorkloadSimulation

__all__ = ["write_workload_trace"]

MOST_NODES = 1 << 21


def write_workload_trace(run: WorkloadSimulation, path: str | os.PathLike[str]) -> None:
    """Write every node of a run; a rank is a process, a stream and each collective's group a thread."""
    if len(run.graph) > MOST_NODES:
        raise UsageError(f"a timeline has at most {MOST_NODES} nodes, and this run {len(run.graph)}; use fewer ranks")
    graph, times, threads = run.graph, run.times, itertools.count(1)
    events: list[Event] = []
    for rank in np.unique(graph.rank).tolist():
        alike = f" (and {run.copies[rank] - 1} like it)" if run.copies[rank] > 1 else ""
        tracks = Tracks(rank + 1, f"rank {rank}{alike}", threads)
        tracks.label("")
        rows: dict[str, list[Slice]] = {}
        for node in np.flatnonzero(graph.rank == rank).tolist():
            start_s = times.ready_s[node] if graph.call[node] >= 0 else times.start_s[node]
            kind, arguments = NodeKind(graph.kind[node]), dict[str, object]()
            if graph.call[node] >= 0:
                arguments["bytes"] = float(graph.size_bytes[node])
                arguments["waited_us"] = max(0.0, float(times.start_s[node] - times.ready_s[node])) * 1e6
            node_slice = Slice(
                _ns(float(start_s)), _ns(float(times.end_s[node])), graph.name_of(node), kind.name.lower(), arguments
            )
            rows.setdefault(_row(run, node, kind), []).append(node_slice)
        for name, slices in sorted(rows.items()):
            tracks.add(name, slices)
        events += tracks.events
    write_events({"traceEvents": events, "otherData": {"topology": run.topology, "time_s": run.time_s}}, path)


def _row(run: WorkloadSimulation, node: int, kind: NodeKind) -> str:
    graph = run.graph
    if kind is NodeKind.COLLECTIVE:
        size, name = len(graph.groups[graph.group[node]]), COLLECTIVES[graph.collective[node]]
        return f"{name} of {size} ranks"
    if kind in (NodeKind.SEND, NodeKind.RECV):
        return f"{kind.name.lower()}s"
    return f"{kind.name.lower()} {graph.stream[node]}"


def _ns(time_s: float) -> int:
    return round(time_s * 1e9)
