"""The space of plans: its rules are those of `Plan.check`, its counts add up, and what is fixed stays."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest

from choreo.errors import PlanError
from choreo.plan import evaluate, plan
from choreo.plan.search.space import FIELDS, SAME, Space, enumerate_plans
from choreo.workload import Model, Plan, get_model
from choreo.workload.legal import Request, broken_rule, even
from choreo.workload.plan import RECOMPUTE, SCHEDULES

SMALL = Model(name="small", layers=12, hidden=768, heads=12, kv_heads=4, ffn=3072, vocab=1000)
EXPERTS = Model(name="mixture", layers=4, hidden=512, heads=8, experts=8, experts_per_token=2, vocab=1000)


def plans_of(space: Space) -> set[Plan]:
    return {space.plan(row) for row in range(len(space))}


def every_plan(model: Model, gpus: int, global_batch: int, seq: int) -> list[Plan]:
    """The slow twin: the product of everything, one by one."""
    divisors = [d for d in range(1, gpus + 1) if gpus % d == 0]
    most = min(max(64, 2**18 // seq), global_batch)
    batches = [d for d in range(1, most + 1) if global_batch % d == 0]
    experts = [d for d in range(1, model.experts + 1) if model.experts % d == 0] or [1]
    ways = [(name, 1) for name in SCHEDULES if name not in {"interleaved", "dualpipev"}] + [("dualpipev", 2)]
    several = [v for v in range(2, min(48, model.layers) + 1) if even(model.layers, v, 2)]
    ways += [(name, v) for name in ("interleaved", "zero-bubble") for v in several]
    found = []
    for dp, tp, pp, cp, ep, etp in itertools.product(divisors, divisors, divisors, divisors, experts, (0, 1)):
        if dp * tp * pp * cp != gpus or etp > (tp > 1 and model.experts > 0):
            continue
        for batch, (schedule, chunks), zero, sp, recompute, overlap in itertools.product(
            batches, ways, range(4), (False, True), RECOMPUTE, (True, False)
        ):
            found.append(Plan(dp, tp, pp, cp, ep, zero, sp, batch, chunks, schedule, recompute, overlap, etp=etp))
    return found


def can_run(plan: Plan, model: Model, gpus: int, global_batch: int, seq: int) -> bool:
    try:
        plan.check(model, gpus, global_batch, seq)
    except PlanError:
        return False
    return True


def is_plain(plan: Plan) -> bool:
    """Not the same as another: nothing is said that means nothing."""
    replicas = plan.dp * plan.cp
    return (
        (plan.pp > 1 or plan.schedule == "1f1b")
        and (plan.tp > 1 or not plan.sequence_parallel)
        and (replicas > 1 or (plan.zero == 0 and plan.overlap))
    )


@pytest.mark.parametrize(
    ("model", "gpus", "batch", "seq"),
    [
        (SMALL, 6, 3, 96),
        (EXPERTS, 8, 1, 64),
        (SMALL, 8, 3, 1024),
        pytest.param(SMALL, 12, 6, 96, marks=pytest.mark.grid),
        pytest.param(EXPERTS, 8, 4, 64, marks=pytest.mark.grid),
        pytest.param(SMALL, 8, 12, 1024, marks=pytest.mark.grid),
    ],
)
def test_the_space_is_what_can_be_run(model: Model, gpus: int, batch: int, seq: int) -> None:
    space = enumerate_plans(model, gpus, batch, seq)
    everything = every_plan(model, gpus, batch, seq)
    assert space.considered == len(everything)
    request = Request(model, gpus, batch, seq)
    broken = [broken_rule(plan, request) for plan in everything]
    for one, rule in list(zip(everything, broken, strict=True))[::11]:  # `check` asks the same rules
        assert can_run(one, model, gpus, batch, seq) == (rule is None)
    legal = [plan for plan, rule in zip(everything, broken, strict=True) if rule is None]
    expected = {plan for plan in legal if is_plain(plan)}
    assert plans_of(space) == expected
    assert space.considered == len(space) + sum(space.ruled_out.values())
    reasons = Counter(rule.reason for rule in broken if rule is not None)
    reasons[SAME] += len(legal) - len(expected)
    assert space.ruled_out == reasons


def test_a_program_is_asked_only_for_what_it_has() -> None:
    whole = enumerate_plans(SMALL, 8, 16, 128)
    found = enumerate_plans(SMALL, 8, 16, 128, software="megatron-core")
    assert {plan.schedule for plan in plans_of(found)} == {"1f1b", "interleaved"}
    assert {plan.zero for plan in plans_of(found) if plan.pp > 1} == {0, 1}
    assert {plan.zero for plan in plans_of(found) if plan.pp == 1} == {0, 1, 2, 3}
    even_ones = {plan for plan in plans_of(found) if plan.split == "even" and not plan.modules}
    assert even_ones < plans_of(whole)
    # It recomputes the MLP alone, but not the core of attention, which is fused: that would save nothing.
    assert {plan.recompute_modules for plan in plans_of(found)} == {"", "mlp"}
    balanced = [plan for plan in plans_of(found) if plan.split == "balanced"]
    assert found.considered == whole.considered + len(balanced)
    asked = enumerate_plans(SMALL, 8, 16, 128, software="megatron-core", fixed={"schedule": "zero-bubble", "zero": 3})
    assert {(plan.schedule, plan.zero) for plan in plans_of(asked)} == {("zero-bubble", 3)}


def test_an_overlapped_all_to_all_comes_with_several_chunks_a_stage() -> None:
    model = get_model("deepseek-v3")
    space = enumerate_plans(model, 256, 256, 4096, software="megatron-core+ep-overlap")
    piped = (space["pp"] > 1) & (space["ep"] > 1)
    assert piped.any()
    assert (space["interleave"][piped] > 1).all()
    fixed = enumerate_plans(
        model, 256, 256, 4096, software="megatron-core+ep-overlap", fixed={"pp": 8, "interleave": 1}
    )
    assert len(fixed), "what was asked for is not ruled out"


def test_jax_has_no_zero_bubble() -> None:
    space = enumerate_plans(get_model("llama2-70b"), 64, 64, 4096, software="jax")
    assert SCHEDULES.index("zero-bubble") not in space["schedule"]


def test_megatron_cuts_experts_and_tensors_with_sequence_parallelism_only() -> None:
    found = plans_of(enumerate_plans(EXPERTS, 8, 8, 64, software="megatron-core"))
    both = [plan for plan in found if plan.ep > 1 and plan.tp > 1]
    assert both
    assert all(plan.sequence_parallel for plan in both)


@pytest.mark.parametrize(
    "fixed",
    [
        {"tp": 4},
        {"tp": 1, "sequence_parallel": True},
        {"dp": 8, "zero": 2},
        {"pp": 1, "schedule": "gpipe"},
        {"interleave": 3},
        {"recompute": "full", "overlap": False, "micro_batch": 2},
        {"dp": 1, "tp": 4, "pp": 2, "cp": 1, "zero": 3},
    ],
)
def test_what_is_fixed_stays(fixed: dict[str, int | bool | str]) -> None:
    plans = plans_of(enumerate_plans(SMALL, 8, 16, 128, fixed=fixed))
    assert plans
    for one in plans:
        assert {name: getattr(one, name) for name in fixed} == fixed
        one.check(SMALL, 8, 16, 128)


def test_every_field_is_there() -> None:
    assert set(FIELDS) == {name for name in Plan().fields() if name != "precision"}


def test_the_whole_space_of_a_large_model_is_millions() -> None:
    space = enumerate_plans(get_model("gpt3-175b"), 1024, 1536, 2048)
    assert space.considered > 1_500_000
    assert len(space) > 400_000
    assert space.ruled_out[SAME] > 0
    assert math.prod(space.plan(7).fields()[name] for name in ("dp", "tp", "pp", "cp")) == 1024  # type: ignore[misc]


WRONG = [
    ({"tp": 5}, "tp 5 does not divide 8 GPUs; tp 4 would"),
    ({"tp": 3, "pp": 1}, "tp 3 × pp 1 = 3 does not divide 8 GPUs; tp 2 would"),
    ({"dp": 2, "tp": 2, "pp": 3, "cp": 1}, "dp 2 × tp 2 × pp 3 × cp 1 is 12 devices, not 8; pp 2 would"),
    ({"dp": 3, "tp": 2, "pp": 2, "cp": 1}, "dp 3 × tp 2 × pp 2 × cp 1 is 12 devices, not 8; dp 2 would"),
    ({"zero": 5}, "zero must be 0, 1, 2 or 3, not 5"),
    ({"micro_batch": 0}, "micro_batch must be a whole number of at least 1, not 0"),
    (
        {"schedule": "pipedream"},
        "schedule must be one of gpipe, 1f1b, interleaved, zero-bubble, dualpipe, dualpipev, not 'pipedream'",
    ),
    ({"stages": 2}, "a plan has no field 'stages'; it has dp, tp, pp"),
]


@pytest.mark.parametrize(("fixed", "sentence"), WRONG, ids=[str(fixed) for fixed, _ in WRONG])
def test_what_does_not_fit_together_is_reported(fixed: dict[str, int | bool | str], sentence: str) -> None:
    with pytest.raises(PlanError) as told:
        enumerate_plans(SMALL, 8, 16, 128, fixed=fixed)
    assert sentence in str(told.value)


@pytest.mark.parametrize(
    ("layers", "stages"),
    [
        (126, (1, 2, 3, 4, 6, 7, 8, 16, 32)),
        (61, (1, 2, 4, 8, 16)),
        (94, (1, 2, 3, 4, 6, 8, 12, 16)),
        (96, (1, 2, 3, 4, 6, 8)),
    ],
)
def test_embedding_and_head_take_the_place_of_layers(layers: int, stages: tuple[int, ...]) -> None:
    assert all(even(layers, number) for number in stages)
    assert not any(even(layers, number) for number in (5, 11, 13))
    assert not even(96, 7)
    assert not even(32, 3)


def test_plan_and_evaluate_refuse_the_same_with_the_same_words() -> None:
    model, job = get_model("llama3-70b"), {"cluster": "hgx-h100", "global_batch": 56, "seq": 4096}
    sentence = "layers 80 of llama3-70b are not divisible by pp 7; use pp 5 or 8"
    seven = Plan(dp=1, tp=8, pp=7)
    with pytest.raises(PlanError, match=sentence):
        seven.check(model, 56, 56, 4096)
    with pytest.raises(PlanError, match=sentence):
        evaluate(model, seven, **job)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=sentence):
        plan(model, gpus=56, tp=8, pp=7, split="even", **job)  # type: ignore[arg-type]
    fields = {name: value for name, value in seven.fields().items() if name != "precision"}
    with pytest.raises(PlanError, match=sentence):
        plan(model, gpus=56, **job, **fields)  # type: ignore[arg-type]


def test_a_program_with_uneven_stages_may_have_any_number_of_them() -> None:
    model = get_model("llama3-8b")
    found = enumerate_plans(model, 6, 6, 4096, fixed={"pp": 3}, software="nanotron")
    assert len(found) > 0
    step = evaluate(model, found.plan(0), cluster="hgx-h100", gpus=6, global_batch=6, seq=4096, software="nanotron")
    assert step.step_time_s > 0
    assert len(enumerate_plans(model, 6, 6, 4096, fixed={"pp": 3}, software="megatron-2021")) == 0
    listed = enumerate_plans(model, 6, 6, 4096, fixed={"pp": 3}, software="megatron-core")
    assert {plan.split for plan in plans_of(listed)} == {"balanced"}


def test_interleaving_that_was_asked_for_comes_with_a_pipeline() -> None:
    found = plan(
        SMALL, cluster="hgx-h100", gpus=4, global_batch=16, seq=128, schedule="interleaved", interleave=3, tp=1
    )
    assert all(one.plan.pp > 1 for one in found.plans)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"dp": 8, "zero": 3, "shard_size": 3}, "dp 8 is not divisible by shard_size 3; use shard_size 2 or 4"),
        ({"dp": 8, "zero": 0, "shard_size": 4}, "shard_size 4 goes with ZeRO, and zero is 0"),
        ({"dp": 8, "zero": 3, "shard_size": -1}, "shard_size must be a whole number, 0 for all replicas, not -1"),
        ({"dp": 8, "ep": 8, "zero": 3, "shard_size": 4}, "shard_size 4 beside ep 8 is not planned"),
    ],
)
def test_a_shard_size_must_divide_the_replicas(fields: dict[str, int], sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        Plan(**fields).check(  # type: ignore[arg-type]
            get_model("mixtral-8x7b"), 8, 16, 4096
        )
