"""Reading published runs: what the cells of a row say, and what is refused, each in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from choreo.errors import UsageError
from choreo.plan.network.nccl import NcclModel
from choreo.validate.plan.case import read_case
from choreo.validate.plan.measured import COLUMNS, DATA, read_measured
from choreo.validate.plan.validate import cluster_of
from choreo.validate.rows import Skipped
from tests.helpers.measured_rows import GOOD, read_one, refused, write


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


@pytest.mark.parametrize(("gpu", "node"), [("H100 (4-GPU nodes, 2x NDR)", 4), ("4xH100/node", 4), ("H100 (8/node)", 8)])
def test_the_gpus_of_a_node_are_read(tmp_path: Path, gpu: str, node: int) -> None:
    assert cluster_of(read_case(read_one(tmp_path, gpu=gpu))).node_gpus == node
