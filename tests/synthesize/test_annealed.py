"""Trees with messages past devices: right, faster than all straight from their source, and as fast as planned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import choreo
import choreo.synthesize.generators.annealed as module
from choreo.compiled import import_compiled
from choreo.schedule import Schedule, Steps, Transfers
from choreo.synthesize.annealing.exchanges import Exchanges, roots_of
from choreo.synthesize.annealing.paths import Paths
from choreo.synthesize.annealing.search import Plan
from choreo.synthesize.annealing.trees import Trees
from choreo.synthesize.annealing.ways import Ways
from choreo.synthesize.generators.annealed import annealed
from choreo.synthesize.problem import read_problem
from choreo.synthesize.symmetry import symmetry_of
from choreo.synthesize.timeline import CORE
from choreo.synthesize.translation.growth import Spread
from choreo.topology.graph import Ints

# A ring of an odd and of an even number, where ties are broken one way, and one within servers.
NETWORKS = [
    "ring(5, 50GB/s, 1us, overhead=100ns)",
    "torus(4x3, 50GB/s, 1us, overhead=100ns)",
    "ring(4, 90GB/s, 1us, overhead=100ns) x switch(2, 40GB/s, 1us, overhead=200ns)",
]


@pytest.mark.parametrize("network", NETWORKS)
def test_the_figures_of_ways_are_those_of_messages_that_all_devices_send(network: str) -> None:
    topology = choreo.get_topology(network)
    symmetry = symmetry_of(topology)
    assert symmetry is not None
    ways = Ways.of(topology, symmetry)
    devices = np.arange(topology.num_devices)
    for offset in devices[1:].tolist():
        there = symmetry.shifted(devices, np.array([offset]))
        assert (ways.offset_of[there, devices] == offset).all()
        rows = [(0, a, b, a) for a, b in zip(devices.tolist(), there.tolist(), strict=True)]
        schedule = Schedule("all_gather", _steps(len(devices), rows))
        size = 1e6 * len(devices)
        found = choreo.simulate(schedule, topology, size).time_s
        way = offset - 1
        alone_s = 1e6 / ways.bandwidth_bytes_per_s[way] + ways.latency_s[way] + ways.costs_s[[0, 2], way].sum()
        assert found == pytest.approx(alone_s)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all"])
@pytest.mark.parametrize("network", NETWORKS)
def test_schedules_are_right_and_faster_than_direct_ones(
    network: str, collective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PLANS", 600)
    problem = read_problem(collective, network, "64KiB", ranks=None, root=None, effort="medium")
    made = list(annealed(problem))
    assert made
    for one in made:
        choreo.prove(one.schedule)
    least = min(choreo.simulate(one.schedule, network, "64KiB").time_s for one in made)
    direct = choreo.build(collective, "direct", problem.ranks)
    assert least <= choreo.simulate(direct, network, "64KiB").time_s * (1 + 1e-9)


def test_annealing_finds_better_plans() -> None:
    topology = choreo.get_topology("torus(4x4, 50GB/s, 1us, overhead=100ns)")
    symmetry = symmetry_of(topology)
    assert symmetry is not None
    ways = Ways.of(topology, symmetry)
    paths = Paths(ways, symmetry, 16384)
    assert paths.run(paths.direct(), 2000).end_s < 0.95 * paths.direct().end_s
    for inward in (False, True):
        trees = Trees(ways, 16384, 1, inward=inward)
        assert trees.run(trees.direct(), 2000).end_s < 0.95 * trees.direct().end_s


@pytest.mark.skipif(import_compiled(CORE) is None, reason="nothing is compiled")
@pytest.mark.parametrize("inward", [False, True])
@pytest.mark.parametrize("chunks", [1, 2])
def test_the_compiled_search_returns_the_best_plan_that_it_has_seen(chunks: int, inward: bool) -> None:
    topology = choreo.get_topology("torus(4x4, 50GB/s, 1us, overhead=100ns)")
    symmetry = symmetry_of(topology)
    assert symmetry is not None
    found = []
    for plans in (0, 1, 30, 1000, 1000):
        trees = Trees(Ways.of(topology, symmetry), 16384, chunks, inward=inward)
        plan = trees.run(trees.direct(), plans)
        found.append(plan)
    assert found[0].end_s == trees.direct().end_s  # nothing was tried
    assert all(one.end_s <= found[0].end_s for one in found)
    assert found[3].end_s < 0.95 * found[0].end_s
    assert np.array_equal(found[3].shape, found[4].shape)
    assert np.array_equal(found[3].order, found[4].order)
    for one in found:
        again = trees.planned(one.shape, one.order, one.longest_s)
        assert (again.end_s, again.start_s.tolist()) == (one.end_s, one.start_s.tolist())


@pytest.mark.skipif(import_compiled(CORE) is None, reason="nothing is compiled")
def test_the_compiled_search_refuses_what_is_no_tree() -> None:
    topology = choreo.get_topology(NETWORKS[0])
    symmetry = symmetry_of(topology)
    assert symmetry is not None
    trees = Trees(Ways.of(topology, symmetry), 16384, 1)
    plan = trees.direct()
    for parents in ([2, 1, 0, 0], [0, 0, 0, 7], [0, 0, 0]):
        with pytest.raises(ValueError, match="do not fit"):
            trees.run(replace(plan, shape=np.array(parents)), 10)


@pytest.mark.skipif(import_compiled(CORE) is None, reason="nothing is compiled")
@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("network", ["torus(4x4, 50GB/s, 1us, overhead=100ns)", NETWORKS[2]])
def test_the_compiled_search_of_exchanges_plans_as_its_twin_does(network: str, chunks: int) -> None:
    topology = choreo.get_topology(network)
    symmetry = symmetry_of(topology)
    assert symmetry is not None
    ways = Ways.of(topology, symmetry)
    settled = []
    for roots in roots_of(symmetry, 8):
        search = Exchanges(ways, 16384, chunks, roots)
        for start in search.starts():
            search.rng = np.random.default_rng(1)
            plan = search.run(start, 1000)
            assert plan.end_s < start.end_s
            settled.append(np.array_equal(plan.order, plan.start_s))
            search.rng = np.random.default_rng(1)
            assert np.array_equal(search.run(start, 1000).order, plan.order)
    # Messages are put in the order of their starts until that makes no difference, mostly soon enough.
    assert np.mean(settled) > 0.5


@pytest.mark.skipif(import_compiled(CORE) is None, reason="nothing is compiled")
def test_the_compiled_search_refuses_exchanges_that_do_not_fit() -> None:
    topology = choreo.get_topology("torus(4x4, 50GB/s, 1us, overhead=100ns)")
    symmetry = symmetry_of(topology)
    assert symmetry is not None
    four = next(roots for roots in roots_of(symmetry, 4) if len(roots.devices) == 4)
    search = Exchanges(Ways.of(topology, symmetry), 16384, 1, four)
    plan = search.starts()[0]
    loop = plan.shape.copy()
    loop[:2] = search.others[1], search.others[0]
    for shape in (loop, plan.shape[:-1], plan.shape + 16):
        with pytest.raises(ValueError, match="do not fit"):
            search.run(replace(plan, shape=shape), 10)
    roots, partners = search._exchanges
    for exchanges in ((roots[[0, 0, 1, 2]], partners), (roots, partners + 1), (roots, np.roll(partners, 1, axis=1))):
        search._exchanges = exchanges
        with pytest.raises(ValueError, match="do not fit"):
            search.run(plan, 10)


def test_paths_along_dimensions_end_where_they_should() -> None:
    topology = choreo.get_topology("torus(5x4, 50GB/s, 1us, overhead=100ns)")
    symmetry = symmetry_of(topology)
    assert symmetry is not None
    search = Paths(Ways.of(topology, symmetry), symmetry, 16384)
    plan = search.hop_by_hop()
    assert [path[-1] for path in plan.shape] == list(range(1, 20))
    assert all(len({0, *path}) == len(path) + 1 for path in plan.shape)
    assert max(len(path) for path in plan.shape) > 2


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_the_time_of_a_plan_is_that_of_its_simulation(collective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PLANS", 600)
    planned: list[float] = []
    spreads = module._spread

    def spied(search: Trees, plan: Plan[Ints], turns: Ints) -> Spread:
        planned.append(plan.end_s)
        return spreads(search, plan, turns)

    monkeypatch.setattr(module, "_spread", spied)
    network = "torus(4x4, 50GB/s, 1us, overhead=100ns)"
    problem = read_problem(collective, network, "256KiB", ranks=None, root=None, effort="medium")
    made = list(annealed(problem))[::2]  # those whose messages are received in order
    found = [choreo.simulate(one.schedule, network, "256KiB").time_s for one in made]
    assert found == pytest.approx(planned)


@pytest.mark.parametrize("network", ["torus(4x4, 50GB/s, 1us, overhead=100ns)", NETWORKS[2], NETWORKS[1]])
@pytest.mark.parametrize("chunks", [1, 2])
def test_roots_exchange_sums_as_planned(network: str, chunks: int) -> None:
    topology = choreo.get_topology(network)
    symmetry = symmetry_of(topology)
    assert symmetry is not None
    ways, size = Ways.of(topology, symmetry), 32768.0 * topology.num_devices
    found = list(roots_of(symmetry, 4))
    assert {len(roots.devices) for roots in found} >= {2, 4}
    for roots in found:
        search = Exchanges(ways, 32768 / chunks, chunks, roots)
        plan = min((search.run(start, 100) for start in search.starts()), key=lambda plan: plan.end_s)
        schedule = module._with_exchanges(symmetry, search, plan)
        assert schedule is not None
        choreo.prove(schedule)
        found_s = choreo.simulate(replace(schedule, receive_in_order=True), topology, size).time_s
        assert found_s == pytest.approx(plan.end_s, rel=0.15)


def test_neighbours_as_roots_make_an_all_reduce_shorter() -> None:
    topology = choreo.get_topology("torus(4x4, 50GB/s, 10us, overhead=100ns)")
    symmetry = symmetry_of(topology)
    assert symmetry is not None
    ways = Ways.of(topology, symmetry)
    four = next(roots for roots in roots_of(symmetry, 4) if len(roots.devices) == 4)
    away = Trees(ways, 256, 1)
    # In to one root and out again, four hops each; by four neighbours two hops less.
    assert Exchanges(ways, 256, 1, four).starts()[0].end_s < 2 * away.direct().end_s - 15e-6


def test_networks_without_rings_to_pass_are_left_to_others() -> None:
    for network in ("hgx-h100:2", "ring(3, 50GB/s, 1us)", "mesh(4x4, 50GB/s, 1us)"):
        assert not list(annealed(read_problem("all_gather", network, "1MiB", ranks=None, root=None, effort="medium")))
    long = read_problem("all_gather", NETWORKS[0], "64MiB", ranks=None, root=None, effort="medium")
    assert not list(annealed(long))


def _steps(ranks: int, rows: list[tuple[int, int, int, int]]) -> Steps:
    step, src, dst, chunk = np.array(rows, np.int64).T
    nothing = np.zeros(len(rows), np.bool_)
    columns = Transfers(step, src, dst, chunk, np.ones(len(rows), np.int64), nothing, nothing)
    return Steps.from_transfers(ranks, ranks, 1, columns)
