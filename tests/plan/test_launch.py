"""Options for Megatron-LM and torchtitan: they name the whole model and the whole plan, or there are none."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from choreo.plan import get_cluster, get_software
from choreo.plan import plan as choose
from choreo.plan.job import TrainingJob
from choreo.plan.launch import Launch, launches
from choreo.plan.software.ability import ability_of
from choreo.workload import Model, Plan, get_model


def told(
    model: str | Model, plan: Plan, *, software: str = "megatron-core", seq: int = 4096, cluster: str = "hgx-h100"
) -> dict[str, Launch]:
    place = get_cluster(cluster)
    batch = plan.dp * plan.micro_batch * 4 * plan.pp
    program = get_software(software)
    job = TrainingJob(get_model(model), plan.gpus, batch, seq, place, place.chip(None), program, plan.precision)
    return {launch.program: launch for launch in launches(job, plan)}


def megatron(model: str, plan: Plan, **more: str) -> dict[str, str]:
    """Options by name, with their values."""
    found = told(model, plan, **more)["Megatron-LM"]  # type: ignore[arg-type]
    assert not found.lacks
    return {option.split(" ")[0]: " ".join(shlex.split(option)[1:]) for option in found.options}


def test_a_llama_has_all_its_options() -> None:
    options = megatron("llama3-70b", Plan(dp=2, tp=8, pp=4, zero=1, sequence_parallel=True))
    wanted = {
        "--rotary-base": "500000", "--rope-scaling-factor": "8", "--norm-epsilon": "1e-05", "--swiglu": "",
        "--attention-dropout": "0.0", "--hidden-dropout": "0.0", "--num-query-groups": "8",
        "--make-vocab-size-divisible-by": "32", "--bf16": "", "--overlap-param-gather": "",
    }  # fmt: skip
    assert {name: options.get(name) for name in wanted} == wanted
    assert "--grad-reduce-in-bf16" not in options
    assert "--grad-reduce-in-bf16" in megatron("llama3-70b", Plan(dp=2, tp=8), software="nemo")


@pytest.mark.parametrize(
    ("model", "name", "value"),
    [
        ("qwen2.5-7b", "--add-qkv-bias", ""),
        ("qwen3-8b", "--qk-layernorm", ""),
        ("nemotron4-15b", "--squared-relu", ""),
        ("nemotron4-15b", "--rotary-percent", "0.5"),
        ("deepseek-v3", "--moe-layer-freq", "[0]*3+[1]*58"),
        ("deepseek-v3", "--moe-router-score-function", "sigmoid"),
        ("deepseek-v3", "--moe-grouped-gemm", ""),
        ("deepseek-v3", "--mtp-num-layers", "1"),
        ("llama4-maverick", "--moe-layer-freq", "[0,1]*24"),
        ("gpt-oss-20b", "--softmax-type", "learnable"),
        ("gpt3-1.3b", "--position-embedding-type", "learned_absolute"),
        ("deepseek-v3", "--rotary-scaling-factor", "40"),
        ("deepseek-v2-lite", "--mscale-all-dim", "0.707"),
        ("deepseek-v2-lite", "--moe-router-pre-softmax", ""),
        ("qwen2-57b-a14b", "--moe-router-pre-softmax", ""),
        ("gpt-oss-20b", "--position-embedding-type", "yarn"),
        ("gpt-oss-20b", "--no-yarn-correction-range-round-to-int", ""),
        ("qwen2.5-72b", "--norm-epsilon", "1e-05"),
        ("qwen3-coder-480b-a35b", "--rotary-base", "10000000"),
    ],
)
def test_what_makes_a_model_itself_is_reported(model: str, name: str, value: str) -> None:
    assert megatron(model, Plan(dp=8, zero=1), **{})[name] == value


def test_positions_that_megatron_has_no_options_for_are_reported() -> None:
    kimi, moonlight = (told(name, Plan(dp=8, zero=1))["Megatron-LM"] for name in ("kimi-k2", "moonlight-16b-a3b"))
    assert "beta_fast 1" in " ".join(kimi.notes)
    assert "beta_fast" not in " ".join(moonlight.notes)
    assert "normalises their input once more" in " ".join(moonlight.notes)
    assert "normalises" not in " ".join(kimi.notes)
    assert not any("scaling-factor" in option and "rotary" in option for option in moonlight.options)
    # A router whose weights add up to one takes the softmax of the chosen experts alone.
    assert "--moe-router-pre-softmax" not in megatron("mixtral-8x7b", Plan(dp=8, zero=1))


@pytest.mark.parametrize(
    ("model", "plan", "expected"),
    [
        ("llama3-8b", Plan(pp=4), {}),
        ("llama3-8b", Plan(pp=4, interleave=2), {"--num-layers-per-virtual-pipeline-stage": "4"}),
        (
            "llama3-405b",
            Plan(tp=8, pp=16, interleave=8, sequence_parallel=True),
            {
                "--num-layers-per-virtual-pipeline-stage": "1",
                "--account-for-embedding-in-pipeline-split": "",
                "--account-for-loss-in-pipeline-split": "",
            },
        ),
        (
            "llama3.2-1b",
            Plan(pp=4, split="balanced"),
            {"--decoder-first-pipeline-num-layers": "5", "--decoder-last-pipeline-num-layers": "1"},
        ),
        ("llama3.2-3b", Plan(pp=8, split="4*7,0"), {"--pipeline-model-parallel-layout": "Etttt|(tttt|)*6L"}),
        (
            "deepseek-v3",
            Plan(pp=8, interleave=4, split="3,2*29,0*2"),
            {"--pipeline-model-parallel-layout": "Ettt|(tt|)*29m|L"},
        ),
    ],
)
def test_stages_are_reported(model: str, plan: Plan, expected: dict[str, str]) -> None:
    options = megatron(model, plan)
    names = ("virtual-pipeline", "-in-pipeline-split", "decoder-", "layout")
    assert {name: value for name, value in options.items() if any(part in name for part in names)} == expected


@pytest.mark.parametrize(
    ("model", "plan", "reason"),
    [
        ("bloom-7.1b", Plan(), "ALiBi"),
        ("palm-8b", Plan(), "in parallel"),
        ("opt-175b", Plan(), "relu"),
        ("grok-1", Plan(), "4 norms a layer"),
        ("llama3-8b", Plan(pp=2, schedule="zero-bubble"), "schedule"),
        ("llama3-8b", Plan(pp=2, schedule="dualpipe"), "schedule"),
        ("llama3-8b", Plan(dp=2, pp=2, zero=3), "beside a pipeline"),
        ("gpt-oss-20b", Plan(tp=2, sequence_parallel=True), "biases of experts"),
        ("phi-3.5-moe", Plan(), "SparseMixer"),
    ],
)
def test_megatron_gets_no_options_of_a_similar_plan(model: str, plan: Plan, reason: str) -> None:
    found = told(model, plan)["Megatron-LM"]
    assert not found.options
    assert reason in "; ".join(found.lacks)


def test_megatron_gets_no_options_where_norms_are_elsewhere() -> None:
    model = replace(get_model("llama3-8b"), norm_after=True, qk_norm=True, qk_norm_whole=True)
    assert told(model, Plan())["Megatron-LM"].lacks == (
        "norms after attention and MLP",
        "norms over all heads of queries and keys",
    )


def test_megatron_gets_no_options_for_what_a_config_asks_for_and_it_does_not_have() -> None:
    granite = replace(get_model("llama3-8b"), not_built="its embedding_multiplier")
    assert told(granite, Plan())["Megatron-LM"].lacks == ("its embedding_multiplier",)
    unusual = replace(get_model("moonlight-16b-a3b"), router_normalised=False)
    assert "do not add up to one" in told(unusual, Plan())["Megatron-LM"].lacks[0]
    eight = told("llama3-405b", Plan(tp=8, zero=3, dp=8, precision="fp8"), software="torchtitan+rowwise")
    assert "a scale for each row in fp8" in eight["Megatron-LM"].lacks


def test_megatron_gets_options_for_how_tokens_are_dispatched() -> None:
    plan = Plan(dp=16, pp=2, ep=16, zero=1, interleave=2, schedule="interleaved")
    found = megatron("qwen3-30b-a3b", plan, software="megatron-core+deepep+ep-overlap")
    assert found["--moe-token-dispatcher-type"] == "flex"
    assert found["--moe-flex-dispatcher-backend"] == "deepep"
    assert "--overlap-moe-expert-parallel-comm" in found
    for other, reason in (
        (replace(plan, interleave=1, schedule="1f1b"), "one chunk a stage"),
        (replace(plan, recompute="full"), "experts computed again"),
        (replace(plan, precision="fp32"), "all_to_all in fp32"),
    ):
        lacks = told("qwen3-30b-a3b", other, software="megatron-core+deepep+ep-overlap")["Megatron-LM"].lacks
        assert reason in "; ".join(lacks)
    lacks = told("qwen3-30b-a3b", plan, software="megatron-core+fp8-dispatch")["Megatron-LM"].lacks
    assert "in fp8" in lacks[0]


def test_megatron_is_told_what_has_a_scale_and_no_module_that_is_not_there() -> None:
    plan = Plan(dp=8, zero=1, precision="fp8")
    for options, recipe in (("", "delayed"), ("+current-scaling", "tensorwise"), ("+blockwise", "blockwise")):
        assert megatron("llama3-8b", plan, software=f"nemo{options}")["--fp8-recipe"] == recipe
    again = replace(plan, recompute="selective", recompute_modules="layernorm,mlp")
    assert megatron("llama3-8b", again)["--fp8-recipe"] == "tensorwise"
    for name in ("mla_up_proj", "moe_act", "shared_experts", "moe"):
        lacks = told("llama3-8b", replace(again, recompute_modules=name))["Megatron-LM"].lacks
        assert f"a module {name} to compute again" in lacks[0]


def test_parameters_of_eight_bits_are_gathered_as_such_where_they_are_priced_so() -> None:
    plan = Plan(dp=2, tp=8, zero=1, precision="fp8")
    assert "--fp8-param-gather" in megatron("llama3-70b", plan, software="nemo")
    assert "--fp8-param-gather" not in megatron("llama3-70b", plan)
    assert "--fp8-param-gather" not in megatron("llama3-70b", replace(plan, zero=0), software="nemo")
    blackwell = megatron("llama3-70b", plan, software="nemo", cluster="hgx-b200")
    assert {"--fp8-param-gather", "--reuse-grad-buf-for-mxfp8-param-ag"} <= set(blackwell)


def test_megatron_recomputes_as_many_layers_in_each_chunk() -> None:
    plan = Plan(dp=2, tp=4, pp=4, zero=1, schedule="interleaved", interleave=5, recompute="full", recompute_layers=10)
    assert megatron("llama3-70b", plan)["--recompute-num-layers"] == "2"
    lacks = told("llama3-70b", replace(plan, recompute_layers=1))["Megatron-LM"].lacks
    assert lacks == ("recomputation of 1 layer of a stage in 5 chunks, which all recompute as many",)


def test_megatron_fsdp_computes_in_eight_bits() -> None:
    """Parameters are gathered in the width that is priced, and without the optimizer's buffers, which it has not."""
    plan = Plan(dp=64, zero=3, precision="fp8")
    plain = megatron("llama3-70b", plan, cluster="hgx-b200")
    assert {"--use-megatron-fsdp", "--fp8-recipe"} <= set(plain)
    assert "--fp8-param-gather" not in plain
    recipe = megatron("llama3-70b", plan, cluster="hgx-b200", software="nemo")
    assert recipe["--fp8-recipe"] == "mxfp8"
    assert "--fp8-param-gather" in recipe
    assert "--reuse-grad-buf-for-mxfp8-param-ag" not in recipe
    assert "--reuse-grad-buf-for-mxfp8-param-ag" in megatron(
        "llama3-70b", replace(plan, zero=1), cluster="hgx-b200", software="nemo"
    )


