"""Mistakes in what is simulated end in a sentence, and numbers of any kind are taken or refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from choreo.algorithms import build
from choreo.errors import UsageError
from choreo.schedule import Schedule, Steps, move
from choreo.simulate import Job, Simulation, simulate, simulate_together
from choreo.topology import Links, compose, get_topology, graph, ring
from tests.helpers.simulate import CORES, close, needs_compiler

RING = build("all_reduce", "ring", 4)
CRAWLING = compose("crawling", [ring(4, 1e-100, 0.0)])


def at(size: object = 1000, gamma: object = 0.0, start: object = 0.0, **more: Any) -> Simulation:
    job = Job(RING, size, more.pop("placement", None), start)  # type: ignore[arg-type]
    return simulate_together([job], "ring(4, 1GB/s)", gamma_s_per_byte=gamma, **more)  # type: ignore[arg-type]


NO_NUMBERS = [-1, -1e-30, math.nan, math.inf, 1e101, 10**400, None, 1j, [1]]
MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    **{f"size {v!r:.9}": (partial(at, size=v), "^size_bytes must be a number of at least 0") for v in NO_NUMBERS},
    **{f"gamma {v!r:.9}": (partial(at, gamma=v), "^gamma_s_per_byte must be a number") for v in NO_NUMBERS},
    **{f"start {v!r:.9}": (partial(at, start=v), "^start_s must be a time of at least 0") for v in NO_NUMBERS},
    "no size": (lambda: at(size="1 megabyte"), "^'1 megabyte' is not a size"),
    "a time without a unit": (lambda: at(start="5"), "^'5' is not a time: its unit is missing; write 5us or 5s"),
    "no device": (lambda: at(placement=["0", "1", "2", "z"]), "has no node 'z'; devices are 0 to 3"),
    "too few places": (lambda: at(placement=[0, 1, 2]), "3 devices for 4 ranks; give one per rank$"),
    "too many places": (lambda: at(placement=[0, 1, 2, 3, 3]), "5 devices for 4 ranks; give one per rank$"),
    "twice": (lambda: at(placement=[0, 1, 2, 1]), "rank 1 and rank 3 on device 1; one rank per device$"),
    "outside": (lambda: at(placement=[0, 1, 2, 4]), "rank 3 cannot be on device 4: .* devices 0 to 3$"),
    "negative": (lambda: at(placement=[0, 1, 2, -1]), "rank 3 cannot be on device -1"),
    "no whole numbers": (
        lambda: at(placement=[0.0, 1.0, 2.0, 3.0]),
        "^a placement is a list of devices, numbers",
    ),
    "a table": (lambda: at(placement=[[0, 1], [2, 3]]), "^a placement is a list of devices, numbers"),
    "ragged": (lambda: at(placement=[[0, 1], 2, 3, 0]), "^a placement is a list of devices, numbers"),
    "a text": (lambda: at(placement="0123"), "^a placement is a list of devices, numbers"),
    "more ranks": (lambda: simulate(RING, "ring(3)", 1), "^4 ranks do not fit on ring.*, which has 3 devices$"),
    "no schedule": (lambda: simulate("ring", "ring(3)", 1), "only a Schedule .* not str; choreo.build"),  # type: ignore[arg-type]
    "no network": (lambda: simulate(RING, 3, 1), "a topology is a text, a path or a Topology"),  # type: ignore[arg-type]
    "no job": (lambda: simulate_together([], "ring(4)"), "give a list of at least one Job$"),
    "no list": (lambda: simulate_together(Job(RING, 1), "ring(4)"), "list of at least one Job"),  # type: ignore[arg-type]
    "no Jobs": (lambda: simulate_together([RING], "ring(4)"), "list of Jobs, not of Schedule$"),  # type: ignore[list-item]
    "for ever": (lambda: simulate(RING, CRAWLING, 1e50), "^ring takes longer than can be counted on crawling"),
    "for ever, shared": (lambda: simulate(build("all_reduce", "direct", 4), CRAWLING, 1e50), "^direct takes longer"),
}


@pytest.mark.parametrize(("mistake", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_reported_in_a_sentence(mistake: Callable[[], object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        mistake()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@needs_compiler
def test_a_run_beyond_memory_is_reported_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHOREO_LIMIT", "1GiB")  # for the network; the run asks for more
    schedule = build("all_reduce", "ring", 1 << 20)
    with pytest.raises(UsageError, match=r"^all_reduce .* 1048576 ranks .*; use fewer ranks or chunks$"):
        simulate(schedule, "ring(1048576)", 1, compiled=True)


def test_a_gamma_beyond_counting_does_not_hang() -> None:
    slow = get_topology("ring(4)").with_slow_device(1, 1e300)
    with pytest.raises(UsageError, match="to reduce a byte takes longer than can be counted"):
        simulate(RING, slow, 0, gamma_s_per_byte=1e50)


def test_numbers_of_any_kind() -> None:
    wanted = at().time_s
    for size in (1000.0, np.int64(1000), np.float32(1000), np.float64(1000)):
        assert at(size=size).time_s == wanted
    assert at(placement=np.arange(4, dtype=np.uint8)).time_s == wanted
    links = Links(np.arange(3), (np.arange(3) + 1) % 3, np.full(3, 10**9), np.full(3, 2))
    whole = compose("whole numbers", [graph(3, links)])
    assert at(size=0, start=np.float32(2)).time_s == 2.0
    for core in CORES:
        both = [[move(0, 1, 0), move(0, 2, 1)]]
        found = simulate(
            Schedule.from_list("broadcast", 3, both, num_chunks=2), whole, 2 * 10**9, compiled=core == "compiled"
        )
        assert found.time_s == close(6.0)  # both cross the first link, and one the second, each with 2 s of latency
    narrow = RING.columns()
    table = replace(narrow, src=narrow.src.astype(np.int32), chunk=narrow.chunk.astype(np.uint8))
    schedule = Schedule("all_reduce", Steps.from_transfers(4, 4, RING.num_steps, table))
    assert simulate(schedule, "ring(4, 1GB/s)", 1000).time_s == wanted
