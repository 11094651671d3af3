"""The mesh of devices under a plan: its axes, and the ranks along each."""

from __future__ import annotations

import math

from choreo.errors import PlanError
from choreo.workload.plan import Plan

__all__ = ["AXES", "mesh_of"]

# From the innermost. "edp" are the replicas of an expert: etp × ep × edp are the same ranks as tp × cp × dp.
AXES = ("tp", "etp", "cp", "ep", "dp", "edp", "pp")


def mesh_of(plan: Plan) -> dict[str, int]:
    """Ranks by axis.

    >>> mesh_of(Plan(dp=4, tp=2, ep=2))
    {'tp': 2, 'etp': 2, 'cp': 1, 'ep': 2, 'dp': 4, 'edp': 2, 'pp': 1}
    """
    ranks, width = plan.tp * plan.cp * plan.dp, plan.expert_tp
    if ranks % (plan.ep * width):
        raise PlanError(
            f"ep {plan.ep} × etp {width} does not divide tp {plan.tp} × cp {plan.cp} × dp {plan.dp}, whose ranks share "
            f"out the experts; ep {math.gcd(plan.ep, ranks // math.gcd(ranks, width))} would"
        )
    return {axis: plan.axis_size(axis) for axis in AXES}
