"""GOAL, the format of LogGOPSim: for each rank its computations, sends, receives and dependencies."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from choreo.errors import UsageError
from choreo.files import write_text
from choreo.workload.execution import ExecutionGraph, NodeKind

__all__ = ["write"]


def write(graph: ExecutionGraph, path: Path) -> list[Path]:
    """One file of all ranks. GOAL has no collectives, so they must be expanded into messages first."""
    if (graph.kind == NodeKind.COLLECTIVE).any():
        raise UsageError("GOAL has no collectives; cut them into messages by an algorithm first: --algorithm ring")
    lines = [f"num_ranks {graph.ranks}", ""]
    for rank in range(graph.ranks):
        lines.append(f"rank {rank} {{")
        for node in np.flatnonzero(graph.rank == rank).tolist():
            lines.append(f"l{node + 1}: {_operation(graph, node)}")
            lines += [f"l{node + 1} requires l{dep + 1}" for dep in graph.deps_of(node).tolist()]
        lines += ["}", ""]
    write_text(path, "\n".join(lines))
    return [path]


def _operation(graph: ExecutionGraph, node: int) -> str:
    kind = NodeKind(graph.kind[node])
    if kind in (NodeKind.SEND, NodeKind.RECV):
        verb, way = ("send", "to") if kind is NodeKind.SEND else ("recv", "from")
        return f"{verb} {round(graph.size_bytes[node])}b {way} {graph.peer[node]} tag {graph.tag[node]}"
    duration_s = graph.duration_s[node]
    return f"calc {round(np.nan_to_num(duration_s) * 1e9)}" + (
        f" cpu {graph.stream[node]}" if graph.stream[node] else ""
    )
