"""`choreo train` as a command and a function: what it returns, what it refuses, and how it says so."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import choreo
from choreo.errors import PlanError, TrainingError, UsageError
from choreo.train import TrainConfig
from choreo.train.data.text import open_text
from choreo.train.plan_file import plan_of, read_plan
from choreo.train.rank import core_wait
from choreo.train.scale import scaled
from choreo.workload import Model, Plan, get_model
from tests.helpers.command import run_choreo
from tests.helpers.ranks.forks import import_torch
from tests.helpers.ranks.train import TorchRanks

MODULE = importlib.import_module("choreo.train.train")  # by its name it is the function
TINY: dict[str, Any] = {"scale": "tiny", "steps": 2, "seq": 16}


def test_a_rank_in_an_interpreter_of_its_own() -> None:
    ran = run_choreo("train", "gpt2-124m", "--scale", "tiny", "-n", "1", "--steps", "2", "--seq", "16", "--json")
    assert ran.code == 0, ran.err
    assert len(json.loads(ran.out)["steps"]) == 2


def test_two_ranks_from_the_command_line(forked: None) -> None:
    """The whole way: launcher, processes, backend, reports, JSON."""
    import_torch()
    ran = run_choreo(
        "train", "gpt2-124m", "--scale", "tiny", "-n", "2", "--dp", "2", "--steps", "3", "--seq", "16", "--json"
    )
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert {"model", "plan", "ranks", "device", "steps", "memory_bytes", "predicted_memory_bytes"} <= set(found)
    assert (found["model"], found["ranks"], found["plan"]["dp"], found["device"]) == ("gpt2-124m (tiny)", 2, 2, "cpu")
    assert found["memory_bytes"] > 1e6
    first, *_, last = found["steps"]
    assert {"step", "loss", "tokens_per_s", "time_s", "predicted_s", "parts"} <= set(first)
    assert last["loss"] < first["loss"]
    assert sum(last["parts"].values()) == pytest.approx(last["time_s"])
    assert {"compute", "optimizer", "dp all_reduce"} <= set(last["parts"])


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> list[TrainConfig]:
    """In place of real ranks, ones that report a falling loss, a bit higher with several ranks."""
    asked: list[TrainConfig] = []

    def run_ranks(config: TrainConfig, report: Callable[[dict[str, Any]], None]) -> None:
        asked.append(config)
        for step in range(config.steps):
            loss = 5.0 - 0.1 * step + 1e-7 * config.ranks
            one = {"step": step, "loss": loss, "tokens_per_s": 1e3, "time_s": 0.1, "mfu": 0.5}
            report({"step": one | {"parts": {"compute": 0.06, "tp all_reduce": 0.03, "optimizer": 0.01}}})
        names = [("F", 0), ("B", 0), ("dp all_reduce", -1), ("optimizer", -1)]
        spans = [
            {
                "rank": rank,
                "name": name,
                "micro_batch": batch,
                "chunk": 0,
                "start_s": 0.02 * at,
                "end_s": 0.02 * at + 0.02,
            }
            for rank in range(config.ranks)
            for at, (name, batch) in enumerate(names)
        ]
        report({"memory_bytes": 2e6, "timeline": spans})

    monkeypatch.setattr(MODULE, "run_ranks", run_ranks)
    return asked


def test_a_table_says_where_the_time_went(pretended: list[TrainConfig]) -> None:
    ran = run_choreo("train", "gpt2-124m", "--scale", "tiny", "-n", "4", "--tp", "2", "--check", "--steps", "2")
    assert ran.code == 0, ran.err
    assert "tp all_reduce  30.0 ms  30.0 %" in " ".join(ran.out.split("\n")).replace("   ", "  ")
    assert "losses are the same as with one process" in ran.out
    assert [(one.ranks, one.plan.dp, one.plan.tp) for one in pretended] == [(4, 2, 2), (1, 1, 1)]


def test_the_ranks_get_the_model_that_was_named(pretended: list[TrainConfig]) -> None:
    """With its windows, chunks, sinks and further tokens; what is not built is told."""
    notes: list[str] = []
    for name in ("gpt-oss-20b", "llama4-scout", "deepseek-v3"):
        choreo.train(name, ranks=1, on_note=notes.append, **TINY)
        assert pretended[-1].model == scaled(get_model(name), "tiny")
    assert get_model("gpt-oss-20b").window
    told = [note for note in notes if "trained without" in note]
    assert told == ["deepseek-v3 (tiny) is trained without the bias that balances its experts, which stays zero"]


@pytest.mark.parametrize(
    ("ranks", "waited_s", "sentence"),
    [
        (2, 0.009, ""),
        (2, 0.04, "ranks waited for a core in 40 % of a step: other programs keep 2 cores busy"),
        (4, 0.055, ""),  # four ranks have two cores for half of the time each
        (4, 0.065, "ranks waited for a core in 65 % of a step"),
    ],
)
@pytest.mark.usefixtures("pretended")
def test_a_run_beside_busy_programs_says_so(
    ranks: int, waited_s: float, sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_ranks = MODULE.run_ranks

    def waiting(config: TrainConfig, report: Callable[[dict[str, Any]], None]) -> None:
        def with_wait(told: dict[str, Any]) -> None:
            report({"step": told["step"] | {"core_wait_s": waited_s}} if "step" in told else told)

        run_ranks(config, with_wait)

    monkeypatch.setattr(MODULE, "run_ranks", waiting)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    page, job = tmp_path / "run.html", ("-n", str(ranks), "--dp", str(ranks), "--steps", "3")
    ran = run_choreo("train", "gpt2-124m", "--scale", "tiny", *job, "--html", str(page))
    assert ran.code == 0, ran.err
    assert sentence in page.read_text(encoding="utf-8")
    assert (sentence or "a step:") in ran.out.replace("\n", " ")
    assert ("waited for a core" in ran.out) == bool(sentence)
    assert "which the prediction does not include" not in ran.out  # there is none


def test_waiting_for_a_core_is_what_the_system_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = tmp_path / "schedstat"
    monkeypatch.setattr(core_wait, "COUNTS", counts)
    assert core_wait.core_wait_s() == 0.0
    for text, seconds in (("7000000 250000000 31\n", 0.25), ("7000000\n", 0.0), ("no numbers here\n", 0.0)):
        counts.write_text(text, encoding="ascii")
        assert core_wait.core_wait_s() == seconds


def test_a_run_is_a_result(pretended: list[TrainConfig]) -> None:
    run = choreo.train("gpt2-124m", plan=Plan(dp=2, precision="fp32"), **TINY)
    assert repr(run).startswith("<TrainingRun gpt2-124m (tiny) on 2 ranks, dp2 mb1 fp32: loss 5.0000 to 4.9000")
    assert "tokens" in run._repr_html_()
    assert run.to_dict()["steps"][1]["loss"] == pytest.approx(4.9, abs=1e-5)
    assert run.check is None


def test_a_page_has_both_timelines(pretended: list[TrainConfig], tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    ran = run_choreo("train", "gpt2-124m", "--scale", "tiny", "-n", "2", "--steps", "3", "--html", str(file))
    assert (ran.code, "open it in a browser" in ran.err) == (0, True)
    page = file.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "where the time went" in page
    assert "<title>tp all_reduce: 30.0 ms</title>" in page
    assert "the last step, as measured" in page
    assert page.count("<title>forward of micro-batch 0: 20.0 ms</title>") == 2


def test_a_check_that_fails_is_exit_code_1(pretended: list[TrainConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "ROUNDING", {"fp32": 1e-9})
    ran = run_choreo("train", "gpt2-124m", "--scale", "tiny", "-n", "2", "--check")
    assert ran.code == 1
    assert "NOT the same" in ran.out


def test_a_plan_from_a_file(pretended: list[TrainConfig], tmp_path: Path) -> None:
    job = ("--cluster", "hgx-h100", "--gpus", "2", "--global-batch", "4", "--seq", "64", "--precision", "fp32")
    written = run_choreo("plan", "gpt2-124m", *job, "--tp", "2", "--json")
    file = tmp_path / "plan.json"
    file.write_text(written.out, encoding="utf-8")
    ran = run_choreo("train", "gpt2-124m", "--scale", "tiny", "--plan", str(file), "--global-batch", "4", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["plan"] == json.loads(written.out)["plans"][0]["plan"]
    assert pretended[0].plan == read_plan(file)
    beside = run_choreo("train", "gpt2-124m", "--plan", str(file), "--tp", "2")
    assert (beside.code, "already says what the plan is; leave out --tp" in beside.err) == (2, True)
    for text, sentence in (("{", "is not JSON"), ("{}", "has no plan"), ('{"plans": []}', "has no plan")):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(PlanError, match=sentence):
            read_plan(file)
    with pytest.raises(PlanError, match="cannot be read: No such file"):
        read_plan(tmp_path / "none.json")


def test_what_is_left_of_the_ranks_are_replicas() -> None:
    assert plan_of({}, 4) is None
    assert plan_of({"tp": 2, "pp": 2}, 8) == Plan(dp=2, tp=2, pp=2, precision="fp32")
    assert plan_of({"pp": 2, "schedule": "interleaved"}, 2) == Plan(
        pp=2, schedule="interleaved", interleave=2, precision="fp32"
    )


WRONG = [
    ({"ranks": 3, "plan": Plan(dp=2, precision="fp32")}, "dp 2 × tp 1 × pp 1 × cp 1 is 2 devices, not 3; dp 3 would"),
    ({"plan": Plan(tp=3, precision="fp32")}, "heads 4 of gpt2-124m (tiny) are not divisible by tp 3; use tp 2 or 4"),
    ({"plan": Plan(dp=2, precision="fp32"), "global_batch": 3}, "global batch 3 is not divisible by dp 2"),
    ({"plan": Plan(precision="fp8")}, "choreo train computes in fp32 or bf16, not fp8"),
    ({"plan": Plan(cp=4, precision="fp32"), "seq": 12}, "seq 12 is not divisible by 2 × cp 4"),
    (
        {"plan": Plan(dp=2, pp=2, zero=3, schedule="zero-bubble", precision="fp32")},
        "torch computes wrong gradients for zero-bubble with zero 3 (fully_shard); schedule 1f1b, or zero 0 or 1",
    ),
    (
        {"plan": Plan(pp=2, schedule="interleaved", precision="fp32")},
        "schedule interleaved needs interleave 2 or more",
    ),
    ({"plan": Plan(pp=4, precision="fp32"), "global_batch": 2}, "needs as many micro-batches, and there are 2"),
    ({"steps": 0}, "steps must be a whole number of at least 1, not 0"),
    ({"lr": 0.0}, "lr must be above 0, not 0.0"),
    ({"device": "tpu"}, "device must be cpu or cuda, not 'tpu'"),
    ({"backend": "mpi"}, "backend must be choreo or gloo, not 'mpi'"),
    ({"scale": "small"}, "--scale is tiny, or a factor above 0 and up to 1, like 0.1, not 'small'"),
    ({"seq": 2000}, "seq 2000 is more than the 1024 positions of gpt2-124m (tiny)"),
    ({"data": "no-such-file.txt"}, "no-such-file.txt cannot be read: No such file or directory"),
]


@pytest.mark.parametrize(("changes", "sentence"), WRONG, ids=[sentence[:40] for _, sentence in WRONG])
def test_what_cannot_be_trained_is_refused_before_it_starts(
    pretended: list[TrainConfig], changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError) as caught:
        choreo.train("gpt2-124m", **TINY | changes)
    assert sentence in str(caught.value)
    assert not pretended


def test_zero_bubble_with_several_further_tokens_is_refused(pretended: list[TrainConfig]) -> None:
    model = replace(get_model("llama3-8b"), mtp_layers=2)
    plan = Plan(pp=2, schedule="zero-bubble", precision="fp32")
    with pytest.raises(UsageError, match="2 modules that read one embedding, as zero-bubble asks; schedule 1f1b"):
        choreo.train(model, plan=plan, **{key: value for key, value in TINY.items() if key != "ranks"})
    assert not pretended


def test_a_model_that_does_not_fit_is_reported_with_what_would(pretended: list[TrainConfig]) -> None:
    with pytest.raises(UsageError, match=r"llama3-405b does not fit this machine: .* 6\.49 TB, .*; --scale 0\.\d+"):
        choreo.train("llama3-405b", ranks=1)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("dlrm", {"ranks": 2}),
        ("llama3-8b", {"ranks": 2, "scale": 0.9}),  # a factor of the model, not of what was refused
        ("mixtral-8x7b", {"plan": Plan(dp=4, ep=4, precision="fp32")}),
        ("llama3-8b", {"plan": Plan(tp=4, precision="fp32")}),  # smaller ones have too few key-value heads
    ],
)
def test_the_scale_that_is_proposed_is_taken(
    pretended: list[TrainConfig], monkeypatch: pytest.MonkeyPatch, model: str, options: dict[str, Any]
) -> None:
    monkeypatch.setattr("choreo.train.check.available_bytes", lambda: 20e9)
    with pytest.raises(UsageError, match="does not fit this machine") as caught:
        choreo.train(model, **options)
    scale = str(caught.value).partition("--scale ")[2].partition(" ")[0]
    choreo.train(model, **options | {"scale": scale})
    assert len(pretended) == 1


def test_experts_are_on_one_rank_each(pretended: list[TrainConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    """Four copies of the experts would not fit, where one does."""
    monkeypatch.setattr("choreo.train.check.available_bytes", lambda: 12e9)
    with pytest.raises(UsageError, match="does not fit this machine"):
        choreo.train("gpt-oss-20b", scale=0.3, plan=Plan(dp=4, precision="fp32"))
    choreo.train("gpt-oss-20b", scale=0.3, plan=Plan(dp=4, ep=4, precision="fp32"))
    assert len(pretended) == 1


def test_zero_is_named_only_where_the_model_would_fit(
    pretended: list[TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four replicas of 124 million parameters take 16 bytes each: 8 GB, or 2 GB together."""
    for free, named in ((6e9, True), (1e9, False)):
        monkeypatch.setattr("choreo.train.check.available_bytes", lambda free=free: free)
        with pytest.raises(UsageError, match="does not fit this machine") as caught:
            choreo.train("gpt2-124m", ranks=4)
        assert ("; so would --zero 3, which cuts it over the replicas" in str(caught.value)) == named