def test_both_get_options_for_hybrid_sharding() -> None:
    plan = Plan(dp=32, zero=3, shard_size=8)
    found = told("llama3-8b", plan, software="torchtitan")["torchtitan"]
    assert "--parallelism.data_parallel_replicate_degree 4" in found.options
    assert "--parallelism.data_parallel_shard_degree 8" in found.options
    assert megatron("llama3-8b", plan)["--num-distributed-optimizer-instances"] == "4"
    assert "--num-distributed-optimizer-instances" not in megatron("llama3-8b", replace(plan, shard_size=0))
    assert "hybrid sharding, which nanotron does not have" in ability_of("nanotron").lacks(replace(plan, zero=1))


def test_torchtitan_is_told_or_not() -> None:
    plan = Plan(dp=8, pp=4, zero=2, schedule="zero-bubble", interleave=2)
    found = told("llama3-8b", plan, software="torchtitan")["torchtitan"]
    assert "--parallelism.pipeline_parallel_schedule InterleavedZeroBubble" in found.options
    assert "--parallelism.pipeline_parallel_layers_per_stage 4" in found.options
    assert found.options[-1] == "activation-checkpoint:none"
    assert "ZeRO" in told("llama3-8b", Plan(dp=8, zero=1))["torchtitan"].lacks[0]
    assert told("mpt-7b", Plan(dp=8, zero=3))["torchtitan"].lacks == ("it has no configuration of mpt-7b in bf16",)


