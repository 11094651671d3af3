"""A few bytes that ask for much: refused in a sentence, before the work begins, up to a limit that --limit raises."""

from __future__ import annotations

import gzip
import io
import json
import os
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from choreo.errors import UsageError
from choreo.files import read_bytes, work_limit
from tests.helpers.cli import fine, mistake
from tests.helpers.command import run_choreo

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
}
QWEN_MOE = LLAMA | {"model_type": "qwen2_moe", "num_experts": 8, "num_experts_per_tok": 2}
MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
DEEPSEEK = LLAMA | {
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 1408,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
LONG = "x" * 5_000_000


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (LLAMA | {"hidden_size": float("nan")}, "is not JSON: it has NaN, which is not a number there"),
        (LLAMA | {"vocab_size": float("inf")}, "is not JSON: it has Infinity, which is not a number there"),
        (LLAMA | {"hidden_size": 1e308}, "hidden_size must be at most 4294967296, not 1e+308"),
        (LLAMA | {"hidden_size": 10**400}, "hidden_size must be at most 4294967296, not 1000"),
        (QWEN_MOE | {"moe_intermediate_size": 0}, "moe_intermediate_size must be at least 1, not 0"),
        (DEEPSEEK | {"v_head_dim": 0}, "v_head_dim must be at least 1, not 0"),
        (DEEPSEEK | {"num_nextn_predict_layers": 10**9}, "mtp_layers must be at most layers, 32, not 1000000000"),
        (LLAMA | {"num_hidden_layers": 10**9}, "a model of 1000000000 layers is about 14.9 TiB of data"),
        (MIXTRAL | {"num_hidden_layers": 10**9}, "a model of 1000000000 layers is about 14.9 TiB of data"),
        (
            LLAMA | {"hidden_size": 2**31 - 1},
            "hidden 2147483647 is not divisible by heads 32; give head_dim, or 1 heads",
        ),
        (LLAMA | {"hidden_size": 2**32, "vocab_size": 2**32}, "parameters, more than can be counted here"),
        (LLAMA | {"model_type": LONG}, "model_type 'xxxxxxxxxx"),
        (LLAMA | {"hidden_size": LONG}, 'hidden_size must be a whole number, not "xxxxxxxxxx'),
        (LLAMA | {"hidden_size": ["x" * 1000] * 9}, "hidden_size must be a whole number, not a list of 9"),
    ],
)
def test_models(config: dict[str, object], sentence: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    told = mistake("plan", str(tmp_path / "config.json"))
    assert sentence in told
    assert len(told) < 1000


def test_a_number_in_scientific_notation_is_whole(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA).replace("4096", "4.096e3"))
    fine("plan", str(tmp_path / "config.json"))


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("ring.json", '{"name": "a", "topology": "ring(2000000, 1GB/s)"}', "has 2000000 devices and 4000000 links"),
        ("nodes.json", '{"name": "a", "devices": 4000000, "links": []}', "a graph of 4000000 nodes is about 1.49 GiB"),
        ("tree.toml", 'name = "a"\ntopology = "fat_tree(2x2x2x2, 1GB/s, spines=2000)"', "has 16 devices and"),
        ("dots.toml", ".".join("a" * 100_000) + " = 1", "has a key of more than 64 names joined by dots"),
        ("dots.toml", "[a" + ' . "a"' * 99_000 + "]", "has a key of more than 64 names joined by dots"),
        ("field.json", json.dumps({"name": "a", LONG: 1}), "a topology file has no field `xxxxxxxxxx"),
        ("name.json", json.dumps({"name": LONG, "topology": "ring(4)"}), "name must have at most 200 characters"),
        ("nan.json", '{"name": "a", "nodes": NaN}', "is not JSON: it has NaN"),
        ("half.json", '{"name": "a", "\\uD800": 1}', "is not JSON: it has half a character"),
    ],
)
def test_networks(name: str, text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    told = mistake("topology", "show", str(tmp_path / name))
    assert sentence in told
    assert len(told) < 1000


@pytest.mark.parametrize("text", ["fully_connected(8000)", "ring(20) x fully_connected(500)", "hgx-h100:250000"])
def test_networks_as_they_are_typed(text: str) -> None:
    assert "and the limit is 320 MiB; --limit" in mistake("topology", "show", text)


def test_a_network_that_can_be_shown_may_be_too_large_to_simulate() -> None:
    run = ("simulate", "all_reduce", "-a", "ring", "-p", "8", "-t", "ring(1000, 1GB/s)", "--size", "1KiB")
    fine(*run, "--limit", "512KiB")
    told = mistake(*run, "--limit", "400KiB")  # enough for the network
    assert "a simulation on ring(1000, 1GB/s), a network of 2000 links, is about 500 KiB of data" in told


@pytest.mark.parametrize(
    ("collective", "algorithm", "sentence"),
    [
        ("all_reduce", "direct", "all_reduce by direct over 1000 ranks, all that the network has, is about 572 MiB"),
        ("all_to_all", "direct", "all_to_all by direct over 1000 ranks, all that the network has, is about 572 MiB"),
        (
            "all_to_all",
            "pairwise",
            "all_to_all by pairwise over 1000 ranks, all that the network has, is about 572 MiB",
        ),
    ],
)
def test_ranks_that_only_the_file_of_a_network_asks_for(
    collective: str, algorithm: str, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "a.json").write_text('{"name": "a", "topology": "switch(1000, 1GB/s)"}')
    run = ("simulate", collective, "-a", algorithm, "-t", str(tmp_path / "a.json"), "--size", "1KiB")
    assert sentence in mistake(*run)
    fine(*run, "-p", "8", "--limit", "4MiB")
    fine("simulate", collective, "-t", str(tmp_path / "a.json"), "--size", "1KiB", "-p", "8")


def test_messages_of_ranks_that_only_a_file_asks_for_are_counted_as_they_come(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"name": "a", "topology": "switch(40, 1GB/s)"}')
    run = ("simulate", "all_reduce", "-a", "direct", "-t", str(tmp_path / "a.json"), "--size", "1KiB")
    assert "over 40 ranks, 3120 messages at once, is about 1.79 MiB" in mistake(*run, "--limit", "1MiB")
    fine(*run, "--limit", "2MiB")
    fine(*run, "--limit", "1MiB", "-p", "40")  # these the user asks for
    many = ("simulate", "all_to_all", "-t", str(tmp_path / "a.json"), "--size", "1KiB", "--limit", "700KiB")
    assert "1600 chunks at once, is about 937.5 KiB" in mistake(*many)


def test_the_limit_can_be_raised_and_lowered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.json").write_text('{"name": "a", "topology": "ring(1000, 1GB/s)"}')
    show = ("topology", "show", str(tmp_path / "a.json"))
    fine(*show)
    assert "--limit 512KiB or CHOREO_LIMIT=512KiB allows it" in mistake(*show, "--limit", "1KiB")
    assert work_limit() == 320 << 20
    monkeypatch.setenv("CHOREO_LIMIT", "1KiB")
    assert "and the limit is 1 KiB" in mistake(*show)
    fine(*show, "--limit", "512KiB")
    monkeypatch.setenv("CHOREO_LIMIT", "much")
    with pytest.raises(UsageError, match="CHOREO_LIMIT: 'much' is not a size"):
        work_limit()


def schedule(**fields: object) -> bytes:
    steps = [[{"src": 0, "dst": 1, "chunk": 0, "reduce": True}], [{"src": 1, "dst": 2, "chunk": 0, "reduce": True}]]
    return json.dumps({"collective": "all_reduce", "ranks": 8192, "steps": steps} | fields).encode()


def archive(rows: int, chunks: int, count: int = 1) -> bytes:
    """So many transfers from rank 0 to rank 1, all in one step, and all added."""
    zeros, ones = np.zeros(rows, np.uint8), np.ones(rows, np.bool_)
    columns = {"step": zeros, "src": zeros, "dst": zeros + 1, "chunk": zeros, "reduce": ones, "from_input": ones}
    header = json.dumps({"collective": "all_reduce", "ranks": 2, "chunks": chunks}).encode()
    columns |= {"count": np.full(rows, count, np.uint32), "header": np.frombuffer(header, np.uint8)}
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, values in columns.items():
            array = io.BytesIO()
            np.save(array, values)
            opened.writestr(f"{name}.npy", array.getvalue())
    return made.getvalue()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: archive(4_000_000, 1), "a table of 4000000 transfers is about 488 MiB of data"),
        (lambda: archive(1000, 1 << 28, (1 << 28) - 1), "of which 268435455000 are sent, is about"),
        (lambda: schedule(collective="all_to_all"), "the proof of all_to_all over 8192 members in 67108864 chunks"),
        (lambda: schedule(collective=LONG), "there is no collective 'xxxxxxxxxx"),
        (lambda: schedule(**{LONG: 1}), "the document has no field `xxxxxxxxxx"),
        (lambda: schedule()[:-1] + b', "x": 1' * 100_000 + b"}", "the document has no field `x`"),
    ],
)
def test_schedules(make: Callable[[], bytes], sentence: str, tmp_path: Path) -> None:
    content = make()
    file = tmp_path / ("s.npz" if content[:2] == b"PK" else "s.json")
    file.write_bytes(content)
    told = mistake("prove", "--schedule", str(file))
    assert sentence in told
    assert len(told) < 1500


