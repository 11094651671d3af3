"""`choreo plan`: what it prints, its JSON, and that every mistake is one sentence with the nearest legal choice."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TypedDict

import pytest

from choreo.units import format_time
from tests.helpers.command import run_choreo

JOB = ("--cluster", "hgx-h100", "--gpus", "16", "--global-batch", "32", "--seq", "4096")
FIXED = (
    "--dp", "2", "--tp", "4", "--pp", "2", "--cp", "1", "--ep", "1", "--zero", "1", "--micro-batch", "1",
    "--interleave", "1", "--schedule", "1f1b", "--recompute", "none", "--sequence-parallel", "--overlap",
)  # fmt: skip


class Planned(TypedDict):
    """One plan of the JSON document."""

    plan: dict[str, object]
    step_time_s: float
    step_time_range_s: list[float]
    tokens_per_s_per_gpu: float
    mfu: float
    hfu: float
    memory_bytes: float
    memory_range_bytes: list[float]
    memory: dict[str, float]
    fits: bool
    fits_chance: float
    exposed_comm_s: dict[str, float]
    bubble_s: float
    parts: dict[str, float]
    kernels: dict[str, float]
    bottleneck: str


class Planning(TypedDict):
    """The JSON document."""

    model: str
    cluster: str
    network_model: str
    gpus: int
    device: str
    software: str
    global_batch: int
    seq: int
    plans: list[Planned]
    equal: int
    considered: int
    ruled_out: dict[str, int]
    seconds: float


def planned(*arguments: str) -> Planning:
    ran = run_choreo("plan", *arguments, "--json")
    assert ran.code == 0, ran.err
    found: Planning = json.loads(ran.out)
    return found


def test_the_json_has_these_keys_and_no_others() -> None:
    found = planned("llama3-8b", *JOB)
    assert list(found) == list(Planning.__annotations__)
    assert (found["model"], found["cluster"], found["gpus"]) == ("llama3-8b", "hgx-h100", 16)
    assert found["considered"] > 10_000
    assert all(count > 0 for count in found["ruled_out"].values())
    times = [one["step_time_s"] for one in found["plans"]]
    assert times == sorted(times)
    for one in found["plans"]:
        assert list(one) == list(Planned.__annotations__)
        assert 0 < one["mfu"] <= one["hfu"] < 1
        assert sum(one["parts"].values()) == pytest.approx(one["step_time_s"], rel=1e-6)
        assert sum(one["memory"].values()) == pytest.approx(one["memory_bytes"], rel=1e-6)
        assert one["tokens_per_s_per_gpu"] == pytest.approx(32 * 4096 / one["step_time_s"] / 16)


def test_all_fixed_evaluates_one_plan() -> None:
    found = planned("llama3-8b", *JOB, *FIXED)
    assert found["considered"] == 1
    plan = found["plans"][0]["plan"]
    assert {name: plan[name] for name in ("dp", "tp", "pp", "zero", "schedule", "sequence_parallel")} == {
        "dp": 2, "tp": 4, "pp": 2, "zero": 1, "schedule": "1f1b", "sequence_parallel": True,
    }  # fmt: skip


def test_what_is_printed() -> None:
    printed = run_choreo("plan", "llama3-8b", *JOB).out
    assert printed.startswith("llama3-8b (8.03 B parameters) on 16 H100-80G-SXM of hgx-h100: global batch 32 of 4096")
    for words in ("plans considered in", "does not fit in memory", "--tensor-model-parallel-size", "limited by", "MFU",
                  "--parallelism.tensor_parallel_degree", "GPU-hours"):  # fmt: skip
        assert words in printed
    fixed = ("--tp", "2", "--pp", "2", "--dp", "4", "--zero", "1", "--micro-batch", "1", "--schedule", "1f1b")
    all_fit = run_choreo("plan", "llama3-8b", *JOB, *fixed, "--recompute", "none").out
    assert re.search(r"^8 plans considered in \S+ s, all can be run and fit$", all_fit, re.MULTILINE)


def test_a_model_by_numbers_is_the_model_by_name() -> None:
    numbers = ("--layers", "32", "--hidden", "4096", "--heads", "32", "--kv-heads", "8", "--ffn", "14336", "--gated",
               "--vocab", "128256")  # fmt: skip
    by_numbers, by_name = planned(*numbers, *JOB, *FIXED), planned("llama3-8b", *JOB, *FIXED)
    assert by_numbers["plans"][0]["step_time_s"] == pytest.approx(by_name["plans"][0]["step_time_s"])


def test_a_config_json_is_read(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32, "hidden_size": 4096,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
        "tie_word_embeddings": False,
    }  # fmt: skip
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    found = planned(str(file), *JOB, *FIXED)
    by_name = planned("llama3-8b", *JOB, *FIXED)
    assert found["plans"][0]["step_time_s"] == pytest.approx(by_name["plans"][0]["step_time_s"])


def test_all_devices_of_a_cluster_are_taken() -> None:
    job = ("--global-batch", "64", "--seq", "4096", *FIXED)
    found = planned("llama3-8b", "--cluster", "dgx-h100:2", *job)
    assert found["gpus"] == 16
    assert found["network_model"] == "nccl"
    asked = planned("llama3-8b", "--cluster", "hgx-h100", "--gpus", "16", *job)
    assert found["plans"] == asked["plans"]


def test_a_varied_value_that_cannot_be_run_is_a_row() -> None:
    words = ("plan", "llama3-8b", *JOB, "--vary", "tp=1,3,8")
    ran = run_choreo(*words)
    assert ran.code == 0, ran.err
    told = " ".join(ran.out.split())
    assert "3 cannot be run: tp 3 does not divide 16 GPUs; tp 2 would 8" in told
    runs = json.loads(run_choreo(*words, "--json").out)["runs"]
    assert [run["value"] for run in runs] == ["1", "3", "8"]
    assert runs[1]["error"] == "tp 3 does not divide 16 GPUs; tp 2 would"
    assert runs[2]["plans"][0]["plan"]["tp"] == 8


def test_a_varied_plan_that_does_not_fit_says_so() -> None:
    fixed = ["--cluster", "hgx-h100", "--gpus", "8", "--global-batch", "8", "--seq", "4096", "--tp", "8", "--pp", "1"]
    told = " ".join(run_choreo("plan", "llama3-70b", *fixed, "--vary", "cp=1").out.split())
    assert "does not fit in 84.9 GB" in told


@pytest.mark.parametrize(
    ("vary", "title"),
    [
        (
            "gpus=8,16",
            "llama3-8b (8.03 B parameters) on H100-80G-SXM of hgx-h100: global batch 32 of 4096 tokens, bf16",
        ),
        ("seq=2048,4096", "on 16 H100-80G-SXM of hgx-h100: global batch 32, bf16"),
        ("global-batch=16,32", ": sequences of 4096 tokens, bf16"),
        (
            "cluster=hgx-h100,dgx-a100",
            "on 16 GPUs: global batch 32 of 4096 tokens, bf16, megatron-core; cluster varied",
        ),
    ],
)
def test_the_title_of_a_table_leaves_out_what_is_varied(vary: str, title: str) -> None:
    ran = run_choreo("plan", "llama3-8b", *JOB, "--tp", "8", "--pp", "1", "--cp", "1", "--vary", vary)
    assert title in ran.out.splitlines()[0]
    assert ran.out.splitlines()[0].endswith("varied")


def test_a_batch_for_each_gpu_stays_so_in_the_title() -> None:
    job = ("plan", "resnet-50", "--cluster", "dgx-1", "--gpus", "1", "--global-batch", "256/gpu", "--vary", "gpus=1,8")
    assert "on V100-16G-SXM2 of dgx-1: global batch 256/gpu, fp16" in run_choreo(*job).out


def test_the_sequence_a_model_was_made_for() -> None:
    job = ("plan", "llama2-7b", "--cluster", "hgx-h100", "--gpus", "8", "--global-batch", "8", "--tp", "8")
    assert "--seq 4096" in run_choreo(*job).err
    assert run_choreo(*job, "--seq", "4096").err == ""
    note = "note: llama2-7b was made for sequences of up to 4096 tokens, not 8192\n"
    assert run_choreo(*job, "--seq", "8192").err == note
    assert run_choreo(*job, "--vary", "seq=4096,8192").err == note


@pytest.mark.parametrize(
    ("cluster", "link"),
    [
        ("switch(16, 50GB/s, 1us)", "the network"),
        ("switch(16, 50GB/s, 1us, medium=nvlink)", "NVLink"),
        ("switch(8, 50GB/s, 1us) x switch(2, 5GB/s, 1us)", "the inner links"),
        ("switch(8, 50GB/s, 1us, medium=pcie) x switch(2, 5GB/s, 1us)", "PCIe"),
    ],
)
def test_a_medium_is_named_where_the_topology_says_it(cluster: str, link: str) -> None:
    job = ("--cluster", cluster, "--device", "H100", "--global-batch", "64", "--seq", "4096", *FIXED, "--traffic")
    ran = run_choreo("plan", "llama3-8b", *job, "--json")
    assert ran.code == 0, ran.err
    assert {row["link"] for row in json.loads(ran.out)["traffic"] if row["axes"] == "tp"} == {link}


def test_megatron_is_megatron_core() -> None:
    ran = run_choreo("plan", "llama3-8b", *JOB, *FIXED, "--software", "megatron")
    assert ran.code == 0
    assert "the software 'megatron' is planned with the figures of 'megatron-core'" in ran.err
    known = run_choreo("plan", "llama3-8b", *JOB, *FIXED, "--software", "megatron-core")
    assert ran.out == known.out


def test_unknown_software_is_planned_with_a_warning() -> None:
    ran = run_choreo("plan", "llama3-8b", *JOB, *FIXED, "--software", "megatron-cor")
    assert ran.code == 0
    assert "nothing is known of the software 'megatron-cor'" in ran.err


WRONG: list[tuple[tuple[str, ...], str]] = [
    (("llama3-8b", *JOB, "--tp", "5"), "tp 5 does not divide 16 GPUs; tp 4 would"),
    (("llama3-8b", *JOB, "--dp", "4", "--tp", "4", "--pp", "2", "--cp", "1"),
     "dp 4 × tp 4 × pp 2 × cp 1 is 32 devices, not 16; dp 2 would"),
    (("gpt2-1.5b", *JOB, "--tp", "2"), "heads 25 of gpt2-1.5b are not divisible by tp 2; use tp 1 or 5"),
    (("llama3-8b", "--cluster", "hgx-h100", "--gpus", "40", "--global-batch", "40", "--seq", "4096", "--pp", "5",
      "--split", "even"),
     "layers 32 of llama3-8b are not divisible by pp 5; use pp 4 or 8"),
    (("llama3-8b", *JOB, "--dp", "16", "--micro-batch", "3"),
     "global batch 32 is not divisible by dp 16 × micro-batch 3 = 48; use micro-batch 2"),
    (("llama3-8c", *JOB), "there is no model 'llama3-8c'; did you mean 'llama3-8b'"),
    (("llama3-8b", "--cluster", "hgx-h101", "--gpus", "16", "--global-batch", "32", "--seq", "4096"),
     "there is no machine 'hgx-h101'; did you mean 'hgx-h100'"),
    (("llama3-8b", *JOB, "--device", "H101"), "H100"),
    (("llama3-8b", *JOB, "--precision", "fp9"), "precision must be one of fp32, tf32, fp16, bf16, fp8, fp4, not 'fp9'"),
    (("llama3-8b", *JOB, "--schedule", "gpip"), "schedule must be one of gpipe, 1f1b, interleaved, zero-bubble"),
    (("llama3-8b", *JOB, "--zero", "4"), "zero must be 0, 1, 2 or 3, not 4"),
    (("llama3-8b", "--cluster", "hgx-h100", "--global-batch", "32", "--seq", "4096"),
     "a job also needs --gpus, as in --gpus 64; hgx-h100:8 would say how many GPUs there are"),
    (("llama3-8b", "--cluster", "hgx-h100:4", "--gpus", "64", "--global-batch", "64", "--seq", "4096"),
     "hgx-h100:4 has 32 devices, not 64; take 32 of them or fewer, or hgx-h100:8"),
    (("llama3-8b", "--cluster", "switch(64, 50GB/s, 1us)", "--global-batch", "64", "--seq", "4096"),
     "switch(64, 50GB/s, 1us) does not say what its devices are; name one: device (--device) H100-80G-SXM"),
    (("llama3-8b", *JOB, "--vary", "tp=3,5"), "tp 3 does not divide 16 GPUs; tp 2 would"),
    (("llama3-8b", "--cluster", "hgx-h100", "--gpus", "16", "--global-batch", "32"),
     "a job also needs --seq, as in --seq 8192"),
    (("llama3-8b", "--cluster", "hgx-h100"),
     "a job also needs --gpus, --global-batch, --seq, as in --gpus 64 --global-batch 256 --seq 8192; hgx"),
    (("llama3-8b", "--gpus", "8"),
     "a job also needs --cluster, --global-batch, --seq, as in --cluster hgx-h100 --global-batch 256 --seq 8192"),
    (("llama3-8b", "--cluster", "hgx-h100", "--gpus", "0", "--global-batch", "32", "--seq", "4096"),
     "gpus must be a whole number of at least 1, not 0"),
    ((*JOB,), "say which model: MODEL, like llama3-70b"),
    (("--layers", "4", *JOB), "a model by numbers needs --layers, --hidden and --heads; give --hidden, --heads too"),
    (("llama3-8b", "--layers", "4", *JOB), "llama3-8b already says what the model is; leave out --layers"),
    (("llama3-8b", *JOB, "--vary", "color=1"), "there is no quantity 'color'"),
    (("llama3-8b", *JOB, "--vary", "flops"), "--vary 'flops' is not understood"),
    (("llama3-8b", *JOB, "--vary", "flops=0"), "a factor must be more than zero, not 0"),
    (("resnet-50", "--cluster", "dgx-1", "--gpus", "8", "--global-batch", "64", "--tp", "2"),
     "resnet-50 is cut over dp alone, not tp 2"),
    (("resnet-50", "--cluster", "dgx-1", "--gpus", "8", "--global-batch", "60"),
     "global batch 60 is not divisible by 8 GPUs; use a global batch of 64"),
    (("llama3-8b", "--leave-one-out", *JOB), "--leave-one-out goes with --validate"),
    (("--parameter-server", "50GB/s", "--gpus", "4"), "--parameter-server needs --steps-per-s"),
    (("--validate", "x.csv", "--gpus", "4"), "--validate does not go with --gpus"),
    (("nowhere/config.json", *JOB), "nowhere/config.json"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "sentence"), WRONG, ids=[sentence[:50] for _, sentence in WRONG])
def test_a_mistake_is_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    ran = run_choreo("plan", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("choreo: ")
    assert ran.err.count("\n") == 1
    assert sentence in ran.err


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"model_type": "llama", "hidden_size": 64}, "num_attention_heads is missing"),
        ({"model_type": "mamba", "hidden_size": 64}, "mamba"),
        ([1, 2], "config.json"),
    ],
)
def test_a_broken_config_is_one_sentence(tmp_path: Path, config: object, sentence: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    ran = run_choreo("plan", str(file), *JOB)
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.err
    assert ran.err.count("\n") == 1


def test_a_timeline_is_written(tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    assert run_choreo("plan", "llama3-8b", *JOB, *FIXED, "--trace", str(file)).code == 0
    trace = json.loads(file.read_text())
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len([one for one in slices if one["cat"] == "forward"]) == 2 * 16  # stages times micro-batches
    assert {one["name"] for one in slices if one["cat"] == "after"} >= {"optimizer"}
    end = max(one["ts"] + one["dur"] for one in slices) / 1e6
    assert end == pytest.approx(trace["otherData"]["step_time_s"], rel=1e-3)
    by_track: dict[int, float] = {}
    for one in sorted(slices, key=lambda one: (one["tid"], one["ts"])):
        assert one["ts"] >= by_track.get(one["tid"], 0.0) - 0.01
        by_track[one["tid"]] = one["ts"] + one["dur"]


def test_the_traffic_of_a_plan() -> None:
    """Tensor parallelism sends 2 (P - 1) / P of the activations a layer, a pipeline 1 / P of them once."""
    ran = run_choreo(
        "plan", "gpt3-175b", "--cluster", "dgx-a100", "--gpus", "16", "--global-batch", "16", "--seq", "2048",
        "--tp", "8", "--pp", "2", "--micro-batch", "1", "--no-sequence-parallel", "--traffic", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    rows = {row["axes"]: row for row in json.loads(ran.out)["traffic"]}
    activations = 2048 * 12288 * 2
    assert rows["tp"]["size_bytes"] == activations
    assert rows["tp"]["sent_bytes"] == 2 * 7 / 8 * activations
    assert rows["pp"]["sent_bytes"] == activations / 8
    assert (rows["tp"]["link"], rows["pp"]["link"]) == ("NVLink", "the network")


def test_a_device_without_a_cluster_is_in_its_usual_machine() -> None:
    found = planned("gpt2", "--device", "rtx-4090", "--gpus", "8", "--global-batch", "32", "--seq", "1024", "--tp", "1")
    assert (found["cluster"], found["device"]) == ("pcie-gen4", "RTX-4090-24G-PCIe")
    ran = run_choreo("plan", "gpt2", "--device", "rtx-4090", "--global-batch", "32", "--seq", "1024")
    assert ran.code != 0 and "--gpus" in ran.err


def test_a_plan_without_the_headroom_asked_for_says_so() -> None:
    fixed = ("--tp", "8", "--pp", "1", "--cp", "1", "--micro-batch", "1", "--recompute", "none")
    job = ("llama3-8b", "--cluster", "hgx-h100", "--gpus", "8", "--global-batch", "8", "--seq", "8192", *fixed)
    roomy, tight = (run_choreo("plan", *job, "--headroom", share).out for share in ("10%", "90%"))
    assert "the chance that" not in roomy
    assert "no plan leaves 90 % free; the chance that this one fits is 100 %" in " ".join(tight.split())


@pytest.mark.parametrize("view", ["--simulate", "--traffic"])
def test_the_run_is_in_every_view(view: str) -> None:
    job = ("plan", "llama3-8b", *JOB, *FIXED, "--tokens", "1T", "--mtbf", "50000h")
    plain, seen = run_choreo(*job), run_choreo(*job, view)
    run = [line for line in plain.out.splitlines() if line.startswith(("run ", "        goodput"))]
    assert len(run) == 2
    assert [line for line in seen.out.splitlines() if line in run] == run
    assert json.loads(run_choreo(*job, view, "--json").out)["run"] == json.loads(run_choreo(*job, "--json").out)["run"]


def test_what_the_simulated_part_leaves_out_is_said() -> None:
    ran = run_choreo("plan", "llama3-8b", *JOB, *FIXED, "--simulate")
    step_s = json.loads(run_choreo("plan", "llama3-8b", *JOB, *FIXED, "--json").out)["plans"][0]["step_time_s"]
    left = step_s - json.loads(run_choreo("plan", "llama3-8b", *JOB, *FIXED, "--simulate", "--json").out)["estimated_s"]
    assert left > 0
    assert f"without {format_time(left)} for stragglers)" in ran.out