def test_torchtitan_is_told_of_async_tensor_parallelism_and_its_scales() -> None:
    plan = Plan(dp=8, tp=4, zero=3, sequence_parallel=True)
    found = told("llama3-8b", plan, software="torchtitan+compile+async-tp")["torchtitan"]
    assert "--compile.enable_async_tensor_parallel" in found.options
    assert {"--compile.enable", "--compile.components model,loss"} <= set(found.options)
    assert "--loss.num_chunks 1" in found.options
    chunked = told("llama3-8b", plan, software="torchtitan+chunked-loss")
    assert "--loss.num_chunks 8" in chunked["torchtitan"].options
    assert chunked["Megatron-LM"].lacks == ("a loss of some of the tokens at a time",)
    # Some configurations compile and overlap by themselves.
    eager = told("llama3-405b", replace(plan, precision="fp8"), software="torchtitan+rowwise")["torchtitan"].options
    assert {"--compile.no-enable", "--compile.no-enable_async_tensor_parallel"} <= set(eager)
    assert "without the compiler" in told("llama3-8b", plan, software="torchtitan+async-tp")["torchtitan"].lacks[0]
    eight = replace(plan, precision="fp8")
    notes = [
        " ".join(told("llama3-405b", eight, software=f"torchtitan{more}")["torchtitan"].notes)
        for more in ("", "+rowwise")
    ]
    assert "a scale a row" in notes[0]
    assert "a scale a row" not in notes[1]