def test_a_wrong_sum_of_many_ranks_is_traced_at_once(tmp_path: Path) -> None:
    """Following every one of 8,192 contributions by itself took more than a minute."""
    (tmp_path / "s.json").write_bytes(schedule())
    ran = run_choreo("prove", "--schedule", str(tmp_path / "s.json"))
    assert ran.code == 1
    assert "step 1: the contribution of rank 1 to chunk 0 gets as far as rank 2 and no further" in " ".join(
        ran.out.split()
    )


def test_many_transfers_into_one_place_are_added_at_once(tmp_path: Path) -> None:
    (tmp_path / "s.npz").write_bytes(archive(200_000, 1))
    ran = run_choreo("prove", "--schedule", str(tmp_path / "s.npz"))
    assert ran.code == 1
    assert "not traced how" in " ".join(ran.out.split())


def test_nccl_takes_a_processor_of_a_negative_model(tmp_path: Path) -> None:
    xml = (Path(__file__).parent.parent / "data" / "nccl-dgx-1.xml").read_text()
    (tmp_path / "a.xml").write_text(xml.replace('modelid="', 'modelid="-'))
    assert "8 devices" in fine("topology", "show", str(tmp_path / "a.xml")).out


def test_a_row_of_a_table_that_asks_for_too_much_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("gpu,gpus,seq,layers,hidden\nH100-80G-SXM,8,2048,1000000000,64\n")
    ran = run_choreo("plan", "--validate", str(tmp_path / "a.csv"), "--json")
    assert ran.code == 0
    assert "a model of 1000000000 layers is about 14.9 TiB of data" in ran.out


