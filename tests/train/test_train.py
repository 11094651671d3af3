"""`choreo train` as a command and a function: what it returns, and how failures are reported."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
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
        (2, 0.04, "ranks waited for a core in 40 % of a step: other programs use the same 2 cores"),
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
