"""The mesh of devices that a plan makes: its axes, and the ranks along each."""

from __future__ import annotations

import math

from choreo.errors import PlanError
from choreo.workload.plan import Plan

__all__ = ["AXES", "mesh_of"]

# From the innermost. "edp" are the replicas of an expert: ep × edp are the same ranks as cp × dp.
AXES = ("tp", "cp", "ep", "dp", "edp", "pp")


def mesh_of(plan: Plan) -> dict[str, int]:
    """Ranks by axis.

    >>> mesh_of(Plan(dp=4, tp=2, ep=2))
    {'tp': 2, 'cp': 1, 'ep': 2, 'dp': 4, 'edp': 2, 'pp': 1}
    """
    if plan.dp * plan.cp % plan.ep:
        raise PlanError(
            f"ep {plan.ep} does not divide dp {plan.dp} × cp {plan.cp}, whose ranks share out the experts; "
            f"ep {math.gcd(plan.ep, plan.dp * plan.cp)} would"
        )
    return {axis: plan.axis_size(axis) for axis in AXES}
