"""Trees of one device, translated: the plan's time is the simulated time, and near the bound."""

from __future__ import annotations

import pytest

import choreo
import choreo.synthesize.generators.translated as module
from choreo.synthesize.generators.translated import translated
from choreo.synthesize.problem import Candidate, Problem, read_problem
from choreo.synthesize.symmetry import Symmetry, symmetry_of
from choreo.synthesize.translation.growth import spread

NETWORKS = [
    "ring(2, 50GB/s, 1us)",
    "ring(5, 50GB/s, 1us)",
    "switch(7, 50GB/s, 1us)",
    "fully_connected(3, 50GB/s, 1us)",
    "torus(3x5, 50GB/s, 1us)",
    "switch(4, 400GB/s, 300ns) x switch(3, 50GB/s, 1.35us)",
    "fully_connected(4, 20GB/s, 300ns) x switch(2, 30GB/s, 1us)",
    "ring(3, 90GB/s, 1us) x switch(2, 40GB/s, 1us) x switch(2, 10GB/s, 2us)",
]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("chunks", [1, 3, 8])
def test_the_plan_holds_in_the_simulation(network: str, chunks: int) -> None:
    topology = choreo.get_topology(network)
    symmetry = symmetry_of(topology)
    assert symmetry is not None
    plan = spread(symmetry, [1e6 / chunks] * chunks)
    size = 1e6 * topology.num_devices
    problem = read_problem("all_gather", topology, size, ranks=None, root=None, effort="low")
    (made,) = translated(problem)
    choreo.prove(made.schedule)
    best = choreo.simulate(made.schedule, topology, size)
    assert best.time_s <= plan.time_s * (1 + 1e-9)
    if made.schedule.chunks_a_block == chunks:
        assert best.time_s == pytest.approx(plan.time_s)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("network", NETWORKS)
def test_the_time_of_a_long_schedule_needs_no_simulation(
    network: str, collective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FEW_TRANSFERS", 0)
    problem = read_problem(collective, network, "16MiB", ranks=None, root=None, effort="low")
    (made,) = translated(problem)
    assert made.time_s == pytest.approx(choreo.simulate(made.schedule, network, "16MiB").time_s)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_reduce"])
@pytest.mark.parametrize("network", NETWORKS)
def test_large_messages_reach_the_bound(network: str, collective: str) -> None:
    problem = read_problem(collective, network, "256MiB", ranks=None, root=None, effort="low")
    (made,) = translated(problem)
    choreo.prove(made.schedule)
    assert choreo.simulate(made.schedule, network, "256MiB").efficiency > 0.96


@pytest.mark.parametrize("network", ["mesh(4x4, 50GB/s, 1us)", "dgx-1"])
def test_a_network_without_the_symmetry_has_none(network: str) -> None:
    assert symmetry_of(choreo.get_topology(network)) is None


def test_a_slow_link_breaks_the_symmetry() -> None:
    assert symmetry_of(choreo.get_topology("ring(4, 50GB/s, 1us)").with_slow_link(0, 1, 0.5)) is None


COSTLY = "torus(4x2, 100GB/s, 1us, overhead=100ns) x switch(3, 25GB/s, 350ns, overhead=1us)"


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_reduce"])
def test_where_messages_cost_their_ranks_something_the_plan_holds_too(
    collective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is put in time is what is simulated, and smaller chunks at the end help."""
    monkeypatch.setattr(module, "MESSAGES", (1 << 15, 1 << 15))
    planned = []
    candidate = module._candidate

    def spied(problem: Problem, symmetry: Symmetry, grown: module._Grown) -> Candidate:
        planned.append(module._end_s(grown))
        return candidate(problem, symmetry, grown)

    monkeypatch.setattr(module, "_candidate", spied)
    problem = read_problem(collective, COSTLY, "16MiB", ranks=None, root=None, effort="medium")
    times = []
    for made in translated(problem):
        choreo.prove(made.schedule)
        times.append(choreo.simulate(made.schedule, COSTLY, "16MiB").time_s)
    assert times == pytest.approx(planned)
    assert times[2] <= times[1] < times[0]
    assert problem.bound().bound_s / times[2] > 0.9


@pytest.mark.parametrize("size", [0, 1, 4096])
def test_shares_that_cannot_be_cut_are_spread_whole(size: int) -> None:
    problem = read_problem("all_gather", COSTLY, size, ranks=None, root=None, effort="medium")
    for made in translated(problem):
        choreo.prove(made.schedule)
        assert made.schedule.chunks_a_block == 1
