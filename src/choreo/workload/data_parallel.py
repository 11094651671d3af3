"""What data parallelism and ZeRO communicate, found like everything else: from how parameters lie and are wanted.

A gradient is a term of a sum over every axis that divides the work of its operator: dp and cp, for experts their
replicas, and tp for what sequence parallelism computes in parts. The optimizer wants it whole (ZeRO 0) or cut. At
ZeRO 3 parameters rest in pieces and operators want them whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from choreo.workload.graph.graph import Collective, Graph
from choreo.workload.graph.layout import Layout, Tensor, dual, reshard
from choreo.workload.plan import Plan

__all__ = ["DataParallel", "data_parallel"]

REPLICAS = frozenset({"dp", "cp", "edp"})
PIECE = "piece"  # the dim of a parameter laid out flat


@dataclass(frozen=True, slots=True)
class DataParallel:
    """Collectives of one graph's parameters."""

    gather_forward: tuple[Collective, ...]  # before the forward pass, at ZeRO 3
    gather_backward: tuple[Collective, ...]  # before the backward pass, at ZeRO 3
    reduce: tuple[Collective, ...]  # of gradients
    gather_after: tuple[Collective, ...]  # of parameters the optimizer has updated, at ZeRO 1 and 2


def data_parallel(
    graph: Graph,
    plan: Plan,
    *,
    parameter_bytes: float = 2,
    gradient_bytes: float = 2,
    bucketed: bool = True,
) -> DataParallel:
    """What a graph's parameters take; `bucketed` sends those of one kind together, else each tensor is sent alone."""
    work = {name: node.divided for node in graph.operators for name in node.weights}
    gathers: list[Collective] = []
    reduces: list[Collective] = []
    after: list[Collective] = []
    for weight in graph.weights:
        gradient = dual(weight.layout, work[weight.name])
        replicas = {axis: PIECE for axis in gradient.partial if axis in REPLICAS}
        resting = weight.layout.but(replicas if plan.zero >= 1 else {})
        # First over tp, small and near, then all weights alike over the replicas.
        replicated = gradient.but({axis: None for axis in gradient.partial if axis not in REPLICAS})
        for ends in ((gradient, replicated), (replicated, resting)):
            reduces += _moves(graph, weight, ends, gradient_bytes, "gradient")
        if plan.zero:
            into = gathers if plan.zero == 3 else after
            into += _moves(graph, weight, (resting, weight.layout), parameter_bytes, "parameter")
    finish = _bucketed if bucketed else tuple[Collective, ...]
    return DataParallel(finish(gathers), finish(gathers), finish(reduces), finish(after))


def _moves(graph: Graph, weight: Tensor, ends: tuple[Layout, Layout], item_bytes: float, what: str) -> list[Collective]:
    sized = Tensor(weight.name, weight.dims, weight.layout, item_bytes, weight.role)
    mesh = graph.mesh
    return [
        Collective(
            f"{what}({weight.name}):{move.kind}",
            move.kind,
            move.axes,
            math.prod(mesh[axis] for axis in move.axes),
            sized.bytes(mesh, move.after if move.kind == "all_gather" else move.before),
            weight.name,
            phase=what,
        )
        for move in reshard(*ends)
    ]


def _bucketed(collectives: list[Collective]) -> tuple[Collective, ...]:
    buckets: dict[tuple[str, tuple[str, ...]], list[Collective]] = {}
    for found in collectives:
        buckets.setdefault((found.kind, found.axes), []).append(found)
    return tuple(
        Collective(
            f"{found[0].phase}s:{kind}",
            kind,
            axes,
            found[0].ranks,
            sum(one.size_bytes for one in found),
            phase=found[0].phase,
        )
        for (kind, axes), found in buckets.items()
    )
