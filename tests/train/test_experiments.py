"""The classic experiments: data parallelism in several ways, and the bytes of tensor and pipeline parallelism."""

from __future__ import annotations

import importlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

import choreo
from choreo.errors import TrainingError, UsageError
from choreo.run.launch.relay import Output
from choreo.train import TrainConfig
from choreo.train.experiments import ASYNC_PARAMETER_SERVER, KINDS
from choreo.train.launch import run_ranks
from choreo.train.scale import scaled
from choreo.workload import Model, Plan, get_model
from tests.helpers.command import run_choreo
from tests.helpers.ranks.train import TorchRanks

MODEL = cast(Model, scaled(get_model("gpt2-124m"), "tiny"))
BATCH, SEQ, STEPS, FLOAT = 8, 16, 3, 4
RING = "all_reduce:ring,all_gather:ring,reduce_scatter:ring"


def plan(**fields: Any) -> Plan:
    return Plan(precision="fp32", **fields)


def config(one: Plan, **changes: Any) -> TrainConfig:
    return replace(TrainConfig(MODEL, one, global_batch=BATCH, seq=SEQ, steps=STEPS), **changes)


@pytest.fixture(scope="module")
def ranks() -> Iterator[TorchRanks]:
    """Four ranks whose collectives are rings, unless a kind of data parallelism says otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHOREO_ALGORITHM", RING)
        four = TorchRanks(4, "choreo")
        four.losses(config(plan(dp=4), steps=1))
    yield four
    four.stop()


def traffic(found: dict[str, Any]) -> dict[str, dict[str, int]]:
    return {f"{one['axis']} {one['collective']}": one for one in found["traffic"]}


# Data parallelism


@pytest.fixture(scope="module")
def ring(ranks: TorchRanks) -> dict[str, Any]:
    return ranks.train(config(plan(dp=4), data_parallel="ring"))


def losses(found: dict[str, Any]) -> list[float]:
    return [one["loss"] for one in found["steps"]]


@pytest.mark.parametrize(
    ("kind", "all_send", "busiest"),
    [("ring", 6, 1.5), ("partitioned", 6, 1.5), ("staggered", 12, 3), ("parameter-server", 6, 3)],
)
def test_kinds_send_what_their_schedules_say(
    ranks: TorchRanks, ring: dict[str, Any], kind: str, all_send: float, busiest: float
) -> None:
    """In gradients N, with four ranks, and with the same losses."""
    found = ranks.train(config(plan(dp=4), data_parallel=kind))
    assert losses(found) == pytest.approx(losses(ring), rel=1e-5)
    gradients = MODEL.parameters * FLOAT
    assert list(traffic(found)) == ["dp all_reduce"]
    assert traffic(found)["dp all_reduce"]["bytes"] == pytest.approx(all_send * gradients, rel=1e-3)
    assert traffic(found)["dp all_reduce"]["busiest_rank_bytes"] == pytest.approx(busiest * gradients, rel=1e-3)


@pytest.mark.parametrize("servers", [2, 3])
def test_a_server_without_staleness_is_synchronous(ranks: TorchRanks, ring: dict[str, Any], servers: int) -> None:
    workers = 4 - servers
    found = ranks.train(config(plan(dp=workers), data_parallel=ASYNC_PARAMETER_SERVER, servers=servers))
    assert losses(found) == pytest.approx(losses(ring), rel=1e-5)
    assert found["staleness"] == {"0": workers * STEPS}
    gradients, sent = MODEL.parameters * FLOAT, traffic(found)["dp send"]
    assert sent["bytes"] == 2 * workers * gradients + 8 * workers * servers  # and by how much each is ahead
    assert sent["busiest_rank_bytes"] == (gradients + 16 if servers == 2 else gradients)


def test_staleness_is_bounded_and_told(ranks: TorchRanks) -> None:
    one = config(plan(dp=3), global_batch=6, steps=8, data_parallel=ASYNC_PARAMETER_SERVER, servers=1, staleness=1)
    found = ranks.train(one)
    assert set(found["staleness"]) <= {"0", "1"}
    assert sum(found["staleness"].values()) == 3 * 8
    assert "1" in found["staleness"]  # whoever comes first is ahead
    assert losses(found)[-1] < losses(found)[0] - 0.2


def test_a_loss_that_is_no_number_is_reported_with_its_worker() -> None:
    ranks = TorchRanks(2, "choreo")
    one = config(plan(), steps=9, lr=1e30, data_parallel=ASYNC_PARAMETER_SERVER, servers=1, staleness=1)
    with pytest.raises(TrainingError, match=r"the loss is not a number at step [0-9] on rank 0"):
        ranks.train(one)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"data_parallel": "star"}, "data_parallel must be one of all-reduce, ring, partitioned"),
        ({"servers": 2}, "--servers is for --data-parallel async-parameter-server, not for all-reduce"),
        ({"data_parallel": "ring", "staleness": 0}, "--staleness is for"),
        ({"data_parallel": "ring", "backend": "gloo"}, "chooses the algorithm, which --backend gloo does by itself"),
        ({"data_parallel": "ring", "plan": plan(dp=2, zero=1)}, "--zero 1 sums them by reduce_scatter"),
        ({"data_parallel": "ring", "plan": plan(tp=2)}, "between replicas, and tp2 mb1 fp32 has one; use --dp 2"),
        ({"data_parallel": ASYNC_PARAMETER_SERVER, "servers": 0}, "at least one server"),
        ({"data_parallel": ASYNC_PARAMETER_SERVER, "staleness": -1}, "staleness of 0 or more, not 1 and -1"),
        ({"data_parallel": ASYNC_PARAMETER_SERVER, "plan": plan(tp=2)}, r"replicas alone \(--dp 2\), not for tp2"),
        ({"data_parallel": ASYNC_PARAMETER_SERVER, "model": "dlrm"}, "whose tables are cut"),
        ({"data_parallel": ASYNC_PARAMETER_SERVER, "device": "cuda"}, "leave out --device cuda"),
        ({"data_parallel": ASYNC_PARAMETER_SERVER, "checkpoint": "there"}, "writes no checkpoints"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        choreo.train(**({"model": "gpt2-124m", "scale": "tiny", "ranks": 2} | options))  # type: ignore[arg-type]


def test_a_server_that_dies_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(*_: object, err: Output, **__: object) -> int:
        err.put(b"choreo: rank 3 (pid 7) was killed by SIGKILL (9); the other 3 ranks were stopped\n")
        return 137

    monkeypatch.setattr(importlib.import_module("choreo.train.launch"), "launch", launch)
    one = config(plan(dp=2), data_parallel=ASYNC_PARAMETER_SERVER, servers=2)
    with pytest.raises(TrainingError, match=r"^server 1 \(rank 3\) \(pid 7\) was killed"):
        run_ranks(one, lambda _: None)


@pytest.mark.grid
@pytest.mark.parametrize(("victim", "name"), [(-1, r"server 0 \(rank 2\)"), (0, "worker 0")])
def test_a_real_one_that_dies_is_named(victim: int, name: str) -> None:
    def kill() -> None:
        folder = Path(f"/proc/self/task/{os.getpid()}/children")
        found: list[int] = []
        while len(found) < 3:
            time.sleep(0.1)
            pids = folder.read_text(encoding="ascii").split()
            found = [int(pid) for pid in pids if b"choreo.train.rank" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        time.sleep(8)
        os.kill(found[victim], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(TrainingError, match=rf"{name} \(pid \d+\) was killed by SIGKILL"):
        choreo.train("gpt2-124m", ranks=2, scale="tiny", steps=10**6, data_parallel=ASYNC_PARAMETER_SERVER)
    killer.join()


def test_all_kinds_in_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[TrainConfig] = []

    def pretended(one: TrainConfig, report: Any) -> None:
        asked.append(one)
        step = {
            "step": 0,
            "loss": 5.0,
            "tokens_per_s": 1e3,
            "time_s": 0.1,
            "mfu": 0.5,
            "parts": {"dp all_reduce": 0.03},
        }
        report({"step": step})
        row = {"axis": "dp", "collective": "all_reduce", "messages": 6, "bytes": 6000, "busiest_rank_bytes": 1500}
        report({"memory_bytes": 1e6, "traffic": [row], "staleness": {"0": 1, "1": 3} if one.servers else {}})

    monkeypatch.setattr(importlib.import_module("choreo.train.train"), "run_ranks", pretended)
    job = ("train", "gpt2-124m", "--scale", "tiny", "-n", "4", "--steps", "1", "--data-parallel", "all")
    ran = run_choreo(*job, "--servers", "2", "--staleness", "3")
    assert ran.code == 0, ran.err
    words = [line.split() for line in ran.out.splitlines()]
    assert [line[0] for line in words if line and line[0] in KINDS] == [*KINDS]
    assert ["ring", "100", "ms", "-", "30.0", "ms"] in [line[:6] for line in words]
    assert "ahead of the slowest when it got its parameters: 0 (25 %), 1 (75 %)" in ran.out
    assert [(one.ranks, one.plan.dp) for one in asked] == [(4, 4)] * 5 + [(6, 4)]
    assert (asked[-1].servers, asked[-1].staleness) == (2, 3)
    runs = json.loads(run_choreo(*job, "--json").out)["runs"]
    assert [one["data_parallel"] for one in runs] == [*KINDS]
    assert runs[0]["traffic"][0]["bytes"] == 6000
    assert "--html is for one run" in run_choreo(*job, "--html", "x.html").err


# Tensor against pipeline parallelism, with P ranks: activations of d features and B tokens are d B numbers


def test_tensor_parallelism_sends_d_b_over_p_to_all_others(ranks: TorchRanks) -> None:
    """Every gathering is (d B / P)(P - 1) a rank: two a layer forward, two backward, and two for the embeddings."""
    found = traffic(ranks.train(config(plan(tp=4, sequence_parallel=True, micro_batch=BATCH))))
    db, p = MODEL.hidden * BATCH * SEQ * FLOAT, 4
    for name in ("tp all_gather", "tp reduce_scatter"):
        assert found[name]["busiest_rank_bytes"] == (4 * MODEL.layers + 2) * (db // p) * (p - 1)
        assert found[name]["bytes"] == p * found[name]["busiest_rank_bytes"]


def test_an_all_reduce_sends_twice_that(ranks: TorchRanks) -> None:
    """Without sequence parallelism; the loss adds three numbers a token."""
    found = traffic(ranks.train(config(plan(tp=4, micro_batch=BATCH))))
    numbers, p = (4 * MODEL.layers + 2) * MODEL.hidden + 3, 4
    assert list(found) == ["tp all_reduce"]
    assert found["tp all_reduce"]["busiest_rank_bytes"] == 2 * (numbers * BATCH * SEQ * FLOAT // p) * (p - 1)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_pipeline_sends_d_b_over_p_to_the_next_stage_only(ranks: TorchRanks, schedule: str) -> None:
    """With as many micro-batches as stages a message is d B / P; so many go forward, and as many backward."""
    p = 4
    ran = ranks.train(config(plan(pp=p, micro_batch=BATCH // p, schedule=schedule)))
    assert ran["steps"][-1]["parts"]["bubble"] > 0
    found = traffic(ran)
    db = MODEL.hidden * BATCH * SEQ * FLOAT
    assert found["pp send"]["messages"] == 2 * (p - 1) * p
    assert found["pp send"]["bytes"] == found["pp send"]["messages"] * db // p
    assert found["pp send"]["busiest_rank_bytes"] == 2 * db
