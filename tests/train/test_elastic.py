"""`choreo.Elastic`: ranks are killed, stopped and replaced, and the losses are those of an undisturbed run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.helpers.elastic import ElasticJob, losses_alone
from tests.helpers.faults import eventually, segments

TOLERANCE = 1e-6


@cache
def alone(steps: int, *options: tuple[str, Any]) -> list[float]:
    return losses_alone(steps, zero=0, **dict(options))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = segments()
    yield
    assert eventually(lambda: segments() <= before)


def right(job: ElasticJob, *options: tuple[str, Any]) -> None:
    """All steps have the losses of one process; the ranks have the same model, and let go of all they held."""
    job.finish()
    assert not job.differences
    assert [job.losses.get(step) for step in range(job.steps)] == pytest.approx(
        alone(job.steps, *options), rel=TOLERANCE, abs=TOLERANCE
    )
    for one in job.ended:
        descriptors, mappings, threads = one.held[-1]
        assert mappings == 0 and descriptors <= one.held[0][0] and threads == 1
    first, *others = [one.parameters for one in job.ended]
    assert all(np.array_equal(a, b) for other in others for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_without_an_event(zero: int) -> None:
    job = ElasticJob(3, 6, zero=zero, clip=0.5)
    right(job, ("clip", 0.5))
    assert len(job.ended) == 3 and set(job.live.values()) == {(0, 1, 2)}


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_three_of_four_are_killed_one_after_another_and_come_back(zero: int) -> None:
    job = ElasticJob(4, 40, zero=zero, pause_s=0.01)
    for number in range(3):
        job.look(until_step=6 + 10 * number)
        job.kill(job.processes[0])
        job.look(until_step=job.step + 2)
    right(job)
    assert len(job.ended) == 4


@pytest.mark.parametrize("zero", [0, 1])
def test_a_stopped_rank_is_left_out_and_comes_back(zero: int) -> None:
    job = ElasticJob(3, 60, zero=zero, pause_s=0.01, optimizer="sgd")
    job.look(until_step=5)
    victim = job.processes[1]
    job.stop(victim)
    job.look(until_step=job.step + 4)
    assert len(job.live[job.step]) == 2
    job.wake(victim)
    right(job, ("optimizer", "sgd"))
    assert len(job.ended) == 3 and len(job.live[59]) == 3


def test_a_short_stop_costs_nobody_its_place() -> None:
    job = ElasticJob(2, 30, pause_s=0.01)
    job.look(until_step=5)
    job.stop(job.processes[1])
    time.sleep(0.1)
    job.wake(job.processes[1])
    right(job)


def test_one_rank_is_left() -> None:
    job = ElasticJob(3, 30, zero=1, copies=3, pause_s=0.01)
    job.look(until_step=5)
    for one in job.processes[:2]:
        job.kill(one, replace=False)
    right(job)
    assert len(job.ended) == 1 and len(job.live[29]) == 1


def test_state_whose_copies_are_all_lost_is_named() -> None:
    job = ElasticJob(4, 1000, zero=1, pause_s=0.01)
    job.look(until_step=5)
    for one in job.processes[1:3]:
        job.kill(one, replace=False)
    job.look(30.0)
    told = job.errors
    job.close()
    assert told and "all ranks that held a part of the optimizer's state were lost at once" in told[0]
    assert "keep more copies of it (copies=3)" in told[0]


def random_events(job: ElasticJob, events: int) -> dict[str, int]:
    """Kills and stops at random moments; each waits until all are back, so that no two copies are lost at once."""
    counted = {"kill": 0, "stop": 0, "stop and kill": 0}
    for _ in range(events):
        job.look(job.random.uniform(0, 0.2))
        kind = job.random.choices(list(counted), (6, 3, 1))[0]
        counted[kind] += 1
        victim = job.random.choice(job.processes)
        if kind != "kill":
            job.stop(victim)
            job.look(job.random.uniform(0, 1.2))
            job.wake(victim)
        if kind != "stop":
            job.kill(victim)
        job.look(until_step=job.step + 1)
        end_s = time.monotonic() + 60
        while (len(job.live[job.step]) < job.ranks or len(job.processes) > job.ranks) and not job.errors:
            job.look(0.01)
            assert time.monotonic() < end_s, f"not all came back: {job.live[job.step]}"
    return counted


def chaos(ranks: int, events: int, seed: int, **options: Any) -> None:
    """Steps are short, so that a job goes on until enough has happened."""
    steps = 100 * events
    job = ElasticJob(ranks, steps, seed, pause_s=0.01, **options)
    random_events(job, events)
    stop_at = job.step
    assert not job.errors, job.errors[0]
    assert not job.differences
    found = [job.losses[step] for step in range(stop_at + 1)]
    job.close()
    assert found == pytest.approx(alone(stop_at + 1), rel=TOLERANCE, abs=TOLERANCE)


@pytest.mark.parametrize("zero", [0, 1])
def test_random_kills_and_stops(zero: int) -> None:
    chaos(3, 4, seed=zero, zero=zero)


@pytest.mark.grid
@pytest.mark.parametrize("seed", range(10))
def test_two_hundred_random_kills_and_stops(seed: int) -> None:
    chaos(2 + seed % 3, 20, seed, zero=seed % 3)
