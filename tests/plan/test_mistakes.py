"""What cannot be planned, and the sentence that says why."""

from __future__ import annotations

import pytest

from choreo.errors import PlanError, UsageError
from choreo.plan import evaluate, plan
from choreo.workload import Plan, get_model

WRONG = [
    ({"tp": 3}, 24, 24, "heads 32 of llama3-8b are not divisible by tp 3; use tp 2 or 4"),
    ({"pp": 5, "split": "even"}, 40, 40, "layers 32 of llama3-8b are not divisible by pp 5; use pp 4 or 8"),
    (
        {"dp": 8, "micro_batch": 3},
        8,
        16,
        "global batch 16 is not divisible by dp 8 × micro-batch 3 = 24; use micro-batch 2",
    ),
    ({"ep": 2}, 8, 16, "ep 2 shares out experts, and llama3-8b has none; ep 1"),
    ({"pp": 1, "interleave": 4}, 8, 16, "interleave 4 needs a pipeline, and pp is 1"),
]


@pytest.mark.parametrize(("fixed", "gpus", "batch", "sentence"), WRONG, ids=[str(one[0]) for one in WRONG])
def test_what_cannot_be_run_is_a_sentence(
    fixed: dict[str, int | bool | str], gpus: int, batch: int, sentence: str
) -> None:
    with pytest.raises(PlanError) as told:
        plan("llama3-8b", cluster="hgx-h100", gpus=gpus, global_batch=batch, seq=4096, **fixed)  # type: ignore[arg-type]
    assert sentence in str(told.value)


def test_a_plan_is_for_all_devices_of_a_cluster_that_has_a_number() -> None:
    found = plan("llama2-7b", cluster="hgx-h100:2", global_batch=64, seq=4096, tp=2, pp=1, cp=1)
    assert found.gpus == 16 and found.best.plan.gpus == 16
    with pytest.raises(UsageError, match="hgx-h100 does not say how many devices there are; give gpus"):
        plan("llama2-7b", cluster="hgx-h100", global_batch=64, seq=4096)


def test_a_transformer_needs_the_length_of_its_sequences() -> None:
    with pytest.raises(UsageError, match="give seq, how many tokens a sequence of llama2-7b has"):
        plan("llama2-7b", cluster="hgx-h100", gpus=8, global_batch=64)


def test_evaluating_takes_a_model_by_name_and_only_a_plan() -> None:
    one, job = Plan(dp=8, zero=3), {"cluster": "hgx-h100", "global_batch": 16, "seq": 4096}
    by_name, by_model = (evaluate(model, one, **job) for model in ("llama3-8b", get_model("llama3-8b")))  # type: ignore[arg-type]
    assert by_name == by_model
    with pytest.raises(UsageError, match=r"a plan is a Plan, like Plan\(tp=8, dp=2\), not {'tp': 8}"):
        evaluate("llama3-8b", {"tp": 8}, **job)  # type: ignore[arg-type]


def test_a_list_of_layers_must_add_up() -> None:
    told = "the split 8*4 gives 32 layers to 4 stages, and llama3-70b has 80 in 4 (pp 4 × interleave 1)"
    with pytest.raises(PlanError) as refused:
        Plan(dp=2, pp=4, split="8*4").check(get_model("llama3-70b"), 8, 8, 4096)
    assert str(refused.value) == told
    with pytest.raises(PlanError, match="split must be even, balanced, or the layers of each stage"):
        Plan(pp=2, split="eight")
    for endless in ("9" * 5000, "1*" + "9" * 5000):  # as a file may have it
        with pytest.raises(PlanError, match="split must be even, balanced, or the layers of each stage"):
            Plan(pp=2, split=endless)
    with pytest.raises(PlanError, match="split lists 2000003 stages; there may be at most 1048576"):
        Plan(pp=2, split="1*2000000,2*3")


def test_a_number_of_layers_to_compute_again_asks_for_full_recomputation() -> None:
    job = {"cluster": "hgx-h100", "gpus": 8, "global_batch": 8, "seq": 4096}
    found = plan("llama3-8b", **job, recompute_layers=3, tp=2, pp=1, cp=1)  # type: ignore[arg-type]
    assert (found.best.plan.recompute, found.best.plan.recompute_layers) == ("full", 3)
    with pytest.raises(PlanError, match="recompute_layers 3 goes with recompute full, not none; give that, or leave"):
        plan("llama3-8b", **job, recompute_layers=3, recompute="none")  # type: ignore[arg-type]


def test_what_cannot_be_run_is_said_of_the_plan_that_was_asked_for() -> None:
    """Not of the recomputation that goes with what was given."""
    job = {"cluster": "hgx-h100", "gpus": 8, "global_batch": 8, "seq": 4096}
    for given in ({"recompute_layers": 3}, {"recompute_modules": "mlp"}):
        with pytest.raises(PlanError, match="ep 5 shares out experts, and llama3-8b has none"):
            plan("llama3-8b", **job, **given, ep=5)  # type: ignore[arg-type]


def test_no_plans_cannot_be_asked_for() -> None:
    with pytest.raises(UsageError, match="best must be at least 1, not 0"):
        plan("llama3-8b", cluster="hgx-h100", gpus=8, global_batch=8, seq=4096, best=0)
