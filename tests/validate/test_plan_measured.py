"""Reading published runs: what a row says, what is chosen for it, and what is refused, each in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from choreo.errors import UsageError
from choreo.plan.network.nccl import NcclModel
from choreo.validate.plan.case import read_case
from choreo.validate.plan.measured import COLUMNS, DATA, MeasuredRow, read_measured
from choreo.validate.plan.row_model import catalogued, row_model
from choreo.validate.plan.validate import cluster_of, read_cases, validate
from choreo.validate.rows import Skipped

GOOD = {
    "source": "a paper",
    "software": "megatron-core",
    "model": "GPT-7B",
    "params_B": "7.1",
    "layers": "30",
    "hidden": "4096",
    "heads": "32",
    "gated": "0",
    "seq": "4096",
    "vocab": "131072",
    "gpu": "H100-80G-SXM",
    "gpus": "96",
    "tp": "2",
    "pp": "1",
    "dp": "48",
    "zero_stage": "1",
    "recompute": "none",
    "global_batch": "192",
    "precision": "bf16",
    "step_time_s": "0.8",
    "mem_GB": "52.5",
    "mem_kind": "peak reserved",
}


def write(path: Path, *rows: dict[str, str], columns: tuple[str, ...] = COLUMNS) -> Path:
    file = path / "runs.csv"
    lines = [",".join(columns)]
    lines += [",".join(f'"{row.get(name, "")}"' for name in columns) for row in rows]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def read_one(path: Path, **changes: str) -> MeasuredRow:
    rows, skipped = read_measured(write(path, GOOD | changes))
    assert not skipped
    return rows[0]


def refused(path: Path, **changes: str) -> str:
    rows, skipped = read_measured(write(path, GOOD | changes, GOOD))
    assert [row.index for row in rows] == [1]
    assert [one.row for one in skipped] == [0]
    return skipped[0].reason


@pytest.mark.parametrize(("name", "count"), [("training_measured.csv", 271), ("training_measured_sweep.csv", 1120)])
def test_the_packaged_files_are_read_whole(name: str, count: int) -> None:
    rows, skipped = read_measured(DATA / name)
    assert skipped == []
    assert [row.index for row in rows] == list(range(count))


def test_a_row_keeps_what_was_published_and_leaves_the_rest_open(tmp_path: Path) -> None:
    row = read_one(tmp_path)
    assert (row.layers, row.hidden, row.gpus, row.zero, row.gated) == (30, 4096, 96, 1, False)
    assert (row.params, row.mem_bytes, row.step_time_s) == (7.1e9, 52.5e9, 0.8)
    assert (row.micro_batch, row.interleave, row.cp, row.kv_heads, row.sequence_parallel) == (None,) * 5


def test_recompute_none_is_a_choice_and_empty_is_not(tmp_path: Path) -> None:
    assert read_one(tmp_path, recompute="none").recompute == "none"
    assert read_one(tmp_path, recompute="").recompute is None


@pytest.mark.parametrize(
    ("notes", "status"), [("status=Success; x", True), ("status=OOM; y", False), ("no status", None), ("", None)]
)
def test_status_is_read_from_the_notes(tmp_path: Path, notes: str, status: bool | None) -> None:
    assert read_one(tmp_path, notes=notes).status is status


def test_what_notes_say_of_the_program(tmp_path: Path) -> None:
    assert read_one(tmp_path, notes="pipeline before the fix of its schedule").blocking_pipeline
    assert not read_one(tmp_path, notes="pipeline after the fix of its schedule").blocking_pipeline
    assert read_one(tmp_path, notes="FSDP2+compile").compiled
    assert read_one(tmp_path, notes="grad accum 3, act CPU offload False").accumulation == 3
    assert read_one(tmp_path, notes="status=OOM; accumulation=8; x").accumulation == 8


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("gpus", "many"), ("gpus", "0"), ("tp", "-2"), ("pp", "1.5"), ("gpu", ""), ("step_time_s", "fast"),
        ("step_time_s", "-1"), ("step_time_s", "inf"), ("mem_GB", "0"), ("zero_stage", "7"), ("recompute", "some"),
        ("gated", "perhaps"), ("layers", "1e99"),
    ],
)  # fmt: skip
def test_a_broken_cell_is_a_sentence_with_its_column_and_value(tmp_path: Path, column: str, value: str) -> None:
    reason = refused(tmp_path, **{column: value})
    assert column in reason
    assert not value or value in reason
    assert reason.startswith("line 2: ")


def test_numbers_as_people_write_them(tmp_path: Path) -> None:
    row = read_one(tmp_path, gpus="2,048", layers="30.0", global_batch="1_024", cp="NA", ep="n/a")
    assert (row.gpus, row.layers, row.global_batch, row.cp, row.ep) == (2048, 30, 1024, None, None)


def test_more_cells_than_columns_is_a_broken_row(tmp_path: Path) -> None:
    file = write(tmp_path, GOOD)
    file.write_text(file.read_text() + "x," * 60 + "\n")
    rows, skipped = read_measured(file)
    assert len(rows) == 1
    assert skipped == [Skipped(1, skipped[0].reason)]
    assert "quote cells" in skipped[0].reason


@pytest.mark.parametrize("missing", ["gpu", "gpus", "seq"])
def test_a_missing_column_that_nothing_can_replace_is_an_error(tmp_path: Path, missing: str) -> None:
    columns = tuple(name for name in COLUMNS if name != missing)
    with pytest.raises(UsageError, match=f"no column {missing} among"):
        read_measured(write(tmp_path, GOOD, columns=columns))


def test_columns_that_may_be_missing_are_open(tmp_path: Path) -> None:
    columns = ("model", "layers", "hidden", "gpu", "gpus", "seq")
    rows, skipped = read_measured(write(tmp_path, GOOD, columns=columns))
    assert not skipped
    assert (rows[0].software, rows[0].step_time_s, rows[0].tp) == ("default", None, None)


def test_a_file_that_is_not_there_or_empty(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_measured(tmp_path / "none.csv")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(UsageError, match="holds no rows"):
        read_measured(tmp_path / "empty.csv")


@given(st.binary(max_size=300))
def test_no_bytes_are_a_crash(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "bytes.csv"
    file.write_bytes(",".join(COLUMNS).encode() + b"\n" + content)
    try:
        read_measured(file)
    except UsageError as error:
        assert str(error)


def test_a_quote_that_nothing_closes_costs_one_row(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, GOOD, GOOD)
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[2] = '"a paper, megatron-core, GPT-7B'
    path.write_text("\n".join(lines), encoding="utf-8")
    rows, skipped = read_measured(path)
    assert [row.index for row in rows] == [0, 2]
    assert [(one.row, one.reason) for one in skipped] == [
        (1, "line 3: it opens a quote that nothing closes; close it, or double quotes inside a cell")
    ]


@pytest.mark.parametrize(("delimiter", "encoding"), [(";", "utf-8"), ("\t", "utf-16"), (",", "latin-1")])
def test_other_ways_to_save_a_table(tmp_path: Path, delimiter: str, encoding: str) -> None:
    path = write(tmp_path, {**GOOD, "notes": "", "source": "Müller"})
    text = path.read_text(encoding="utf-8").replace(",", delimiter)
    path.write_bytes(text.encode(encoding))
    rows, skipped = read_measured(path)
    assert len(rows) == 1 and skipped == []


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


def test_cells_as_other_tables_write_them(tmp_path: Path) -> None:
    about = {
        "seq": "4096",
        "global_batch": "4M tokens",
        "step_time_s": "3,25",
        "mem_GB": "71.2 / 80",
        "kv_heads": "MHA",
    }
    row = read_one(tmp_path, **about, recompute="AC", zero_stage="full shard", params_B="30B-A3B", tflops_per_gpu="40%")
    assert (row.global_batch, row.step_time_s, row.mem_bytes, row.kv_heads) == (1024, 3.25, 71.2e9, None)
    assert (row.recompute, row.zero, row.params, row.tflops_per_gpu) == ("full", 3, 30e9, None)


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
    ("column", "written", "read"),
    [
        ("recompute", "uniform", "full"),
        ("recompute", "selective (core_attn, mlp)", "selective"),
        ("recompute", "offload", "none"),
        ("zero_stage", "ZeRO-2", 2),
        ("zero_stage", "os+g", 2),
        ("zero_stage", "FSDP", 3),
        ("seq", "8K", 8192),
        ("zero_stage", "HYBRID_SHARD", 3),
        ("zero_stage", "ddp", 0),
        ("recompute", "activation checkpointing", "full"),
        ("recompute", "off", "none"),
        ("recompute", "moe_act, layernorm", "selective"),
        ("gpus", "12x8", 96),
        ("gpus", "96 GPUs", 96),
        ("pp", "0", 1),
        ("gated", "SwiGLU", True),
        ("step_time_s", "~850 ms", 0.85),
    ],
)
def test_cells_are_read_as_people_write_them(tmp_path: Path, column: str, written: str, read: object) -> None:
    assert getattr(read_one(tmp_path, **{column: written}), column.removesuffix("_stage")) == read


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


GPU_CELLS = {
    "A100-SXM (80G; 8/node, 4x200G IB)": 100, "H100-80G 4x200G": 100, "A100 80GB (8/node, 4x OPA 100G)": 50,
    "A100 (8/node, 2xHDR)": 50, "H100 (8/node, 8xNDR400)": 400, "H100 (8/node, 8x CX7)": 400,
    "A100 (8/node, 100GbE)": 12.5, "H100 (25 Gb Ethernet)": 3.125, "A100 (800 Gbps)": 100, "A100 (1 NIC of 200G)": 25,
    "H100 (4 NICs x 400 Gb/s)": 200, "H100, 200 Gb/s per GPU": 200, "H100 SXM (NVLink 900 GB/s)": 400,
    "H100-80G-SXM (HBM3 3350 GB/s)": 400, "8xH100": 400, "H100 (RoCEv2 4x100)": 50, "H100 (EFAv2, 3200 Gbps)": 400,
    "H100 (single 100G NIC)": 12.5, "H100 (TCPXO)": 200, "A100 (EFA)": 50, "A100 (EFA 400)": 50,
    "H100 w/ RoCE 8x200": 200, "DGX-A100 (8x40G)": 200, "H100 (A3 High, TCPX)": 100,
}  # fmt: skip


@pytest.mark.parametrize(("gpu", "gbit"), GPU_CELLS.items())
def test_the_network_in_the_gpu_column_is_read(tmp_path: Path, gpu: str, gbit: float) -> None:
    case = read_case(read_one(tmp_path, gpu=gpu))
    place = cluster_of(case)
    assert isinstance(place.network, NcclModel)
    assert place.network.bandwidth_bytes_per_s(2, place.node_gpus) * 8 / 1e9 == pytest.approx(gbit, rel=1e-6)


@pytest.mark.parametrize(
    ("column", "cell", "field", "value"),
    [
        ("global_batch", "4,194,304 tokens", "global_batch", 1024),
        ("global_batch", "256->1536", "global_batch", 1536),
        ("recompute", "no AC", "recompute", "none"),
        ("recompute", "none (offload 4 layers)", "recompute", "none"),
        ("recompute", "2/8 layers", "recompute_layers", 2),
        ("recompute", "AC every 2 layers", "recompute_layers", 0),
        ("recompute", "block 4", "recompute_layers", 4),
        ("vocab", "32k", "vocab", 32000),
        ("gpus", "96 GPUs (12 nodes)", "gpus", 96),
        ("gpus", "96xH100", "gpus", 96),
        ("gated", "squared ReLU", "gated", False),
        ("gated", "yes (SwiGLU)", "gated", True),
        ("zero_stage", "3 (offload)", "zero", 3),
        ("mfu", "45-50 %", "step_time_s", 0.8),
        ("step_time_s", "20-22 s", "step_time_s", 21.0),
        ("step_time_s", "1m 12s", "step_time_s", 72.0),
        ("step_time_s", "12.3*", "step_time_s", 12.3),
        ("step_time_s", "<12", "step_time_s", None),
        ("mem_GB", ">80", "mem_bytes", None),
        ("params_B", "70 billion", "params", 70e9),
        ("params_B", "7,070,000,000", "params", 7.07e9),
        ("recompute", "4/20", "recompute_layers", 4),
        ("recompute", "block-4", "recompute_layers", 4),
        ("recompute", "Y", "recompute", "full"),
        ("recompute", "0%", "recompute", "none"),
        ("zero_stage", "Gemini", "zero", 3),
        ("zero_stage", "fully_shard", "zero", 3),
        ("zero_stage", "yes", "zero", None),
        ("gated", "xIELU", "gated", False),
        ("gpus", "96x", "gpus", 96),
        ("gpus", "3x4x8", "gpus", 96),
        ("gpus", "96 GPUs / 12 nodes", "gpus", 96),
        ("global_batch", "GBS=192", "global_batch", 192),
        ("global_batch", "4.2M tokens", "global_batch", 1024),
        ("global_batch", "524288", "global_batch", 128),
        ("global_batch", "96-192", "global_batch", 192),
        ("seq", "2048 -> 8192", "seq", 8192),
        ("heads", "32Q/8KV", "heads", 32),
        ("layers", "L30", "layers", 30),
        ("interleave", "off", "interleave", 1),
        ("interleave", "5 chunks", "interleave", 5),
        ("sequence_parallel", "4", "sequence_parallel", True),
    ],
)
def test_cells_that_were_misread(tmp_path: Path, column: str, cell: str, field: str, value: object) -> None:
    assert getattr(read_one(tmp_path, **{column: cell}), field) == value


def test_nodes_are_no_gpus(tmp_path: Path) -> None:
    assert "gpus is '16 nodes'" in refused(tmp_path, gpus="16 nodes")


@pytest.mark.parametrize("column", ["step_time_s", "mem_GB"])
def test_out_of_memory_in_place_of_a_figure_is_a_status(tmp_path: Path, column: str) -> None:
    row = read_one(tmp_path, **{column: "OOM"})
    assert row.status is False and getattr(row, {"mem_GB": "mem_bytes"}.get(column, column)) is None


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


@pytest.mark.parametrize(("gpu", "node"), [("H100 (4-GPU nodes, 2x NDR)", 4), ("4xH100/node", 4), ("H100 (8/node)", 8)])
def test_the_gpus_of_a_node_are_read(tmp_path: Path, gpu: str, node: int) -> None:
    assert cluster_of(read_case(read_one(tmp_path, gpu=gpu))).node_gpus == node


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
