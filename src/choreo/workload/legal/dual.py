"""DualPipe's constraints on a plan: stages in pairs, micro-batches from both ends, and enough of them to meet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from choreo.workload.choices import SCHEDULES
from choreo.workload.legal.rule import Numbers, Request, Rule

if TYPE_CHECKING:
    from choreo.workload.plan import Plan

__all__ = ["DUAL_RULES"]

DUALPIPE, DUALPIPEV = SCHEDULES.index("dualpipe"), SCHEDULES.index("dualpipev")


def _chunks(t: Numbers) -> Any:
    """Chunks of layers per device: DualPipe's, or as many as there are."""
    return np.where(t["schedule"] == DUALPIPE, 1, np.where(t["schedule"] == DUALPIPEV, 2, t["interleave"]))


def _enough(t: Numbers, micro_batches: Any) -> Any:
    halves = (t["schedule"] != DUALPIPE) | (micro_batches % 2 == 0)
    return halves & ((t["schedule"] < DUALPIPE) | (micro_batches >= 2 * t["pp"]))


def _tell_chunks(request: Request, plan: Plan) -> str:
    if plan.schedule == "dualpipe":
        return f"dualpipe has one chunk of layers for each direction, not interleave {plan.interleave}; interleave 1"
    return f"dualpipev has two chunks of layers per device, not interleave {plan.interleave}; interleave 2"


def _tell_batches(request: Request, plan: Plan) -> str:
    count, least = plan.micro_batches(request.global_batch), 2 * plan.pp
    problem = f"{plan.schedule} needs at least 2 × pp {plan.pp} = {least} micro-batches"
    if plan.schedule == "dualpipe":
        problem += ", half of them from either end"
    near = max(least, count + count % 2) * plan.dp * plan.micro_batch
    return f"{problem}, and there are {count}; a global batch of {near} would do"


DUAL_RULES = (
    Rule(
        "an odd number of stages under dualpipe",
        "pp",
        lambda r, t: (t["schedule"] != DUALPIPE) | (t["pp"] == 1) | (t["pp"] % 2 == 0),
        lambda r, plan: f"dualpipe needs an even number of stages, not pp {plan.pp}; pp {plan.pp + 1}, or dualpipev",
    ),
    Rule(
        "chunks that dualpipe does not have",
        "interleave",
        lambda r, t: (t["pp"] == 1) | (t["interleave"] == _chunks(t)),
        _tell_chunks,
    ),
    Rule(
        "too few micro-batches for dualpipe, or an odd number",
        "micro_batch",
        lambda r, t: (t["pp"] == 1) | _enough(t, r.global_batch // (t["dp"] * t["micro_batch"])),
        _tell_batches,
    ),
)
