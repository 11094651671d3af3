"""Annealed forests: right, better than where they begin, and as fast as planned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import choreo
import choreo.synthesize.generators.forested as module
from choreo.compiled import import_compiled
from choreo.synthesize.annealing.forests import Forests, Ground
from choreo.synthesize.generators.forested import forested
from choreo.synthesize.problem import Problem, read_problem
from choreo.synthesize.symmetry import symmetry_of
from choreo.synthesize.timeline import CORE

# One server and several, with all kinds of insides; the last ones add and multicast.
NETWORKS = [
    "fully_connected(5, 50GB/s, 1us, overhead=100ns)",
    "switch(4, 200GB/s, 200ns, overhead=100ns) x switch(2, 25GB/s, 1us, overhead=1us)",
    "fully_connected(3, 40GB/s, 500ns) x switch(4, 25GB/s, 1us, overhead=500ns)",
    "switch(2, 90GB/s, 200ns, overhead=100ns) x fully_connected(3, 25GB/s, 1us, overhead=1us)",
    "switch(4, 200GB/s, 200ns, overhead=100ns, reduces) x switch(2, 50GB/s, 1us, overhead=1us)",
    "switch(3, 200GB/s, 200ns, overhead=100ns, reduces) x switch(3, 50GB/s, 1us, overhead=1us)",
    "switch(3, 200GB/s, 200ns, overhead=100ns, reduces) x switch(4, 50GB/s, 1us, overhead=1us)",
]
compiled = pytest.mark.skipif(import_compiled(CORE) is None, reason="nothing is compiled")


def _problem(collective: str, network: str, size: str = "256KiB") -> Problem:
    return read_problem(collective, network, size, ranks=None, root=None, effort="medium")


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_reduce"])
@pytest.mark.parametrize("network", NETWORKS)
def test_schedules_are_right_and_faster_than_direct_ones(
    network: str, collective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TASKS", 1_000_000)
    problem = _problem(collective, network)
    made = list(forested(problem))
    assert made
    for one in made:
        choreo.prove(one.schedule)
    least = min(choreo.simulate(one.schedule, problem.topology, problem.size_bytes).time_s for one in made)
    assert least >= problem.bound().bound_s * (1 - 1e-9)
    direct = choreo.build(collective, "direct", problem.ranks)
    assert least <= choreo.simulate(direct, problem.topology, problem.size_bytes).time_s * (1 + 1e-9)


@pytest.mark.parametrize("network", NETWORKS)
def test_the_time_of_a_plan_is_that_of_its_simulation(network: str) -> None:
    problem = _problem("all_reduce", network)
    symmetry = symmetry_of(problem.topology)
    assert symmetry is not None
    for field in module._fields(problem, symmetry):
        planting = module._Planting(problem, symmetry, field)
        for forests, start in list(planting.starts())[:4]:
            plan = forests.run(start, 300)
            schedule = planting.schedule(forests, plan)
            assert schedule is not None
            choreo.prove(schedule)
            found_s = choreo.simulate(schedule, problem.topology, problem.size_bytes).time_s
            assert found_s == pytest.approx(plan.end_s, rel=0.15)


@compiled
def test_annealing_finds_better_plans() -> None:
    problem = _problem("reduce_scatter", "hls-1:2", "1MiB")
    symmetry = symmetry_of(problem.topology)
    assert symmetry is not None
    *_, field = module._fields(problem, symmetry)
    starts = list(module._Planting(problem, symmetry, field).starts())
    first_s = min(plan.end_s for _, plan in starts)
    assert min(forests.run(plan, 3000).end_s for forests, plan in starts) < 0.95 * first_s


@compiled
def test_the_compiled_search_returns_the_best_plan_that_it_has_seen() -> None:
    problem = _problem("all_reduce", NETWORKS[4])
    symmetry = symmetry_of(problem.topology)
    assert symmetry is not None
    for field in module._fields(problem, symmetry):
        forests, start = list(module._Planting(problem, symmetry, field).starts())[4]
        found = []
        for plans in (1, 30, 1000, 1000):
            same = Forests(forests.ground, forests.roots, forests.partner, forests.block, inward=True, outward=True)
            found.append(same.run(start, plans))
        assert all(one.end_s <= start.end_s for one in found)
        assert np.array_equal(found[2].parent, found[3].parent)
        assert np.array_equal(found[2].order, found[3].order)
        assert all(one.chunk_bytes.sum() == pytest.approx(start.chunk_bytes.sum()) for one in found)
        for one in found:  # the twin in Python puts it in time as the compiled loop does
            again = forests.planned(one)
            assert (again.end_s, again.start_s.tolist()) == (one.end_s, one.start_s.tolist())


@compiled
def test_the_compiled_search_refuses_what_is_no_forest() -> None:
    three = Ground(
        members=3,
        devices=3,
        way_of=np.array([[0, 2, 2], [1, 0, 2], [1, 1, 0]]),
        bandwidth_bytes_per_s=np.ones(2),
        latency_s=np.ones(2),
        costs_s=np.zeros((4, 2)),
        payers=np.zeros((2, 2), np.int64),
        offsets=np.array([0, 1, 2]),
        lanes=np.array([0, 1]),
        num_lanes=2,
    )
    none = np.zeros((0, 1), np.int64)
    forests = Forests(three, np.zeros((1, 1), np.int64), none, np.zeros(1, np.int64), inward=False, outward=True)
    plan = forests.planted(np.array([-1, 0, 1]), np.arange(3.0), np.array([8192.0]), 1.0, 0.0)
    assert forests.run(plan, 10).end_s <= plan.end_s
    for parents in ([-1, 2, 1], [-1, 0, 7], [-1, 0, -1], [-1, 0], [1, 0, 0]):
        with pytest.raises(ValueError, match="do not fit"):
            forests.run(replace(plan, parent=np.array(parents)), 10)


def test_networks_of_other_kinds_are_left_to_others() -> None:
    for network in ("torus(4x4, 50GB/s, 1us)", "dgx-1:2", "switch(2, 50GB/s, 1us)"):
        assert not list(forested(_problem("all_gather", network)))
    assert not list(forested(_problem("all_gather", NETWORKS[0], "64MiB")))
    assert not list(forested(_problem("broadcast", NETWORKS[0])))
