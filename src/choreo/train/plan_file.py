"""Plans for training: from a file that `choreo plan --json` wrote, or from the fields that were given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from choreo.errors import PlanError, shown
from choreo.files import parse_json, read_text
from choreo.workload import Plan

__all__ = ["plan_of", "read_plan"]

MAX_FILE_BYTES = 16 << 20
NAMES = tuple(field.name for field in fields(Plan))


def read_plan(file: str | Path) -> Plan:
    """The best plan in the output of `choreo plan --json`, or the plan in that of `choreo train --json`."""
    found = parse_json(read_text(file, MAX_FILE_BYTES, "a plan", PlanError), file, PlanError)
    if isinstance(found, dict) and isinstance(found.get("plans"), list) and found["plans"]:
        found = found["plans"][0]
    if isinstance(found, dict) and isinstance(found.get("plan"), dict):
        found = found["plan"]
    if not isinstance(found, dict) or not found or not set(found) <= set(NAMES):
        raise PlanError(f"{shown(file)} has no plan; write one with choreo plan ... --json > plan.json")
    return Plan(**found)


def plan_of(given: Mapping[str, object], ranks: int | None, precision: str | None = None) -> Plan | None:
    """A plan with the given fields; the remaining ranks are replicas. None if no field was given.

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