def test_images_are_normalised_over_several_and_are_no_sequences(pretended: list[TrainConfig]) -> None:
    with pytest.raises(PlanError, match=r"one image is no batch; use --micro-batch 2 --global-batch 4"):
        choreo.train("resnet-50", scale="tiny", ranks=2)
    assert not pretended
    done = run_choreo("train", "resnet-50", "--scale", "tiny", "--micro-batch", "2", "--steps", "1")
    assert "a step: 2 samples" in done.out, done.err


def test_a_vocabulary_that_lacks_bytes_of_the_text(pretended: list[TrainConfig]) -> None:
    small = Model("small", layers=2, hidden=16, heads=2, vocab=64)
    with pytest.raises(UsageError, match=r"has bytes up to \d+, and small a vocabulary of 64; one of 256 holds"):
        choreo.train(small, steps=1, seq=16)
    assert not pretended


def test_data_that_is_too_short(tmp_path: Path) -> None:
    file = tmp_path / "short.txt"
    file.write_text("short", encoding="utf-8")
    with pytest.raises(UsageError, match=r"it has 5 bytes, and one sequence of 64 tokens takes 65; .* or --seq 4"):
        open_text(str(file), 64, 0)
    assert open_text(str(file), 4, 0).sample(7).tolist() == list(b"short")


