"""Trees that are ripped up and grown anew: right, in gaps that are there, and faster than what they began with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import choreo
import choreo.synthesize.improvers.rerouted as module
from choreo.compiled import import_compiled
from choreo.schedule import pipelined
from choreo.synthesize import search
from choreo.synthesize.improvers.rerouted import rerouted
from choreo.synthesize.problem import Candidate, Problem, read_problem
from choreo.synthesize.timeline import CORE

pytestmark = pytest.mark.skipif(import_compiled(CORE) is None, reason="nothing is compiled")

NETWORKS = (
    "ring(5, 50GB/s, 1us, overhead=100ns)",
    "mesh(3x3, 50GB/s, 500ns, overhead=100ns)",
    "torus(4x2, 50GB/s, 500ns)",
    "switch(4, 200GB/s, 200ns, overhead=100ns) x switch(2, 25GB/s, 350ns, overhead=1us)",
)
KINDS = ("broadcast", "reduce", "all_gather", "reduce_scatter")


def _problem(collective: str, network: str, size: int | str, **options: Any) -> Problem:
    return read_problem(collective, network, size, **{"ranks": None, "root": None, "effort": "medium"} | options)


@settings(max_examples=30)
@given(st.sampled_from(NETWORKS), st.sampled_from(KINDS), st.integers(1, 1 << 20), st.integers(0, 4))
def test_schedules_are_right_and_no_faster_than_the_bound(network: str, collective: str, size: int, root: int) -> None:
    rooted = collective in ("broadcast", "reduce")
    problem = _problem(collective, network, size, root=root if rooted else None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MESSAGES", 1e5)
        found = list(rerouted(problem, []))
    assert found
    for one in found[-2:]:
        choreo.prove(one.schedule)
        time_s = choreo.simulate(one.schedule, network, size).time_s
        assert time_s >= problem.bound().bound_s * (1 - 1e-9)


@pytest.mark.parametrize("network", NETWORKS)
def test_what_grows_runs_as_planned_where_nothing_costs_a_device_time(network: str) -> None:
    """With nothing else in the way, the simulation of one chunk is the plan."""
    problem = _problem("broadcast", network, "4KiB")
    searching = module._Search(problem, import_compiled(CORE))
    (plan,) = list(searching.begun())
    simulated = choreo.simulate(searching.schedule(plan), network, "4KiB").time_s
    assert simulated == pytest.approx(plan.end_s)


@pytest.mark.parametrize("collective", KINDS)
def test_a_given_schedule_is_taken_with_its_trees(collective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MESSAGES", 0)
    network = "ring(6, 50GB/s, 1us, overhead=100ns)"
    problem = _problem(collective, network, "256KiB")
    algorithm = "mst" if collective in ("broadcast", "reduce") else "ring"
    schedule = pipelined(choreo.build(collective, algorithm, 6), 4)
    searching = module._Search(problem, import_compiled(CORE))
    plan = searching.given(schedule)
    assert plan is not None
    one, other = (
        {*zip(rows.src.tolist(), rows.dst.tolist(), rows.chunk.tolist(), strict=True)}
        for rows in (schedule.columns(), searching.schedule(plan).columns())
    )
    assert one == other


def test_what_is_none_of_trees_is_not_taken() -> None:
    problem = _problem("broadcast", "ring(4, 50GB/s, 1us)", "64KiB")
    searching = module._Search(problem, import_compiled(CORE))
    assert searching.given(choreo.build("broadcast", "mst", 4)) is not None
    assert searching.given(choreo.build("broadcast", "ring", 4)) is None  # some get a chunk twice
    assert searching.given(choreo.build("all_gather", "ring", 4)) is None


def test_devices_far_from_all_others_are_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest others of each device are in its own server."""
    monkeypatch.setattr(module, "NEAREST", 1)
    monkeypatch.setattr(module, "MESSAGES", 1e5)
    network = "fully_connected(2, 50GB/s, 100ns) x switch(3, 25GB/s, 1us)"
    for one in rerouted(_problem("broadcast", network, "64KiB"), []):
        choreo.prove(one.schedule)


@pytest.mark.parametrize(
    "network", ["torus(4x4, 50GB/s, 1us, overhead=100ns)", "mesh(4x4, 100GB/s, 500ns, overhead=100ns)"]
)
def test_a_broadcast_along_rings_and_lines_gains(network: str) -> None:
    best, quick = (search("broadcast", network, "256KiB", effort=effort) for effort in ("medium", "low"))
    assert best.time_s < 0.98 * quick.time_s
    assert "rerouted" in best.generator


def test_it_begins_with_what_it_is_given_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a change the plan is the given schedule, put in time."""
    monkeypatch.setattr(module, "MESSAGES", 0)
    network = "mesh(3x3, 50GB/s, 500ns, overhead=100ns)"
    schedule = pipelined(choreo.build("broadcast", "mst", 9), 4)
    found = list(rerouted(_problem("broadcast", network, "1MiB"), [Candidate("library", schedule)]))
    times = [choreo.simulate(one.schedule, network, "1MiB").time_s for one in found]
    assert min(times) <= choreo.simulate(schedule, network, "1MiB").time_s * (1 + 1e-9)


def test_the_compiled_search_refuses_columns_that_do_not_fit() -> None:
    problem = _problem("broadcast", "ring(4, 50GB/s, 1us)", "64KiB")
    core = import_compiled(CORE)
    assert core is not None
    searching = module._Search(problem, core)
    (plan, *_) = searching.begun()
    root = np.zeros(1, np.int64)
    given = (root, plan.bytes, plan.passing, plan.leaving, plan.parent, plan.start_s, *searching.columns)
    rest = (*searching.figures, 0, 1)
    core.reroute_trees(*given, *rest)
    wrong = {
        0: np.array([4]),
        1: np.ones(2),
        4: np.array([0, 2, 1, 0]),  # 1 and 2 have the chunk from each other
        5: np.zeros(3),
        6: np.zeros(3),
        7: searching.columns[1][::-1].copy(),
        8: searching.columns[2] + 100,
        13: searching.columns[-1][:-1].copy(),
    }
    for at, column in wrong.items():
        columns = [*given[:at], column, *given[at + 1 :]]
        with pytest.raises(ValueError, match="do not fit"):
            core.reroute_trees(*columns, *rest)


@pytest.mark.parametrize(
    ("collective", "options"),
    [("all_to_all", {}), ("all_gather", {"shares": [1, 2, 3, 4]}), ("scatter", {"root": 0})],
)
def test_other_problems_are_left_to_others(collective: str, options: dict[str, Any]) -> None:
    assert not list(rerouted(_problem(collective, "ring(4, 50GB/s, 1us)", "64KiB", **options), []))
