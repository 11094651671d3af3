"""Plans: what can be run, what cannot and what would, and which ranks form a group."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from choreo.errors import PlanError
from choreo.workload import Model, Plan, get_model, stage_layers

GPT = get_model("gpt3-175b")
MIXTRAL = get_model("mixtral-8x7b")
LLAMA = get_model("llama3-70b")
GOOD = Plan(dp=8, tp=8, pp=8, micro_batch=2, sequence_parallel=True)


def test_a_plan_that_can_be_run() -> None:
    GOOD.check(GPT, 512, 256, 2048)
    assert GOOD.gpus == 512
    assert GOOD.micro_batches(256) == 16
    Plan(dp=16, tp=2, cp=2, ep=8).check(MIXTRAL, 64, 64, 4096)
    Plan(tp=16, dp=4).check(LLAMA, 64, 64, 4096)  # each key-value head twice
    Plan(pp=5, dp=2).check(GPT, 10, 8, 2048, uneven_stages=True)


@pytest.mark.parametrize(
    ("plan", "model", "told"),
    [
        (
            replace(GOOD, dp=4),
            GPT,
            "dp 4 × tp 8 × pp 8 × cp 1 is 256 devices, not 512; dp 8 would",
        ),
        (
            replace(GOOD, pp=6),
            GPT,
            "dp 8 × tp 8 × pp 6 × cp 1 is 384 devices, not 512, and no dp makes up for it: tp × pp × cp = 48 does not "
            "divide 512; pp 4 or 8 would",
        ),
        (
            Plan(dp=1, tp=3, pp=5, cp=1),
            GPT,
            "dp 1 × tp 3 × pp 5 × cp 1 is 15 devices, not 512, and no dp makes up for it: tp × pp × cp = 15 does not "
            "divide 512; tp, pp and cp 1 would",
        ),
        (Plan(dp=8, tp=64), GPT, "heads 96 of gpt3-175b are not divisible by tp 64; use tp 48 or 96"),
        (
            Plan(dp=16, tp=32),
            replace(LLAMA, kv_heads=64, heads=64, ffn=28673 - 17),
            "ffn 28656 of llama3-70b are not divisible by tp 32; use tp 16",
        ),
        (
            Plan(dp=64, tp=8),
            Model("odd", layers=4, hidden=3072, heads=48, kv_heads=12),
            "kv_heads 12 of odd and tp 8 do not divide each other; tp 6 or 12 would",
        ),
        (Plan(dp=4, pp=128), GPT, "pp 128 is more than the 96 layers of gpt3-175b; pp 96 is the most"),
        (
            Plan(dp=64, tp=8, interleave=2),
            GPT,
            "interleave 2 needs a pipeline, and pp is 1; interleave 1, or pp 2 or more",
        ),
        (
            Plan(dp=4, tp=16, pp=8, micro_batch=16, interleave=2),
            GPT,
            "interleaving needs micro-batches in rounds of pp 8, and there are 4; micro-batch 8 would",
        ),
        (
            replace(GOOD, interleave=5),
            GPT,
            "layers 96 of gpt3-175b are not divisible by pp 8 × interleave 5 = 40; use interleave 4 or 6",
        ),
        (
            replace(GOOD, pp=64, dp=1, interleave=2),
            GPT,
            "layers 96 of gpt3-175b are not divisible by pp 64; use pp 48",
        ),
        (
            replace(GOOD, micro_batch=3),
            GPT,
            "global batch 256 is not divisible by dp 8 × micro-batch 3 = 24; use micro-batch 2 or 4",
        ),
        (
            Plan(dp=512, micro_batch=1),
            GPT,
            "global batch 256 is not divisible by dp 512 × micro-batch 1 = 512; use a global batch of 512",
        ),
        (replace(GOOD, ep=2), GPT, "ep 2 shares out experts, and gpt3-175b has none; ep 1"),
        (
            Plan(dp=64, tp=8, ep=16),
            MIXTRAL,
            "experts 8 of mixtral-8x7b are not divisible by ep 16; use ep 8",
        ),
        (
            Plan(dp=4, tp=8, pp=16, ep=8),
            MIXTRAL,
            "ep 8 does not divide dp 4 × cp 1 = 4, whose ranks share out the experts; ep 4 would; with etp 1 "
            "tensor-parallel ranks share them out too",
        ),
        (
            Plan(dp=2, tp=2, pp=128, ep=8, etp=2, sequence_parallel=True),
            replace(MIXTRAL, layers=128),
            "ep 8 does not divide dp 2 × cp 1 = 2, whose ranks share out the experts; ep 2 would; with etp 1 "
            "tensor-parallel ranks share them out too",
        ),
        (
            Plan(dp=2, tp=2, pp=128, ep=8, etp=1, sequence_parallel=True),
            replace(MIXTRAL, layers=128),
            "ep 8 × etp 1 does not divide dp 2 × cp 1 × tp 2 = 4, whose ranks share out the experts; ep 4 would",
        ),
        (
            Plan(dp=64, tp=8, ep=8, etp=1),
            MIXTRAL,
            "etp 1 beside tp 8 needs sequence parallelism, for else tensor-parallel ranks have the same tokens; "
            "sequence_parallel, or etp 8",
        ),
        (
            Plan(dp=64, tp=8, etp=5, sequence_parallel=True),
            MIXTRAL,
            "expert_ffn 14336 of mixtral-8x7b is not divisible by etp 5; use etp 4 or 7",
        ),
        (replace(GOOD, etp=1), GPT, "etp 1 cuts experts, and gpt3-175b has none; etp 0"),
        (
            Plan(dp=2, tp=1, cp=256),
            GPT,
            "seq 2000 is not divisible by cp 256; use a seq of 2048",
        ),
        (
            Plan(dp=16, tp=32, sequence_parallel=True),
            GPT,
            "seq 2000 is not divisible by cp 1 × tp 32 = 32 (sequence parallel); use a seq of 1984",
        ),
    ],
)
def test_what_cannot_be_run_is_a_sentence(plan: Plan, model: Model, told: str) -> None:
    with pytest.raises(PlanError) as error:
        plan.check(model, 512, 256, 2000 if "seq" in told else 2048)
    assert str(error.value) == told


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"recompute": "selective", "recompute_modules": "mlp,norm"},
            "recompute_modules must be of core_attn, mla_up_proj, layernorm, moe_act, shared_experts, mlp, moe, not "
            "'norm'",
        ),
        ({"recompute_modules": "mlp"}, "recompute_modules mlp goes with recompute selective, not none"),
        ({"etp": -1}, "etp must be a whole number, 0 for as many as tp, not -1"),
        ({"tp": 0}, "tp must be a whole number of at least 1, not 0"),
        ({"pp": 10**30}, f"pp must be at most 1048576, not {10**30}"),
        ({"overlap": "no"}, "overlap must be true or false, not 'no'"),
        ({"sequence_parallel": [True]}, "sequence_parallel must be true or false, not [True]"),
        ({"dp": 2.5}, "dp must be a whole number of at least 1, not 2.5"),
        ({"pp": True}, "pp must be a whole number of at least 1, not True"),
        ({"zero": 4}, "zero must be 0, 1, 2 or 3, not 4"),
        (
            {"schedule": "2f2b"},
            "schedule must be one of gpipe, 1f1b, interleaved, zero-bubble, dualpipe, dualpipev, not '2f2b'",
        ),
        ({"recompute": "some"}, "recompute must be one of none, selective, full, not 'some'"),
        ({"precision": "int8"}, "precision must be one of fp32, tf32, fp16, bf16, fp8, fp4, not 'int8'"),
    ],
)
def test_values_that_mean_nothing(fields: dict[str, object], told: str) -> None:
    with pytest.raises(PlanError) as error:
        Plan(**fields)  # type: ignore[arg-type]
    assert str(error.value) == told


@pytest.mark.parametrize("field", ["gpus", "global_batch", "seq"])
def test_a_job_of_nothing(field: str) -> None:
    job = {"gpus": 512, "global_batch": 256, "seq": 2048, field: 0}
    with pytest.raises(PlanError, match=f"{field} must be a whole number of at least 1, not 0"):
        GOOD.check(GPT, job["gpus"], job["global_batch"], job["seq"])


@given(st.integers(1, 128), st.integers(1, 16), st.integers(1, 6))
def test_stages_hold_every_layer_once(layers: int, pp: int, interleave: int) -> None:
    if layers + 3 < pp * interleave or pp * interleave > 2 * layers:
        with pytest.raises(PlanError, match=f"{layers} layers? cannot be cut into {pp * interleave} stages"):
            stage_layers(layers, pp, interleave)
        return
    stages = stage_layers(layers, pp, interleave)
    assert len(stages) == pp * interleave
    assert list(itertools.chain.from_iterable(stages)) == list(range(layers))
    sizes = [len(stage) for stage in stages]
    assert max(sizes) - min(sizes) <= 1
    if len(stages) > 2 and layers % len(stages) <= len(stages) - 2:
        assert sizes[0] == sizes[-1] == min(sizes)  # they have the embedding and the output layer as well


@pytest.mark.parametrize("axes", [("tp",), ("cp",), ("dp",), ("pp",), ("cp", "dp"), ("ep",), ("edp",), ("etp",)])
@pytest.mark.parametrize("etp", [0, 1, 4])
def test_groups_are_those_of_megatron(axes: tuple[str, ...], etp: int) -> None:
    plan = Plan(dp=4, tp=2, pp=3, cp=2, ep=4, etp=etp)
    size, stride = plan.group(axes)
    # Every rank has coordinates; tp varies fastest, then cp, dp, pp; etp, ep and edp renumber tp × cp × dp.
    coordinates = {}
    for rank, (pp, dp, cp, tp) in enumerate(itertools.product(range(3), range(4), range(2), range(2))):
        inner, width = divmod((dp * plan.cp + cp) * plan.tp + tp, etp or 2)
        places = {"etp": width, "ep": inner % plan.ep, "edp": inner // plan.ep}
        coordinates[rank] = {"tp": tp, "cp": cp, "dp": dp, "pp": pp, **places}
    experts = bool({"etp", "ep", "edp"} & set(axes))
    kept = [axis for axis in (("etp", "ep", "edp", "pp") if experts else ("tp", "cp", "dp", "pp")) if axis not in axes]
    group = [rank for rank, at in coordinates.items() if all(at[axis] == coordinates[0][axis] for axis in kept)]
    assert group == [stride * number for number in range(size)]


def test_plans_in_words() -> None:
    assert str(Plan()) == "mb1 bf16"
    plan = replace(GOOD, interleave=2, schedule="interleaved", recompute="full", zero=1)
    assert str(plan) == "dp8 tp8 pp8 zero1 sp mb2 v2 interleaved recompute-full bf16"
    assert Plan(**plan.fields()) == plan  # type: ignore[arg-type]
    assert (Plan(precision="fp8").activation_bytes, Plan(precision="tf32").activation_bytes) == (2, 4)