def test_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs PyTorch, which is not installed here: pip install 'choreo\[torch\]'"):
        choreo.train("gpt2-124m", **TINY)


def test_samples_are_shuffled_by_seed_and_every_one_is_seen() -> None:
    text, other = open_text("", 50, 0), open_text("", 50, 1)
    count = text.sequences
    seen = {text.sample(number).tobytes() for number in range(count)}
    assert len(seen) == count
    assert {text.sample(count + number).tobytes() for number in range(count)} == seen
    assert [text.sample(number).tolist() for number in range(9)] != [
        other.sample(number).tolist() for number in range(9)
    ]


def test_a_scaled_model_keeps_its_architecture() -> None:
    for name in ("llama3-8b", "gpt2-124m", "mixtral-8x7b", "gpt-neox-20b"):
        whole, tiny, tenth = get_model(name), scaled(get_model(name), "tiny"), scaled(get_model(name), 0.1)
        assert scaled(whole, 1) is whole
        for small in (tiny, tenth):
            assert isinstance(small, Model)
            assert (small.gated, small.norm, small.bias) == (whole.gated, whole.norm, whole.bias)
            assert small.parameters < whole.parameters / 8
            assert small.layers % 4 == small.heads % small.kv_heads == 0


def test_importing_train_imports_no_torch() -> None:
    code = "import sys, choreo; choreo.train; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def tiny_config(**changes: Any) -> TrainConfig:
    model = scaled(get_model("gpt2-124m"), "tiny")
    return TrainConfig(**{"model": model, "global_batch": 2, "seq": 16, "steps": 3} | changes)


