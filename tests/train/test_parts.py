"""Where the time of a step goes: what counts as sending, and what as waiting."""

from __future__ import annotations

import time

import pytest

from choreo.train.result import TrainingRun, TrainingStep
from choreo.workload import Plan
from tests.helpers.suite.torch import torch


def test_waiting_until_a_message_is_taken_is_bubble_but_for_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch is not None
    from choreo.train.rank import parts

    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    clock = parts.Clock(lambda *_: "pp")
    clock.begin()
    for size_bytes, waited_s in ((100, 0.5), (100, 0.25), (100, 2.25), (800, 1.0)):
        start_s, now[0] = now[0], now[0] + waited_s
        clock.count_send(size_bytes, start_s)
    now[0] += 3.0
    spent = clock.end()
    assert spent == {"time": 7.0, "compute": 3.0, "bubble": 2.0, "pp send": 0.5 + 0.25 + 0.25 + 1.0}
    assert [(one.name, one.end_s - one.start_s) for one in clock.spans] == [
        ("pp send", 0.5),
        ("pp send", 0.25),
        ("pp send", 0.25),
        ("pp send", 1.0),
    ]


def test_a_rank_that_is_early_for_a_collective_waits_for_stragglers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch is not None
    import torch.distributed as dist

    from choreo.train.rank import parts

    now, took_s = [0.0], iter((0.5, 0.25, 1.0, 2.0))

    def all_reduce(tensor: object, op: object = None, group: object = None) -> None:
        now[0] += next(took_s)

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    clock = parts.Clock(lambda *_: "tp")
    clock.begin()
    with clock.listening():
        for size in (100, 100, 100):
            dist.all_reduce(torch.zeros(size))
        dist.all_reduce(tensor=torch.zeros(200))  # of another size
    now[0] += 3.0
    spent = clock.end()
    assert spent == {"time": 6.75, "compute": 3.0, "stragglers": 0.75, "tp all_reduce": 0.5 + 0.25 + 0.25 + 2.0}


def test_exchanges_of_similar_sizes_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts get other numbers of tokens in every step: the shortest exchange of about that size counts."""
    assert torch is not None
    import torch.distributed as dist

    from choreo.train.rank import parts

    now, took_s = [0.0], iter((0.25, 0.5, 2.0))

    def all_to_all_single(output: object, given: object, group: object = None) -> None:
        now[0] += next(took_s)

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(dist, "all_to_all_single", all_to_all_single)
    clock = parts.Clock(lambda *_: "ep")
    clock.begin()
    with clock.listening():
        for size in (100, 70, 300):
            dist.all_to_all_single(torch.zeros(size), torch.zeros(size))
    spent = clock.end()
    assert spent == {"time": 2.75, "compute": 0.0, "stragglers": 0.25, "ep all_to_all": 0.25 + 0.25 + 2.0}


def test_what_ranks_wait_in_collectives_and_at_the_end_are_stragglers() -> None:
    assert torch is not None
    from types import SimpleNamespace
    from typing import Any

    from choreo.train.rank.loop import _summed_up

    task: Any = SimpleNamespace(units=8, flops=1.0)
    told = [
        {"time": 1.0, "loss": 1.0, "compute": 0.5, "stragglers": 0.5, "core_wait_s": 0.25},
        {"time": 1.5, "loss": 1.0, "compute": 1.5, "core_wait_s": 0.75},
    ]
    step = _summed_up(task, 0, told, 1.0)
    assert step["parts"] == {"compute": 1.0, "stragglers": 0.25 + 0.25}
    assert sum(step["parts"].values()) == step["time_s"] == 1.5
    assert step["core_wait_s"] == 0.5


@pytest.mark.parametrize(("times_s", "wanted"), [([9, 2, 30, 3], 3.0), ([9, 2, 30, 4, 3], 3.5), ([9], 9.0)])
def test_the_parts_of_a_run_add_up_to_the_step_that_it_names(times_s: list[float], wanted: float) -> None:
    steps = tuple(
        TrainingStep(k, 1.0, 1.0, time_s, None, 0.1, {"compute": time_s / 2, "bubble": time_s / 2})
        for k, time_s in enumerate(times_s)
    )
    run = TrainingRun("gpt2-124m", Plan(), 1, "cpu", "choreo", 1, 8, steps, 1e6)
    assert (run.time_s, run.parts) == (wanted, {"compute": wanted / 2, "bubble": wanted / 2})
