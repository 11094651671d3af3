"""`choreo.Elastic`: ranks are killed, stopped and replaced, and the losses are those of an undisturbed run."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import choreo
from choreo.errors import TrainingError, UsageError
from choreo.train import TrainConfig
from choreo.train.scale import scaled
from choreo.workload import Plan, get_model
from tests.helpers.network.hosts import hosts, why_no_hosts
from tests.helpers.ranks.elastic import ElasticJob, losses_alone, train_config
from tests.helpers.ranks.faults import eventually, left_since, segments
from tests.helpers.suite.torch import torch

TOLERANCE = 1e-6


def on_demand(value: int) -> Any:
    """A case for --grid."""
    return pytest.param(value, marks=pytest.mark.grid)


@cache
def reference(*options: tuple[str, Any]) -> tuple[list[float], Iterator[float]]:
    return [], losses_alone(**dict(options))


def alone(steps: int, *options: tuple[str, Any]) -> list[float]:
    known, more = reference(*options)
    known += itertools.islice(more, max(0, steps - len(known)))
    return known[:steps]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = segments()
    yield
    assert not left_since(before)


def right(job: ElasticJob, *options: tuple[str, Any]) -> None:
    """All steps have the losses of one process; the ranks have the same model, and let go of all they held."""
    job.finish()
    assert not job.differences
    found = [job.losses[step] for step in range(job.step + 1)]
    assert found == pytest.approx(alone(len(found), *options), rel=TOLERANCE, abs=TOLERANCE)
    for one in job.ended:
        descriptors, mappings, threads = one.held[-1]
        assert mappings <= job.inherited and descriptors <= one.held[0][0] and threads == 1
    first, *others = [one.parameters for one in job.ended]
    assert all(np.array_equal(a, b) for other in others for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("zero", [on_demand(0), 1, 2])
def test_without_an_event(zero: int) -> None:
    job = ElasticJob(3, zero=zero, clip=0.5)
    job.look(until_step=3)
    right(job, ("clip", 0.5))
    assert len(job.ended) == 3 and set(job.live.values()) == {(0, 1, 2)}


@pytest.mark.parametrize("zero", [on_demand(0), 1, on_demand(2)])
def test_three_of_four_are_killed_one_after_another_and_come_back(zero: int) -> None:
    job = ElasticJob(4, zero=zero, pause_s=0.01)
    for _ in range(3):
        job.look(until_step=job.step + 4)
        job.kill(job.processes[0])
        job.look(until_step=job.step + 2)
    job.look_until_all_are_back()
    right(job)
    assert len(job.ended) == 4


@pytest.mark.parametrize("zero", [on_demand(0), 1])
def test_a_stopped_rank_is_left_out_and_comes_back(zero: int) -> None:
    job = ElasticJob(3, zero=zero, pause_s=0.01, optimizer="sgd")
    job.look(until_step=5)
    victim = job.processes[1]
    job.stop(victim)
    job.look(until_step=job.step + 4)
    assert len(job.live[job.step]) == 2
    job.wake(victim)
    job.look_until_all_are_back()
    right(job, ("optimizer", "sgd"))
    assert len(job.ended) == 3


@pytest.mark.grid
def test_a_short_stop_costs_no_rank_its_place() -> None:
    job = ElasticJob(2, pause_s=0.01)
    job.look(until_step=5)
    job.stop(job.processes[1])
    time.sleep(0.1)
    job.wake(job.processes[1])
    job.look(until_step=job.step + 2)
    job.look_until_all_are_back()
    right(job)


@pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts())
@pytest.mark.parametrize("host", [0, on_demand(2)])
def test_a_host_that_is_cut_off_is_left_out_and_comes_back(host: int) -> None:
    """Also the host that MASTER_ADDR names: two of three are a majority."""
    with hosts(3) as made:
        job = ElasticJob(3, zero=1, pause_s=0.01, hosts=made)
        try:
            job.look(until_step=5)
            made.cut(host)
            job.look_until_ranks_are(tuple(rank for rank in range(3) if rank != host))
            job.look(until_step=job.step + 2)
            made.mend(host)
            job.look_until_all_are_back()
            right(job)
        finally:
            job.close()
    assert len(job.ended) == 3


@pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts())
def test_all_ranks_that_came_late_on_other_hosts_do_not_wait_for_each_other() -> None:
    with hosts(2) as made:
        job = ElasticJob(2, pause_s=0.01, hosts=made)
        try:
            job.look(until_step=5)
            began_s = time.monotonic()
            job.stop(job.processes[1])
            job.look(1.0)
            job.wake(job.processes[1])
            job.look(until_step=job.step + 2)
            assert time.monotonic() - began_s < 30  # a call's patience is a minute
            job.look_until_all_are_back()
            right(job)
        finally:
            job.close()


def test_one_rank_is_left() -> None:
    job = ElasticJob(3, zero=1, copies=3, pause_s=0.01)
    job.look(until_step=5)
    for one in job.processes[:2]:
        job.kill(one, replace=False)
    right(job)
    assert len(job.ended) == 1 and len(job.live[job.step]) == 1


def test_state_whose_copies_are_all_lost_is_named() -> None:
    job = ElasticJob(4, zero=1, pause_s=0.01)
    job.look(until_step=5)
    for one in job.processes[1:3]:
        job.kill(one, replace=False)
    job.look(30.0)
    told = job.errors
    job.close()
    assert told and "all ranks that held a part of the optimizer's state were lost at once" in told[0]
    assert "keep more copies of it (copies=3)" in told[0]


def test_choreo_train_goes_on_without_a_rank() -> None:
    model = scaled(get_model("gpt2-124m"), "tiny")
    plan = Plan(dp=2, zero=1, micro_batch=2, precision="fp32")
    config = TrainConfig(model, plan, global_batch=8, seq=16, steps=12, elastic=True)
    losses: dict[int, float] = {}

    def alone(told: tuple[Any, ...]) -> None:
        losses[told[1]] = told[2]

    train_config(config, alone, 0.0)
    job = ElasticJob(2, pause_s=0.02, config=config)
    job.look(until_step=3)
    job.kill(job.processes[0], replace=False)
    job.finish()
    assert job.losses == pytest.approx(losses, rel=TOLERANCE)
    assert losses[11] < losses[0]


def test_other_plans_and_refusals() -> None:
    assert not TrainConfig(get_model("gpt2-124m"), Plan(dp=2, tp=2), elastic=True).survives
    with pytest.raises(UsageError, match="restarts must be"):
        choreo.train("gpt2-124m", scale="tiny", elastic=True, restarts=-1)
    model = torch.nn.Linear(1, 1)
    sgd = torch.optim.SGD(model.parameters())
    with pytest.raises(UsageError, match="zero must be 0, 1 or 2, not 3"):
        choreo.Elastic(model, sgd, zero=3)
    with choreo.Elastic(model, sgd) as job:
        steps = job.steps(2)
        next(steps)
        with pytest.raises(UsageError, match=r"job\.step\(\) comes after job\.backward\(\)"):
            job.step()
        with pytest.raises(UsageError, match="at least one sample"):
            job.backward(lambda i: model(torch.ones(1)), samples=[])
        with pytest.raises(UsageError, match=r"must be one number in a tensor, not 3\.0"):
            job.backward(lambda i: 3.0, samples=[0])
        with pytest.raises(UsageError, match="step 0 was not completed"):
            next(steps)


def random_events(job: ElasticJob, events: int) -> dict[str, int]:
    """Kills and stops at random moments; each waits until all are back, so that no two copies are lost at once."""
    counted = {"kill": 0, "stop": 0, "stop and kill": 0, "cut": 0}
    job.look(until_step=2)
    for _ in range(events):
        job.look(job.random.uniform(0, 0.2))
        kind = job.random.choices(list(counted), (6, 3, 1, 0 if job.hosts is None else 6))[0]
        counted[kind] += 1
        victim = job.random.choice(job.processes)
        if kind == "cut":
            job.cut(victim, job.random.uniform(0.1, 3.0))
        elif kind != "kill":
            job.stop(victim)
            job.look(job.random.uniform(0, 1.2))
            job.wake(victim)
        if "kill" in kind:
            job.kill(victim)
        job.look(until_step=job.step + 1)
        job.look_until_all_are_back()
    return counted


def chaos(ranks: int, events: int, seed: int, **options: Any) -> None:
    job = ElasticJob(ranks, seed=seed, pause_s=0.01, **options)
    random_events(job, events)
    assert not job.errors, job.errors[0]
    right(job)


def test_random_kills_and_stops() -> None:
    chaos(3, 4, seed=1, zero=1)


@pytest.mark.grid
@pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts())
@pytest.mark.parametrize("seed", range(3))
def test_random_kills_stops_and_cuts_between_hosts(seed: int) -> None:
    with hosts(3) as made:
        chaos(3, 10, seed, zero=seed, hosts=made)


@pytest.mark.grid
@pytest.mark.parametrize("seed", range(10))
def test_two_hundred_random_kills_and_stops(seed: int) -> None:
    chaos(2 + seed % 3, 20, seed, zero=seed % 3)


def test_other_plans_start_again_from_a_checkpoint_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the ranks, a launcher that reports; `choreo train` itself is tried by hand and in the benchmark."""
    ranks = importlib.import_module("choreo.train.launch")
    ran: list[TrainConfig] = []

    def launch(words: list[str], count: int, *, out: Any, err: Any, restarts: int, **_: Any) -> int:
        ran.append(TrainConfig.from_json(words[1]))
        assert (count, restarts) == (2, 0) and Path(ran[-1].checkpoint).is_dir()
        for step in range(2) if len(ran) < 3 else range(1, 4):
            out.put(f'[rank 0] choreo-train {{"step": {step}}}\n'.encode())
        err.put(b"choreo: rank 1 (pid 7) was killed by SIGKILL (9); the other rank was stopped\n")
        return 137 if len(ran) < 3 else 0

    monkeypatch.setattr(ranks, "launch", launch)
    config = TrainConfig(get_model("gpt2-124m"), Plan(tp=2), steps=4, elastic=True, restarts=2)
    told: list[dict[str, Any]] = []
    ranks.run_ranks(config, told.append)
    assert [one["step"] for one in told if "step" in one] == [0, 1, 0, 1, 1, 2, 3]
    assert [one["note"] for one in told if "note" in one] == [
        "rank 1 (pid 7) was killed by SIGKILL (9); the other rank was stopped; all ranks start again"
    ] * 2
    assert len({one.checkpoint for one in ran}) == 1 and ran[0].checkpoint_every == 1
    assert not Path(ran[0].checkpoint).exists()
    ran.clear()
    with pytest.raises(TrainingError, match=r"rank 1 .* was killed by SIGKILL"):
        ranks.run_ranks(replace(config, restarts=1), told.append)
    assert len(ran) == 2


@pytest.mark.grid
def test_a_tensor_parallel_run_whose_rank_is_killed_ends_with_the_same_losses(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    words = ["train", "gpt2-124m", "--scale=tiny", "-n2", "--tp=2", "--steps=40", "--seq=16", "--elastic", "--check"]
    with out.open("w") as stdout, err.open("w") as stderr:
        process = subprocess.Popen([sys.executable, "-m", "choreo", *words], stdout=stdout, stderr=stderr)
        assert eventually(lambda: " 5 " in out.read_text() or process.poll() is not None)
        killed = kill_a_rank_of(process.pid)
        assert process.wait(300) == 0, err.read_text()
    assert killed and "all ranks start again" in err.read_text()
    assert "losses are the same as with one process" in out.read_text()


def kill_a_rank_of(pid: int) -> bool:
    """Kill a process that this one has started to be a rank."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if (
                int(stat.read_text().rpartition(")")[2].split()[1]) == pid
                and b"choreo.train.rank" in stat.with_name("cmdline").read_bytes()
            ):
                os.kill(int(stat.parent.name), signal.SIGKILL)
                return True
    return False
