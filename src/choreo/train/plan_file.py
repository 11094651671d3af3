"""Plans for training: from a file that `choreo plan --json` wrote, or from the fields that were given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from choreo.errors import PlanError, shown
from choreo.workload import Plan

__all__ = ["plan_of", "read_plan"]

NAMES = tuple(field.name for field in fields(Plan))


def read_plan(file: str | Path) -> Plan:
    """The best plan of what `choreo plan --json` wrote, or the plan of a `choreo train --json`."""
    try:
        found: Any = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        told = error.strerror if isinstance(error, OSError) else f"it is not JSON: {error}"
        raise PlanError(f"the plan {shown(file)} cannot be read: {told}") from None
    if isinstance(found, dict) and isinstance(found.get("plans"), list) and found["plans"]:
        found = found["plans"][0]
    if isinstance(found, dict) and isinstance(found.get("plan"), dict):
        found = found["plan"]
    if not isinstance(found, dict) or not found or not set(found) <= set(NAMES):
        raise PlanError(f"{shown(file)} has no plan; write one with choreo plan ... --json > {shown(Path(file).name)}")
    return Plan(**found)


def plan_of(given: Mapping[str, object], ranks: int | None, precision: str | None = None) -> Plan | None:
    """A plan with the fields that were given; what is left of the ranks are replicas. None, if no field was given.

    >>> print(plan_of({"tp": 2}, 4))
    dp2 tp2 mb1 fp32
    """
    if not given and precision is None:
        return None
    values: dict[str, Any] = {"precision": precision or "fp32", **given}
    if values.get("schedule") == "interleaved":
        values.setdefault("interleave", 2)
    plan = Plan(**values)
    inner = plan.tp * plan.pp * plan.cp
    if "dp" not in values and ranks is not None and ranks % inner == 0:
        plan = Plan(**values | {"dp": max(1, ranks // inner)})
    return plan
