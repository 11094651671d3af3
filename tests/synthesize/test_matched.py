"""Uneven all_to_all between servers: rounds of matchings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import choreo
from choreo.algorithms.fast import rounds_of
from choreo.synthesize.generators.matched import matched
from choreo.synthesize.problem import read_problem

SERVERS = "switch(4, 300GB/s, 300ns) x switch(4, 25GB/s, 1us)"


def uneven(ranks: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Traffic by Zipf's law."""
    amounts = 1 / np.arange(1, ranks**2 + 1) ** 1.2
    traffic = np.random.default_rng(3).permutation(amounts).reshape(ranks, ranks)
    np.fill_diagonal(traffic, 0)
    return traffic


@given(
    st.integers(2, 6).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 9), min_size=n, max_size=n), min_size=n, max_size=n)
    )
)
def test_rounds_carry_all_traffic_in_the_time_of_the_busiest(rows: list[list[int]]) -> None:
    traffic = np.array(rows, np.float64)
    np.fill_diagonal(traffic, 0.0)
    carried = np.zeros_like(traffic)
    total = 0.0
    for to, amount in rounds_of(traffic):
        assert sorted(to.tolist()) == list(range(len(traffic)))
        carried[np.arange(len(traffic)), to] += amount
        total += amount
    assert (carried >= traffic - 1e-6).all()
    assert total <= max(traffic.sum(axis=0).max(), traffic.sum(axis=1).max()) * (1 + 1e-6)


@pytest.mark.parametrize("topology", [SERVERS, "hgx-h100:2"])
def test_uneven_traffic_between_servers_is_near_the_bound(topology: str) -> None:
    ranks = choreo.get_topology(topology).num_devices
    problem = read_problem(
        "all_to_all", topology, "1GiB", ranks=None, root=None, effort="medium", traffic=uneven(ranks)
    )
    least = choreo.bound("all_to_all", topology, "1GiB", weights=problem.weights).bound_s
    made = [candidate.schedule for candidate in matched(problem)]
    for schedule in made:
        choreo.prove(schedule)
    assert choreo.simulate(made[-1], topology, "1GiB").time_s < least / 0.9


def test_where_all_send_to_one_and_some_blocks_are_empty_it_proves() -> None:
    traffic = np.zeros((16, 16))
    traffic[:, 5] = 1.0
    traffic[3, 9] = 7.0
    problem = read_problem("all_to_all", SERVERS, "1MiB", ranks=None, root=None, effort="medium", traffic=traffic)
    for candidate in matched(problem):
        choreo.prove(candidate.schedule)


@pytest.mark.parametrize("topology", ["ring(4, 50GB/s, 1us)", "torus(4x4, 50GB/s, 1us)"])
def test_it_is_for_servers_behind_switches(topology: str) -> None:
    ranks = choreo.get_topology(topology).num_devices
    problem = read_problem(
        "all_to_all", topology, "1MiB", ranks=None, root=None, effort="medium", traffic=uneven(ranks)
    )
    assert list(matched(problem)) == []
