"""A whole run from one step: tokens, cost, failures; headroom, and the least number of devices."""

from __future__ import annotations

import math

import numpy as np
import pytest

from choreo.errors import PlanError, UsageError
from choreo.plan import least_gpus, plan
from choreo.plan.training_run import Failures, best_interval, training_run
from tests.helpers.command import run_choreo

JOB = ("--cluster", "hgx-h100", "--global-batch", "64", "--seq", "4096", "--tp", "1", "--pp", "1", "--cp", "1")
FAILING = ("--mtbf", "50000h")


def test_tokens_and_price() -> None:
    run = training_run(2.0, 1e6, 8, tokens=1e9, price_per_gpu_hour=3.0)
    assert run.steps == 1000
    assert run.days == pytest.approx(2000 / 86400)
    assert run.cost == pytest.approx(3.0 * 8 * 2000 / 3600)
    assert run.goodput == 1


@pytest.mark.parametrize(("mtbf_s", "checkpoint_s"), [(1e5, 10.0), (3600.0, 30.0), (60.0, 30.0)])
def test_the_best_interval_is_that_of_a_simulation(mtbf_s: float, checkpoint_s: float) -> None:
    interval, goodput = best_interval(mtbf_s, checkpoint_s, 0.0)
    if mtbf_s > 100 * checkpoint_s:
        assert interval == pytest.approx(math.sqrt(2 * checkpoint_s * mtbf_s), rel=0.1)  # Young's
    rng = np.random.default_rng(0)

    def simulated(work: float) -> float:
        """Seconds for a second of work: try until no failure comes before the checkpoint is written."""
        need, taken = work + checkpoint_s, 0.0
        for _ in range(4000):
            while (failed := rng.exponential(mtbf_s)) < need:
                taken += failed
            taken += need
        return taken / (4000 * work)

    assert 1 / simulated(interval) == pytest.approx(goodput, rel=0.06)
    assert simulated(interval) < 1.02 * min(simulated(interval / 3), simulated(interval * 3))


def test_more_devices_fail_more_often() -> None:
    few, many = (
        training_run(1.0, 1e6, gpus, tokens=1e12, parameters=4e11, failures=Failures(1.8e8)) for gpus in (64, 16384)
    )
    assert many.failure_s is not None
    assert many.failure_s == pytest.approx(1.8e8 / 16384)
    assert many.failures > few.failures
    assert 0.8 < many.goodput < 1


def test_headroom_is_kept() -> None:
    job = {"cluster": "hgx-h100", "gpus": 8, "global_batch": 64, "seq": 4096, "cp": 1, "pp": 1, "tp": 1}
    for headroom in (0.0, 0.1, 0.4):
        step = plan("llama3-8b", headroom=headroom, **job).best.step  # type: ignore[arg-type]
        assert step.memory_bytes <= (1 - headroom) * step.device_bytes
    with pytest.raises(UsageError, match="headroom must be a share"):
        plan("llama3-8b", headroom=10, **job)  # type: ignore[arg-type]


def test_the_least_number_of_devices() -> None:
    found = least_gpus("llama2-13b", cluster="hgx-h100", global_batch=64, seq=4096)
    assert found.gpus in (2, 4)
    half = plan("llama2-13b", cluster="hgx-h100", gpus=found.gpus // 2, global_batch=64, seq=4096).best.step
    assert half.memory_bytes > 0.9 * half.device_bytes


def test_a_batch_that_no_number_of_racks_divides_gets_a_power_of_two() -> None:
    fixed = {"tp": 1, "cp": 1, "pp": 4, "ep": 16}
    found = least_gpus("deepseek-v3", cluster="gb200-nvl72", global_batch=256, seq=4096, **fixed)
    assert found.gpus in (64, 128)
    with pytest.raises(PlanError, match="no number of devices of hgx-h100:1 up to 8 holds llama3-70b"):
        least_gpus("llama3-70b", cluster="hgx-h100:1", global_batch=16, seq=4096, tp=8)


def test_on_the_command_line() -> None:
    ran = run_choreo(
        "plan", "llama3-8b", *JOB, "--fit", "--tokens", "1T", "--price-per-gpu-hour", "2", "--mtbf", "50000h"
    )
    assert ran.code == 0, ran.err
    assert "1 T tokens in" in ran.out
    assert "goodput 100.0 %" in ran.out or "goodput 99." in ran.out
    wrong = run_choreo("plan", "llama3-8b", *JOB, "--fit", "--gpus", "8")
    assert "--fit finds how many GPUs are needed" in wrong.err
    assert "is not a share" in run_choreo("plan", "llama3-8b", *JOB, "--gpus", "8", "--headroom", "much").err


def test_a_job_that_gets_nowhere_is_told_that_the_mtbf_is_of_one_device() -> None:
    with pytest.raises(UsageError, match=r"mtbf is that of one device: with 10800 s, one of 512 fails every 21\.1 s"):
        training_run(10.0, 4e6, 512, tokens=1e12, parameters=7e10, failures=Failures(10800.0))
