"""How sure a prediction is: which published steps speak for a job, and which plans are equal."""

from __future__ import annotations

import pytest

from choreo.plan import plan
from choreo.plan.how_sure.how_sure import FEWEST, UNKNOWN, errors_of, fits_chance
from choreo.plan.job import TrainingJob
from choreo.plan.network import get_cluster
from choreo.plan.software import get_software
from choreo.plan.step import evaluate
from choreo.workload import Plan, get_model


def job(
    model: str = "llama3-8b", cluster: str = "hgx-h100", software: str = "nemo", precision: str = "bf16"
) -> TrainingJob:
    place = get_cluster(cluster)
    return TrainingJob(get_model(model), 8, 16, 4096, place, place.chip(), get_software(software), precision)


def test_the_most_alike_speak_for_a_job() -> None:
    assert errors_of(job()).time_like.endswith("steps: hopper, bf16, nemo, dense")
    assert errors_of(job("mixtral-8x7b", software="torchtitan")).time_like.endswith(": torchtitan")
    # A program that nobody measured is as uncertain as all dense models together.
    strange = errors_of(job(software="colossal-ai", cluster="dgx-2"))
    assert strange.time_like.endswith(": dense")
    assert 0.02 <= strange.time <= UNKNOWN.time
    assert errors_of(job("mixtral-8x7b")).time > errors_of(job()).time


@pytest.mark.parametrize("cluster", ["mi300x", "gaudi-3", "trn2", "tpu-v5p"])
def test_times_on_a_device_that_nobody_measured_are_a_guess(cluster: str) -> None:
    errors = errors_of(job(cluster=cluster, software="megatron-core"))
    assert (errors.time, errors.compared) == (UNKNOWN.time, False)
    assert errors.time_like == f"no published step on {get_cluster(cluster).chip().architecture}"
    assert errors.memory < UNKNOWN.memory  # which programs take, whatever the device
    assert errors_of(job()).compared


def test_nine_of_ten_are_told_from_nine_steps_or_more() -> None:
    for one in (job(), job("mixtral-8x7b"), job(software="nanotron"), job(cluster="hgx-b200", precision="fp8")):
        errors = errors_of(one)
        assert all(int(like.split()[0]) >= FEWEST >= 9 for like in (errors.time_like, errors.memory_like))


def test_ranges_are_in_the_result_and_hold_what_is_predicted() -> None:
    step = evaluate("llama3-8b", Plan(dp=8, zero=1), cluster="hgx-h100", global_batch=16, seq=4096, software="nemo")
    low, high = step.step_time_range_s
    assert low < step.step_time_s < high == pytest.approx(step.step_time_s * (1 + step.errors.time))
    assert step.memory_range_bytes[0] < step.memory_bytes < step.memory_range_bytes[1]
    told = step.to_dict()
    assert told["step_time_range_s"] == [low, high] or tuple(told["step_time_range_s"]) == (low, high)
    assert 0 <= told["fits_chance"] <= 1
    # Kernels are what compute is made of.
    assert sum(step.kernels.values()) == pytest.approx(step.parts["compute"] + step.parts["recompute"], rel=0.05)
    assert set(step.kernels) == {"matmuls", "attention", "memory-bound"}


def test_the_chance_to_fit_falls_as_memory_fills() -> None:
    chances = [fits_chance(used, 80e9, 0.1) for used in (40e9, 72e9, 80e9, 88e9, 120e9)]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] > 0.999
    assert chances[2] == 0.5
    assert chances[-1] < 0.001
    assert fits_chance(0.0, 80e9, 0.1) == 1


def test_plans_whose_ranges_overlap_are_equal() -> None:
    found = plan("llama3-8b", cluster="hgx-h100", gpus=8, global_batch=16, seq=4096, software="nemo", pp=1, zero=1)
    best = found.best.step.step_time_range_s[1]
    assert found.equal == sum(one.step.step_time_range_s[0] <= best for one in found.plans)
    assert found.to_dict()["equal"] == found.equal >= 1
    # What compute is made of is said of every plan.
    assert all(set(one["kernels"]) == {"matmuls", "attention", "memory-bound"} for one in found.to_dict()["plans"])
