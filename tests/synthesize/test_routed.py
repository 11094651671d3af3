"""All_to_all along flows: proved, near the bound, and in time as planned."""

from __future__ import annotations

import pytest

import choreo
from choreo.synthesize.problem import read_problem
from choreo.synthesize.routed import routed

NETWORKS = ["dgx-1", "torus(4x4, 50GB/s, 1us)", "mesh(3x3, 50GB/s, 1us)", "ring(6, 50GB/s, 1us)"]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("slow", [1.0, 0.5, 0.0])
def test_it_is_proved_and_near_the_bound(network: str, slow: float) -> None:
    topology = choreo.get_topology(network).with_slow_link(0, 1, slow).with_slow_link(1, 0, slow)
    problem = read_problem("all_to_all", topology, "1GiB", ranks=None, root=None, effort="low")
    made = list(routed(problem))
    choreo.prove(made[-1].schedule)
    assert max(choreo.simulate(one.schedule, topology, "1GiB").efficiency for one in made) > 0.97


def test_a_symmetric_network_is_solved_for_one_device() -> None:
    torus = "torus(6x6, 50GB/s, 1us)"
    problem = read_problem("all_to_all", torus, "64MiB", ranks=None, root=None, effort="medium")
    made = list(routed(problem))
    choreo.prove(made[0].schedule)
    assert choreo.simulate(made[0].schedule, torus, "64MiB").efficiency > 0.97
