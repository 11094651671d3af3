"""What a published run is taken for: its model, its program, its plan, and what was chosen where it says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from choreo.validate.plan.case import read_case
from choreo.validate.plan.row_model import catalogued, row_model
from choreo.validate.plan.validate import read_cases, validate
from tests.helpers.measured_rows import read_one

RECIPE_ROWS = """source,software,model,gpu,gpus,tp,pp,dp,ep,interleave,micro_batch,global_batch,seq,precision,\
zero_stage,notes
Megatron-Bridge perf summary 25.09,megatron-core,DeepSeek-V3,H100-80G-SXM,1024,2,8,64,64,4,1,8192,4096,fp8,1,
Megatron-Bridge perf summary 26.04,megatron-core,DeepSeek-V3,B200-SXM,256,1,16,16,8,1,1,4096,4096,mxfp8,1,
Megatron-Bridge perf summary 26.02,megatron-core,Qwen3-235B-A22B,H100-80G-SXM,256,2,8,16,32,4,1,8192,4096,fp8,1,
Megatron-Bridge perf summary 26.02,megatron-core,Llama3-70B,GB200-NVL72,64,1,1,64,,1,2,256,8192,fp8,3,
a paper,megatron-core,Qwen3-235B-A22B,H100-80G-SXM,256,2,8,16,8,4,1,8192,4096,bf16,1,DeepEP; ETP 1; token drop
"""


def test_a_row_of_nvidias_tables_is_run_as_its_recipe_says(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(RECIPE_ROWS)
    cases, skipped = read_cases(file)
    assert not skipped
    assert [case.software for case in cases] == [
        "nemo+current-scaling+deepep+ep-overlap",
        "nemo+deepep",
        "nemo+current-scaling+ep-overlap",
        "nemo+current-scaling+activation-offload=0.500",
        "megatron-core+deepep+token-drop",
    ]
    plans = [case.plans for case in cases]
    assert [len(found) for found in plans[:4]] == [1, 1, 1, 1]
    first, stages, folded, offloaded = (found[0] for found in plans[:4])
    assert (first.recompute_modules, first.etp) == ("mla_up_proj,mlp", 1)
    assert (stages.split, stages.recompute_modules) == ("4*15,1", "mla_up_proj")
    assert (folded.etp, folded.recompute) == (1, "none")  # 16 replicas, whose 32 ranks share out the experts
    assert offloaded.recompute == "none"
    assert {plan.etp for plan in plans[4]} == {1}


@pytest.mark.parametrize(
    ("precision", "source", "option"),
    [("fp8-cs", "a paper", "+current-scaling"), ("FP8-SC", "a paper", "+blockwise"), ("fp8", "a paper", ""),
     ("fp8 current scaling", "a paper", "+current-scaling"), ("fp8 blockwise", "a paper", "+blockwise")],
)  # fmt: skip
def test_a_row_says_what_has_a_scale(tmp_path: Path, precision: str, source: str, option: str) -> None:
    found = read_case(read_one(tmp_path, software="megatron-core", precision=precision, source=source))
    assert found.software == f"megatron-core{option}"


def test_more_ranks_than_experts_give_way(tmp_path: Path) -> None:
    about = {
        "model": "Mixtral 8x7B",
        "layers": "",
        "hidden": "",
        "heads": "",
        "kv_heads": "",
        "ffn": "",
        "params_B": "",
    }
    found = read_case(read_one(tmp_path, **about, gpus="64", tp="1", pp="1", dp="64", ep="64", global_batch="64"))
    assert found.plans[0].ep == 8


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("DeepSeek-V3-671B-A37B", "deepseek-v3"),
        ("Llama4-Maverick-400B-A17B", "llama4-maverick"),
        ("Kimi K2 1.04T-A32B", "kimi-k2"),
        ("OpenAI gpt-oss-120b", "gpt-oss-120b"),
        ("Qwen3-MoE-235B-A22B", "qwen3-235b-a22b"),
        ("DeepSeek V3 671B (proxy, 8 layers)", "deepseek-v3"),
        ("Mixtral-8x7B-4L", "mixtral-8x7b"),
        ("Mixtral-8x22B-G8T8", "mixtral-8x22b-g8t8"),
        ("llama31_405b", "llama3-405b"),
        ("Llama4-Maverick-400B-17B-128E", "llama4-maverick"),
        ("Llama4 17B-16E", "llama4-scout"),
        ("DeepSeekMoE-16B", "deepseek-moe-16b"),
        ("DeepSeek-V3.2-Exp", "deepseek-v3"),
        ("Moonshot Kimi-K2", "kimi-k2"),
        ("Llama4-400B", "llama4-maverick"),
        ("Qwen3-Coder-480B", "qwen3-coder-480b-a35b"),
        ("Qwen2-72B", "qwen2.5-72b"),
        ("DeepSeek-V3 16B", "deepseek-v2-lite"),
        ("deepseek3-671b", "deepseek-v3"),
        ("Llama 4 Maverick 17Bx128E", "llama4-maverick"),
        ("Llama4-17Bx16E", "llama4-scout"),
        ("MaxText-Llama3.1-70B", "llama3-70b"),
        ("unsloth/Meta-Llama-3.1-8B-bnb-4bit", "llama3-8b"),
    ],
)
def test_models_are_found_as_tables_write_them(tmp_path: Path, written: str, name: str) -> None:
    found = catalogued(read_one(tmp_path, model=written, layers="", hidden="", heads=""))
    assert found is not None and found.name == name


def test_other_heads_than_a_known_models_do_not_share_keys(tmp_path: Path) -> None:
    about = {"model": "GPT 1T", "params_B": "1000", "layers": "128", "hidden": "25600", "heads": "128", "vocab": ""}
    model, _ = row_model(read_one(tmp_path, **about, kv_heads=""))
    assert model.kv_heads == 128


@pytest.mark.parametrize("name", ["deepseekv3-l8", "DeepSeek-V3-8L", "DeepSeek V3 (8 layers)"])
def test_fewer_layers_are_read_from_the_name(tmp_path: Path, name: str) -> None:
    assert row_model(read_one(tmp_path, model=name, layers="", hidden="", heads="", params_B=""))[0].layers == 8


def test_expert_parallelism_is_kept_where_a_cut_allows_it(tmp_path: Path) -> None:
    about = {"model": "Mixtral-8x7B", "layers": "", "hidden": "", "heads": "", "params_B": "", "vocab": ""}
    case = read_case(read_one(tmp_path, **about, gpus="8", tp="1", pp="", dp="", ep="8", global_batch="64"))
    assert {(plan.ep, plan.pp) for plan in case.plans} == {(8, 1)}


def test_a_tuned_model_is_the_model(tmp_path: Path) -> None:
    found = catalogued(read_one(tmp_path, model="Llama3 8B LoRA", layers="", hidden="", heads=""))
    assert found is not None and found.name == "llama3-8b"


def test_sharded_gradients_mean_no_pipeline(tmp_path: Path) -> None:
    case = read_case(read_one(tmp_path, software="DeepSpeed", zero_stage="2", tp="", pp="", dp=""))
    assert {plan.pp for plan in case.plans} == {1}


def test_layers_in_the_name_count_where_their_column_is_empty(tmp_path: Path) -> None:
    about = {
        "model": "DeepSeek-V3-16L",
        "hidden": "",
        "heads": "",
        "kv_heads": "",
        "ffn": "",
        "vocab": "",
        "params_B": "",
    }
    model, chosen = row_model(read_one(tmp_path, **about, layers=""))
    assert (model.layers, model.experts, chosen["layers"]) == (16, 256, 16)
    model, chosen = row_model(read_one(tmp_path, **about, layers="12"))
    assert (model.layers, "layers" in chosen) == (12, False)


def test_what_follows_from_other_cells_is_told(tmp_path: Path) -> None:
    row = read_one(tmp_path, seq="", gpus="", gpu="", notes="on H100-80G-SXM; released", model="never heard of")
    case = read_case(row)
    assert {name: case.chosen[name] for name in ("seq", "gpus", "gpu")} == {
        "seq": 4096,
        "gpus": 96,
        "gpu": "H100-80G-SXM",
    }
    assert not read_one(tmp_path).filled


def test_a_size_in_the_name_is_not_passed_over(tmp_path: Path) -> None:
    about = {"layers": "", "hidden": "", "heads": "", "params_B": ""}
    assert catalogued(read_one(tmp_path, model="GPT3 175B", **about)) is not None
    small = read_one(tmp_path, model="GPT3 5B", **about)
    assert catalogued(small) is None
    assert 4.7e9 < row_model(small)[0].parameters < 5.4e9


def test_deepspeed_is_as_old_as_its_device(tmp_path: Path) -> None:
    about = {"software": "DeepSpeed ZeRO-3", "zero_stage": "", "tp": "1", "dp": "96"}
    programs = {}
    for gpu, tp in (("A100-80G-SXM", "1"), ("H100-80G-SXM", "1"), ("H100-80G-SXM", "2")):
        row = read_one(tmp_path, **about | {"gpu": gpu, "tp": tp, "dp": str(96 // int(tp))})
        assert row.zero == 3
        programs[gpu, tp] = read_case(row).software
    assert list(programs.values()) == ["megatron-2021", "fsdp", "megatron-core"]


def test_open_recomputation_may_have_been_of_modules(tmp_path: Path) -> None:
    about = {"model": "deepseek-v3", "gpu": "H800", "gpus": "512", "tp": "1", "pp": "16", "dp": "32", "ep": "32"}
    empty = dict.fromkeys(("params_B", "layers", "hidden", "heads", "kv_heads", "ffn", "gated", "vocab"), "")
    rest = {"recompute": "", "global_batch": "4096", "seq": "4096", "micro_batch": "1", "interleave": "1"}
    for software, tried in (("hai-llm", True), ("megatron-2021", False)):
        plans = read_case(read_one(tmp_path, **about, **empty, **rest, software=software)).plans
        assert {"none", "full"} <= {one.recompute for one in plans}
        assert any("mla_up_proj" in one.recompute_modules for one in plans) == tried


def test_fsdp_beside_other_parallelism_is_torchtitans(tmp_path: Path) -> None:
    about = {"software": "our own (FSDP)", "gpu": "H100-80G-SXM", "zero_stage": "3", "sequence_parallel": ""}
    alone, cut = (read_case(read_one(tmp_path, **about | {"tp": str(tp), "dp": str(96 // tp)})) for tp in (1, 2))
    assert (alone.software, cut.software) == ("fsdp", "torchtitan")
    assert cut.plans[0].sequence_parallel


@pytest.mark.parametrize(
    ("written", "program"),
    [("LLaMA-Factory", "fsdp"), ("HF transformers", "fsdp"), ("verl / FSDP2", "torchtitan"), ("AXLearn", "jax"),
     ("veScale", "torchtitan"), ("nanoGPT", "torch-compile")],
)  # fmt: skip
def test_programs_are_known_by_what_they_are_built_on(tmp_path: Path, written: str, program: str) -> None:
    row = read_one(tmp_path, software=written, gpu="H100-80G-SXM", tp="1", dp="96", precision="mp")
    found = read_case(row)
    assert found.software == program
    assert found.plans[0].precision == "bf16"


OPEN_ROWS = """source,software,model,gpu,gpus,tp,pp,dp,ep,interleave,micro_batch,global_batch,seq,precision
a,megatron-core,moonshotai/Kimi-K2-Instruct,H200,512,,,,,,,1024,4096,fp8
a,megatron-core,Somebody-80B-A3B,GB200,64,1,1,64,64,,1,1024,4096,bf16
a,megascale,GPT-530B,A100-80G,11200,8,35,40,,3,1,6144,2048,bf16
a,fsdp,mosaicml/mpt-7b,8xH100_80GB,8,,,8,,,4,128,2048,bf16
"""


def test_open_sizes_of_mixtures_and_odd_batches_are_predicted(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(OPEN_ROWS)
    found = validate(file)
    assert not found.skipped
    kimi, named, rounds, _ = found.rows
    assert kimi.predicted_fits and kimi.plan.ep > 1
    assert 60e9 < named.model_parameters < 100e9 and named.experts
    assert rounds.plan.interleave == 3  # 154 micro-batches, in rounds of 35


NO_SIZES = dict.fromkeys(("params_B", "layers", "hidden", "heads", "kv_heads", "ffn", "gated", "vocab"), "")


def test_experts_in_the_notes_are_read(tmp_path: Path) -> None:
    about = NO_SIZES | {"params_B": "52", "notes": "top-1, every other layer"}
    model, _ = row_model(read_one(tmp_path, **about, model="1.3B+MoE-128"))
    assert (model.experts, model.experts_per_token, model.moe_every) == (128, 1, 2)
    assert model.parameters == pytest.approx(52e9, rel=0.05)
    about = NO_SIZES | {"params_B": "395", "ep": "64"}
    assert row_model(read_one(tmp_path, **about, model="Switch-XXL"))[0].parameters == pytest.approx(395e9, rel=0.1)


def test_a_size_in_the_name_counts_where_its_column_is_empty(tmp_path: Path) -> None:
    assert row_model(read_one(tmp_path, **NO_SIZES, model="SmolLM-1.7B"))[0].parameters == pytest.approx(
        1.7e9, rel=0.02
    )


def test_fewer_layers_of_a_model_that_nobody_knows_are_read_from_its_name(tmp_path: Path) -> None:
    model, _ = row_model(read_one(tmp_path, **NO_SIZES, model="Somebody-7B-8L"))
    assert (model.layers, model.hidden) == (8, row_model(read_one(tmp_path, **NO_SIZES, model="Somebody-7B"))[0].hidden)


def test_an_encoder_has_its_own_shape(tmp_path: Path) -> None:
    model, _ = row_model(read_one(tmp_path, **NO_SIZES, model="bert-large"))
    assert (model.layers, model.hidden) == (24, 1024)


OPEN_CUTS = """source,software,model,gpu,gpus,tp,pp,dp,zero_stage,micro_batch,global_batch,seq,precision,recompute
a,hai-llm,DeepSeek LLM 67B,A100 PCIe 40GB,512,,,,,,4608,4096,bf16,
a,DeepSpeed,GLM-130B,DGX-A100 (8x40G),768,4,8,24,,,4224,2048,fp16,
a,metaseq,OPT-175B,A100 80GB,992,8,,,3,,2M tokens,2048,fp16,
"""


def test_an_open_plan_is_one_that_fits(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(OPEN_CUTS)
    found = validate(file)
    assert not found.skipped and all(row.predicted_fits for row in found.rows)
    stages, sharded, whole = (row.plan for row in found.rows)
    assert stages.pp == 16  # of 95 layers, with the embedding 96
    assert sharded.zero == 1
    assert whole.micro_batch > 1  # of 1024 sequences for 124 replicas


@pytest.mark.parametrize(
    ("tp", "micro_batch", "option"), [("8", "1", "+torch-softmax"), ("8", "2", ""), ("4", "1", "")]
)
def test_softmax_of_few_heads_is_torchs(tmp_path: Path, tp: str, micro_batch: str, option: str) -> None:
    about = {
        "software": "megatron-2021",
        "gpu": "A100-80G-SXM",
        "gpus": "8",
        "heads": "16",
        "hidden": "1024",
        "ffn": "",
    }
    about |= {"tp": tp, "dp": str(8 // int(tp)), "micro_batch": micro_batch, "global_batch": "64", "params_B": ""}
    assert read_case(read_one(tmp_path, **about)).software == f"megatron-2021{option}"


@pytest.mark.parametrize(("model", "software"), [("Llama3 8B LoRA", "nemo+lora"), ("Llama3 8B SFT", "nemo")])
def test_adapters_are_read_from_the_name(tmp_path: Path, model: str, software: str) -> None:
    case = read_case(read_one(tmp_path, **NO_SIZES, model=model, software="NeMo", zero_stage=""))
    assert case.software == software
    assert case.plans[0].zero == (0 if "lora" in software else 1)