def test_torchtitan_spreads_experts_over_tensor_parallel_ranks() -> None:
    cut = Plan(dp=8, tp=2, ep=8, zero=3, sequence_parallel=True)
    assert told("qwen3-30b-a3b", cut, software="torchtitan")["torchtitan"].lacks
    folded = told("qwen3-30b-a3b", replace(cut, ep=16, etp=1), software="torchtitan")["torchtitan"]
    assert "--parallelism.expert_parallel_degree 16" in folded.options
    lacks = told("deepseek-v3", Plan(dp=64, ep=64, zero=3), software="torchtitan")["torchtitan"].lacks
    assert lacks == ("layers that predict further tokens, which its configuration leaves out",)


def test_what_is_at_the_host_is_reported() -> None:
    plan = Plan(dp=8, zero=1)
    found = megatron("llama3-8b", plan, software="megatron-core+optimizer-offload+activation-offload=0.5")
    assert {"--optimizer-cpu-offload", "--use-precision-aware-optimizer"} <= set(found)
    assert found["--cpu-offloading-num-layers"] == "16"
    again = replace(plan, recompute="full")
    assert told("llama3-8b", again, software="megatron-core+activation-offload=0.5")["Megatron-LM"].lacks


@pytest.mark.parametrize(
    ("cluster", "precision", "device"),
    [("dgx-a100", "fp8", "A100-80G-SXM"), ("hgx-h100", "fp4", "H100-80G-SXM"), ("dgx-2", "bf16", "V100-32G-SXM3")],
)
def test_there_are_no_options_for_a_precision_that_the_device_does_not_have(
    cluster: str, precision: str, device: str
) -> None:
    found = told("llama3-8b", Plan(dp=8, zero=1, precision=precision), cluster=cluster)
    assert {one.lacks for one in found.values()} == {(f"{precision}, in which {device} has no matmuls",)}


def test_there_are_no_options_for_devices_that_a_program_does_not_run_on() -> None:
    found = choose("llama3-8b", cluster="tpu-v5p", gpus=8, global_batch=8, seq=2048, dp=8, zero=3)
    assert found.job is not None and found.job.software.name == "jax"
    assert [launch.lacks for launch in launches(found.job, found.best.plan)] == [("it does not run on TPU-v5p",)] * 2
