"""Execution graphs: what every rank of a job computes, sends and waits for, as in Chakra's execution traces."""

from choreo.workload.execution.build import GraphBuilder
from choreo.workload.execution.graph import COLLECTIVES, ExecutionGraph, NodeKind

__all__ = ["COLLECTIVES", "ExecutionGraph", "GraphBuilder", "NodeKind"]
