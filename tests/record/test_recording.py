"""`--record` of every command that makes a number: what it prints is what the store has."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import choreo
from choreo.cli.recording import Recording
from choreo.record import Measured, Predicted, facts_of, record, sql
from choreo.record.store.place import DATABASE
from choreo.train.result import TrainingRun, TrainingStep
from tests.helpers.cli import CHOREO, fine, mistake
from tests.helpers.command import run_choreo


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHOREO_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("CHOREO_RECORD", raising=False)
    return tmp_path / "store"


def asked(query: str) -> list[tuple[Any, ...]]:
    return sql(query, oltp=True).rows


RING = "ring(4, 50GB/s, 1us)"
COMMANDS = {
    "price": (["price", "all_reduce", "-p", "8", "--size", "1MiB"], "price", "total_s"),
    "simulate": (["simulate", "all_reduce", "-t", RING, "--size", "1MiB"], "simulate", "time_s"),
    "packets": (["simulate", "all_reduce", "-t", RING, "--size", "8KiB", "--packets"], "packets", "time_s"),
    "nccl": (["simulate", "all_reduce", "-t", "hgx-h100:1", "--size", "1MiB", "--library", "nccl"], "nccl", "time_s"),
    "bound": (["bound", "all_reduce", "-t", RING, "--size", "1MiB"], "bound", "bound_s"),
    "synthesize by packets": (
        ["synthesize", "all_gather", "-t", RING, "--size", "1MiB", "--packets"],
        "packets",
        "time_s",
    ),
    "synthesize": (["synthesize", "all_gather", "-t", RING, "--size", "1MiB"], "simulate", "time_s"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_printed_is_kept(name: str) -> None:
    words, source, figure = COMMANDS[name]
    printed: Any = fine(*words, "--record", "--json").json
    rows = printed if isinstance(printed, list) else [printed]
    kept = asked(f"select time_s from result where source = '{source}' and verb = '{words[0]}' order by time_s")
    assert [time_s for (time_s,) in kept] == sorted(row[figure] for row in rows)
    assert asked("select status, argv from run") == [("done", json.dumps([*words, "--record", "--json"]))]
    fine(*words, "--record", "--json")  # the same code: the same predictions, which stay
    assert asked("select count(*) from prediction") == [(len(rows),)]
    assert asked("select count(*) from run") == [(2,)]


def test_where_each_wins_is_kept_with_the_prices_at_the_ends() -> None:
    words = ["price", "all_reduce", "--ranks", "8", "--sweep", "8:64MiB"]
    printed: Any = fine(*words, "--record", "--json").json
    ends = sorted({end for one in printed["ranges"] for end in (one["from_bytes"], one["to_bytes"])})
    assert [size for (size,) in asked("select distinct size_bytes from result order by 1")] == ends
    best = asked("select algorithm from result where size_bytes = 8 order by time_s limit 1")
    assert best == [(printed["ranges"][0]["algorithm"],)]


def test_plan() -> None:
    words = [
        "plan",
        "llama3-8b",
        "--cluster",
        "hgx-h100",
        "--gpus",
        "8",
        "--global-batch",
        "16",
        "--seq",
        "4096",
        "--tp",
        "8",
    ]
    printed = fine(*words, "--record", "--json").json
    assert isinstance(printed, dict)
    kept = asked("select time_s, memory_bytes, model, topology, ranks from result")
    assert kept == [(one["step_time_s"], one["memory_bytes"], "llama3-8b", "hgx-h100", 8) for one in printed["plans"]]


def test_bench_keeps_every_sample() -> None:
    printed = fine("bench", "all_reduce", "-n", "2", "-b", "8", "-e", "8", "--rounds", "3", "--record", "--json").json
    assert isinstance(printed, dict)
    (row,) = printed["results"]
    times = [time_s for (time_s,) in asked("select time_s from result where kind = 'measured' order by time_s")]
    assert len(times) == 3
    assert times[1] == row["time_s"]
    assert asked("select predicted_s, measured_s, algorithm from compared") == [
        (row["predicted_s"], row["time_s"], row["algorithm"])
    ]
    assert asked("select kind from constants") == [("this-machine",)]


STEP = """HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 pp: 1 vpp: 1 ga: 1 all_gpus: 8
1
mlp -1 600000 ALLREDUCE 33554432 1200000 ALLREDUCE 33554432 0 REDUCESCATTER 268435456 20000
"""


def test_a_workload(tmp_path: Path) -> None:
    file = tmp_path / "step.txt"
    file.write_text(STEP)
    words = ["simulate", "--workload", str(file), "-t", "hgx-h100", "--record", "--json"]
    printed: Any = fine(*words).json
    fine(*words)
    assert asked("select model, ranks, time_s from result") == [("step.txt", 8, printed["time_s"])]
    file.write_text(STEP.replace("600000", "700000"))
    fine(*words)
    assert asked("select count(*) from case_") == [(2,)]


def test_a_training_run_is_one_case_with_a_sample_for_each_step() -> None:
    """The run is made by hand: the ranks of a real one need torch."""
    steps = [TrainingStep(number, 5.0, 1e3, 0.02 + 0.001 * number, 0.021, 0.1, {}) for number in range(3)]
    plan = choreo.Plan(dp=2, precision="fp32")
    run = TrainingRun("gpt2-124m", plan, 2, "cpu", "choreo", 4, 64, tuple(steps), 1e7, 2e7)
    predicted, measured = facts_of(run, scale="tiny")
    assert predicted.case == measured.case
    assert (predicted.case.model, predicted.case.plan) == ("gpt2-124m", str(plan))
    assert isinstance(predicted, Predicted)
    assert isinstance(measured, Measured)
    assert (predicted.source, predicted.time_s, predicted.memory_bytes) == ("plan", 0.021, 2e7)
    assert measured.times_s == tuple(step.time_s for step in steps)


def test_the_environment_asks_for_it_and_an_option_forbids_it(monkeypatch: pytest.MonkeyPatch, store: Path) -> None:
    words = COMMANDS["bound"][0]
    monkeypatch.setenv("CHOREO_RECORD", "1")
    fine(*words, "--no-record")
    assert not store.exists()
    fine(*words)
    assert asked("select count(*) from prediction") == [(1,)]
    monkeypatch.setenv("CHOREO_RECORD", "sometimes")
    assert "CHOREO_RECORD is 'sometimes'; set it to 1" in mistake(*words)


def test_another_network_is_another_case() -> None:
    for more in ([], ["--slow-link", "0-1=0.5"], ["--placement", "reversed"], ["--gamma", "1e-11"]):
        fine("simulate", "all_reduce", "-t", RING, "--size", "1MiB", "-a", "ring", "--record", *more)
    topologies = [name for (name,) in asked("select topology from case_ order by id")]
    assert topologies[0] == RING
    assert topologies[1].startswith(f"{RING}#")
    assert asked("select count(*) from prediction") == [(4,)]


def test_files_that_were_written_are_known(tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    run_choreo(*COMMANDS["simulate"][0], "--record", "--html", str(page))
    assert asked("select path, bytes from artifact") == [(str(page), page.stat().st_size)]


def test_output_without_a_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recording, "add", lambda *_: None)
    ran = run_choreo(*COMMANDS["simulate"][0], "--record")
    assert (ran.code, ran.err) == (0, "choreo: this output has no times that could be recorded\n")


def test_a_mistake_is_a_run_that_failed() -> None:
    mistake("price", "all_reduce", "-p", "8", "--record")
    assert asked("select status, ended is not null from run") == [("failed", 1)]


def test_the_answer_is_printed_though_it_cannot_be_kept(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise choreo.StoreError("record.sqlite: the disk is full")

    monkeypatch.setattr("choreo.record.store.Store.add", full)
    ran = run_choreo(*COMMANDS["bound"][0], "--record")
    assert ran.code == 2
    assert "no schedule takes less than" in ran.out
    assert ran.err == "choreo: this answer was not recorded: record.sqlite: the disk is full\n"


def test_a_store_that_cannot_be_used_is_said_before_the_work(store: Path) -> None:
    store.mkdir()
    (store / DATABASE).write_bytes(b"damaged" * 1000)
    assert "is damaged, or not a store" in mistake(*COMMANDS["price"][0], "--record")
    assert "is damaged, or not a store" in mistake("sweep", "bound", "all_reduce", "-t", RING, "--size", "8")


def test_a_kill_is_a_run_without_an_end(store: Path) -> None:
    words = [
        str(CHOREO),
        "simulate",
        "all_to_all",
        "-a",
        "direct",
        "-t",
        "torus(16x16x4, 45GB/s, 1us)",
        "--size",
        "1GiB",
    ]
    environment = os.environ | {"CHOREO_STORE": str(store)}
    with subprocess.Popen([*words, "--record"], env=environment, stdout=subprocess.DEVNULL) as process:
        until = time.monotonic() + 30
        while time.monotonic() < until and process.poll() is None:
            try:
                if asked("select count(*) from run") == [(1,)]:
                    break
            except (choreo.StoreError, sqlite3.Error):
                pass
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert asked("select status, ended from run") == [("running", None)]
    assert "1 run without an end" in fine("record").out


def test_python_keeps_results_too(tmp_path: Path) -> None:
    model = choreo.CostModel("5us", "50GB/s")
    prices = [choreo.price(choreo.build("all_reduce", name, 7), "1KiB", model) for name in ("ring", "mst")]
    assert record(prices, store=tmp_path / "mine", cost_model=model) == 2
    with pytest.raises(choreo.UsageError, match="nothing to record in Schedule"):
        record(choreo.build("all_reduce", "ring", 4))


def test_a_sweep_and_a_command_have_the_same_case() -> None:
    """So that measurements, commands and sweeps meet in one row."""
    found = choreo.simulate(choreo.build("all_reduce", "ring", 4), RING, "1MiB")
    (fact,) = facts_of(found)
    choreo.sweep("simulate", collective="all_reduce", algorithm="ring", topology="ring(4,50GB/s,1us)", size="1MiB")
    fine("simulate", "all_reduce", "-a", "ring", "-t", RING, "--size", "1MiB", "--record")
    assert asked("select hash from case_") == [(fact.case.hash,)]
    assert asked("select count(*) from prediction") == [(1,)]
