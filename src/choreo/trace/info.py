"""The summary of a trace: its collectives by kind, size and group, their time, and its exposed share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from choreo.simulate.execution import WorkloadSimulation, replay
from choreo.trace.trace import Trace
from choreo.workload.execution import COLLECTIVES, ExecutionGraph, NodeKind

__all__ = ["CallClass", "TraceInfo", "trace_info"]


@dataclass(frozen=True, slots=True)
class CallClass:
    """Calls of one collective with one size in groups of one shape. Times are recorded, summed over an average rank."""

    collective: str
    size_bytes: float
    ranks: int
    group: str
    calls: int
    time_s: float | None  # None if nothing was recorded
    exposed_s: float | None


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """A trace in figures."""

    trace: Trace
    time_s: float
    compute_s: float
    calls: tuple[CallClass, ...]

    def to_dict(self) -> dict[str, Any]:
        """What `choreo trace info --json` prints."""
        return {
            "format": self.trace.format,
            "files": len(self.trace.files),
            **self.trace.graph.to_dict(),
            "time_s": self.time_s,
            "compute_s": self.compute_s,
            "communication": [
                {name: getattr(call, name) for name in CallClass.__dataclass_fields__} for call in self.calls
            ],
            "findings": list(self.trace.findings.lines()),
        }


def trace_info(trace: Trace) -> TraceInfo:
    """Look at a trace as it was recorded."""
    graph = trace.graph
    run = replay(graph)
    return TraceInfo(trace, run.time_s, run.compute_s, tuple(_classes(graph, run)))


def _classes(graph: ExecutionGraph, run: WorkloadSimulation) -> list[CallClass]:
    nodes = np.flatnonzero(graph.call >= 0)
    if not len(nodes):
        return []
    shapes = [_shape(group) for group in graph.groups]
    texts = sorted(set(shapes))
    number = np.array([texts.index(shape) for shape in shapes] or [0])
    kind = np.where(graph.kind[nodes] == NodeKind.COLLECTIVE, graph.collective[nodes], -graph.kind[nodes])
    group = np.where(kind >= 0, number[np.maximum(graph.group[nodes], 0)], -1)
    keys, key = np.unique(np.stack((kind, graph.size_bytes[nodes], group)), axis=1, return_inverse=True)
    key = np.ravel(key)
    known = np.isfinite(graph.duration_s[nodes])
    recorded_s = np.nan_to_num(graph.duration_s[nodes])
    time_by_class_s = np.bincount(key, recorded_s) / graph.ranks
    # Ranks whose steps began at different times wait longer in the replay than in the recorded run.
    exposed = np.bincount(key, np.minimum(run.exposed_by_node[nodes], recorded_s)) / graph.ranks
    found = []
    for at, (what, size, shape) in enumerate(keys.T.tolist()):
        same = key == at
        recorded = bool(known[same].any())
        name = COLLECTIVES[int(what)] if what >= 0 else NodeKind(-int(what)).name.lower()
        ranks = len(graph.groups[int(graph.group[nodes][same][0])]) if what >= 0 else 2
        calls = len(np.unique(graph.call[nodes][same]))
        times = (float(time_by_class_s[at]), float(exposed[at])) if recorded else (None, None)
        found.append(CallClass(name, size, ranks, texts[int(shape)] if shape >= 0 else "", calls, *times))
    return sorted(found, key=lambda call: (-(call.time_s or 0.0), -call.size_bytes * call.calls))


def _shape(group: Sequence[int]) -> str:
    """The shape of a group, wherever it begins.

    >>> _shape((0, 1, 2, 3)), _shape((3, 11, 19)), _shape((0, 1, 5))
    ('adjacent', 'stride 8', 'others')
    """
    if len(group) == 1:
        return "alone"
    stride = group[1] - group[0]
    if stride < 1 or tuple(group) != tuple(range(group[0], group[0] + stride * len(group), stride)):
        return "others"
    return "adjacent" if stride == 1 else f"stride {stride}"