def test_shared_experts_with_a_gate_are_planned() -> None:
    """The gate of Qwen2-MoE's shared experts had the name of a matrix of theirs."""
    model = Path(__file__).parent.parent / "data" / "models" / "qwen2-moe.json"
    job = ("--cluster", "hgx-h100", "--gpus", "8", "--global-batch", "8", "--seq", "512", "--tp", "1", "--pp", "1")
    assert "plans" in fine("plan", str(model), *job, "--json").out


@pytest.mark.parametrize(
    ("name", "text", "command"),
    [
        ("a.json", '{"settings": 3}', ("simulate", "--compare", "FILE")),
        ("a.json", "[" * 100_000, ("simulate", "--compare", "FILE")),
        ("a.toml", "memory_bytes = 0x" + "f" * 5000, ("plan", "llama3-8b", "--device", "FILE")),
        ("a.toml", 'verb = "price"\n[axes]\nranks = 0b' + "1" * 20_000, ("sweep", "FILE")),
    ],
)
def test_others(name: str, text: str, command: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(text)
    mistake(*(str(file) if one == "FILE" else one for one in command), str(file))


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(1 << 40)
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match="is larger than 16 MiB, the most a plan can be"):
            read_bytes(tmp_path / "a.json", 16 << 20, "a plan")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_pipe_can_be_read_once(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.write(write, (Path(__file__).parent.parent / "data" / "fuzz" / "nccl-output" / "all_reduce.txt").read_bytes())
    os.close(write)
    told = mistake("record", "import", f"/dev/fd/{read}", "--store", str(tmp_path))
    os.close(read)
    assert "it is a pipe that nobody writes to, or that was read before; write a file first" in told


def test_a_device_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHOREO_LIMIT", "2MiB")
    for command in (("trace", "info"), ("prove", "--schedule")):
        assert "/dev/zero is no file, and gives more than 2 MiB; CHOREO_LIMIT allows more" in mistake(
            *command, "/dev/zero"
        )


def test_a_trace_that_unpacks_out_of_all_proportion(tmp_path: Path) -> None:
    """70 KB of gzip became 48 MB of JSON, and more than a gigabyte of objects."""
    bomb, ordinary = tmp_path / "bomb.json.gz", tmp_path / "ordinary.json.gz"
    bomb.write_bytes(gzip.compress(b'{"traceEvents": [' + b'{"a": 1},' * 6_000_000 + b"{}]}"))
    told = mistake("trace", "info", str(bomb))
    assert "bomb.json.gz once unpacked is about" in told and "--limit 2GiB" in told
    event = b'{"ph": "X", "name": "gemm", "ts": %d, "dur": 7, "cat": "kernel"}'
    ordinary.write_bytes(
        gzip.compress(b'{"traceEvents": [' + b", ".join(event % (10 * k) for k in range(5000)) + b"]}")
    )
    assert "5000 compute" in fine("trace", "info", str(ordinary), "--limit", "1MiB").out
