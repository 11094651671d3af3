"""The choice in groups of measured plans: what is a group, what is chosen, and what a lost choice counts as."""

from __future__ import annotations

from typing import Any

import pytest

from choreo.validate.plan.choice import choices_among, over_best
from choreo.validate.plan.predicted_row import PredictedRow
from choreo.workload import Plan

GIVEN: dict[str, Any] = {
    "index": 0,
    "source": "s",
    "software": "nanotron",
    "gpu": "H100",
    "model": "m",
    "gpus": 8,
    "plan": Plan(dp=8),
    "measured_step_s": 1.0,
    "predicted_step_s": 1.1,
    "measured_mem_bytes": None,
    "predicted_mem_bytes": 1e9,
    "measured_fits": True,
    "predicted_fits": True,
    "chosen": {},
    "seq": 4096,
    "global_batch": 8,
    "model_parameters": 1e9,
    "memory_share": 0.5,
    "device_bytes": 80e9,
}


def row(**changes: Any) -> PredictedRow:
    return PredictedRow(**{**GIVEN, **changes})


FAST = row()
SECOND: dict[str, Any] = {"plan": Plan(dp=4, tp=2), "measured_step_s": 1.5, "predicted_step_s": 1.2}
SLOW = row(**SECOND)
THIRD: dict[str, Any] = {
    "plan": Plan(dp=2, tp=4),
    "measured_step_s": None,
    "measured_fits": False,
    "predicted_step_s": 0.5,
}
LOST = row(**THIRD)


def test_the_fastest_by_prediction_is_chosen() -> None:
    (one,) = choices_among([FAST, SLOW])
    assert (one.chosen, one.over_best, one.plans) == (FAST.plan, 1.0, 2)
    (one,) = choices_among([FAST, row(**{**SECOND, "predicted_step_s": 1.0})])
    assert one.over_best == pytest.approx(1.5)


def test_a_plan_that_leaves_no_headroom_is_not_chosen() -> None:
    (one,) = choices_among([FAST, SLOW, row(**{**THIRD, "memory_share": 0.95})])
    assert (one.chosen, one.ran) == (FAST.plan, 2)
    (one,) = choices_among([row(memory_share=0.96), row(**{**SECOND, "memory_share": 0.95})])
    assert one.chosen == SLOW.plan


def test_a_choice_that_ran_out_of_memory_is_counted_apart() -> None:
    found = choices_among([FAST, SLOW, LOST])
    assert over_best(found) == (None, 1)
    assert over_best(found, rule=True) == (1.0, 0)


def test_a_group_has_one_batch_and_several_plans() -> None:
    assert choices_among([FAST, row(**{**SECOND, "global_batch": 16})]) == []
    assert choices_among([FAST, row(measured_step_s=1.01)]) == []
    assert choices_among([FAST, row(**{**SECOND, "measured_step_s": None, "measured_fits": None})]) == []
    assert choices_among([FAST, row(**{**SECOND, "precision": "mxfp8"})]) == []