def test_a_loss_that_is_no_number_is_reported_with_step_and_rank() -> None:
    ranks = TorchRanks(2)
    with pytest.raises(TrainingError, match=r"not a number at step \d on ranks 0, 1; try a smaller --lr"):
        ranks.train(tiny_config(plan=Plan(dp=2, precision="fp32"), lr=1e30, steps=5))
    ranks.stop()


def test_ranks_that_differ_are_distinguished() -> None:
    ranks = TorchRanks(2)
    with pytest.raises(UsageError, match=r"the ranks differ in the seed: rank 1 has 7, the others 0; start all with"):
        ranks.train(tiny_config(plan=Plan(dp=2, precision="fp32")), {1: {"seed": 7}})
    ranks.stop()


def killing(step: object) -> None:
    """Kill a rank that this process has started."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
    ranks = [int(pid) for pid in children if b"choreo.train.rank" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(ranks[-1], signal.SIGKILL)


@pytest.mark.grid
def test_a_rank_that_is_killed_ends_the_run_with_a_sentence() -> None:
    with pytest.raises(TrainingError, match=r"rank 1 \(pid \d+\) was killed by SIGKILL \(9\); the other rank was"):
        choreo.train("gpt2-124m", ranks=2, scale="tiny", seq=16, steps=100000, on_step=killing)


def test_without_a_plan_it_is_the_best_that_can_be_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that fits of what the planner finds, which knows what torch can run."""
    best = importlib.import_module("choreo.train.best")
    job: dict[str, Any] = {"cluster": "hgx-h100", "gpus": 2, "global_batch": 4, "seq": 64, "precision": "fp32"}
    model = scaled(get_model("gpt2-124m"), "tiny")
    right = choreo.plan(model, **job, tp=2).best
    large = SimpleNamespace(plan=Plan(dp=2, precision="fp32"), step=SimpleNamespace(fits=False))
    monkeypatch.setattr(best, "plan", lambda *_, **__: SimpleNamespace(plans=(large, right)))
    assert best.best_plan(model, 2, 4, 64) == right.plan

    def unmeasured(*_: object, **__: object) -> None:
        raise UsageError("run choreo calibrate --device cpu first")

    monkeypatch.setattr(best, "plan", unmeasured)
    assert best.best_plan(model, 2, 4, 64) == Plan(dp=2, precision="fp32")


def test_the_default_batch_does_not_depend_on_the_plan_that_is_found(
    pretended: list[TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    for found in (Plan(dp=4, precision="fp32"), Plan(tp=4, precision="fp32"), Plan(pp=4, precision="fp32")):
        monkeypatch.setattr(importlib.import_module("choreo.train.train"), "best_plan", lambda *_, one=found: one)
        choreo.train("gpt2-124m", scale="tiny", ranks=4, steps=2)
    choreo.train("gpt2-124m", scale="tiny", plan=Plan(pp=4, precision="fp32"), steps=2)
    assert [one.global_batch for one in pretended] == [4, 4, 4, 8]


def test_without_a_plan_an_elastic_run_has_replicas_which_survive(
    pretended: list[TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    best = Plan(tp=2, precision="fp32")
    monkeypatch.setattr(importlib.import_module("choreo.train.train"), "best_plan", lambda *_: best)
    for elastic in (False, True):
        choreo.train("gpt2-124m", scale="tiny", ranks=2, steps=2, elastic=elastic)
    assert [one.plan for one in pretended] == [best, Plan(dp=2, precision="fp32")]
    assert [one.survives for one in pretended] == [False, True]
