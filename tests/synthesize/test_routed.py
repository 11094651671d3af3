"""All_to_all along flows: proved, near the bound, and in time as planned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import choreo
from choreo.synthesize import search
from choreo.synthesize.generators.routed import routed
from choreo.synthesize.problem import read_problem

NETWORKS = ["dgx-1", "torus(3x3, 50GB/s, 1us)", "mesh(3x3, 50GB/s, 1us)", "ring(6, 50GB/s, 1us)"]


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


def test_many_blocks_weigh_less_each() -> None:
    """1764 blocks, in parts that no number divides, would add up to more than a schedule holds."""
    problem = read_problem("all_to_all", "mesh(7x6, 50GB/s, 1us)", "16MiB", ranks=None, root=None, effort="low")
    made = list(routed(problem))
    choreo.prove(made[-1].schedule)
    assert made[-1].schedule.weights is not None


@pytest.mark.parametrize("network", ["dgx-1", "mi300x", "ring(8, 50GB/s, 1us)", "hgx-h100:2"])
def test_a_send_recv_takes_all_ways(network: str) -> None:
    found = search("send_recv", network, "1GiB", effort="low")
    choreo.prove(found.schedule)
    assert found.generator == "routed" and found.efficiency > 0.95
    assert found.library is not None and found.library["efficiency"] < 0.9


def test_a_send_recv_of_many_ranks_takes_all_ways_too() -> None:
    network = "torus(8x8, 50GB/s, 1us, overhead=100ns)"
    found = search("send_recv", network, "64MiB", effort="low")
    choreo.prove(found.schedule)
    assert found.generator == "routed" and found.efficiency > 0.97
    assert found.library is not None and found.library["efficiency"] < 0.9


def test_more_chunks_are_tried_if_a_few_more_do_not_help() -> None:
    found = search("send_recv", "fully_connected(4, 60GB/s, 500ns) x ring(6, 25GB/s, 1us)", "64MiB", effort="low")
    assert found.efficiency > 0.9


def test_a_send_recv_of_uneven_blocks_goes_through_relays() -> None:
    found = search("send_recv", "dgx-1", "1GiB", ranks=[4, 0, 5, 1, 7], shares=[1, 0, 2, 3, 1])
    choreo.prove(found.schedule)
    assert found.schedule.relays > 0 and found.efficiency > 0.9


def test_uneven_traffic_with_empty_blocks() -> None:
    network = "switch(4, 450GB/s, 300ns) x switch(2, 50GB/s, 1us)"
    rng = np.random.default_rng(1)
    traffic = rng.permutation(1 / np.arange(1, 65) ** 1.2).reshape(8, 8)
    traffic[2] = 0  # a rank that has nothing for anybody
    traffic[:, 5] = 0
    found = search("all_to_all", network, "1GiB", traffic=traffic)
    choreo.prove(found.schedule)
    assert found.generator == "routed" and found.efficiency > 0.95
    assert found.library is not None and found.efficiency > 1.1 * found.library["efficiency"]
    weights = found.schedule.weights
    assert weights is not None
    blocks = weights.reshape(64, -1).sum(axis=1) / weights.sum()
    assert blocks == pytest.approx(traffic.reshape(-1) / traffic.sum(), abs=1e-6)


@pytest.mark.parametrize(
    ("traffic", "says"),
    [
        ([[1, 2]], "must be 4 x 4 numbers, a row and a column for each rank, not 1 x 2"),
        ("much", "must be 4 x 4 numbers, a row and a column for each rank, not 'much'"),
        ([[0, 1, 1, 1], [1, 0, -1, 1], [1] * 4, [1] * 4], "not -1 from rank 1 to rank 2"),
        ([[0] * 4] * 4, "all 4 x 4 of them are 0"),
        ([[float("nan")] * 4] * 4, "not nan from rank 0 to rank 0"),
    ],
)
def test_traffic_that_makes_no_sense_is_refused(traffic: object, says: str) -> None:
    with pytest.raises(choreo.UsageError, match=says):
        choreo.synthesize("all_to_all", "ring(4, 50GB/s, 1us)", "1MiB", traffic=traffic)  # type: ignore[arg-type]
    with pytest.raises(choreo.UsageError, match="traffic is for all_to_all"):
        choreo.synthesize("all_gather", "ring(4, 50GB/s, 1us)", "1MiB", traffic=traffic)  # type: ignore[arg-type]


def test_an_empty_chunk_need_not_be_sent() -> None:
    steps = [choreo.move(0, 1, 0)]
    half = choreo.Schedule.from_list("all_gather", 2, steps)
    with pytest.raises(choreo.ProofError):
        choreo.prove(half)
    choreo.prove(replace(half, weights=np.array([1, 0])))


@pytest.mark.parametrize("collective", ["scatter", "gather"])
def test_a_scatter_takes_all_ways_from_its_root(collective: str) -> None:
    found = search(collective, "dgx-1", "64MiB", root=3)
    choreo.prove(found.schedule)
    assert found.generator == "routed" and found.efficiency > 0.95
    uneven = search(collective, "dgx-1", "64MiB", root=3, shares=[1, 0, 2, 3, 1, 1, 0, 1])
    choreo.prove(uneven.schedule)
    assert uneven.efficiency > 0.9


@pytest.mark.parametrize("collective", ["scatter", "gather", "all_to_all"])
def test_blocks_that_the_solver_takes_for_nothing_are_sent_too(collective: str) -> None:
    sizes = np.array([1, 1e-1, 1e-7, 1e-7, 1e3, 1e4, 1e-2, 1e-3])
    weights = {"traffic": np.outer(np.ones(8), sizes)} if collective == "all_to_all" else {"shares": sizes}
    root = None if collective == "all_to_all" else 4
    problem = read_problem(collective, "dgx-1", "1MiB", ranks=None, root=root, effort="low", **weights)
    made = list(routed(problem))
    assert made
    for one in made:
        choreo.prove(one.schedule)


@pytest.mark.parametrize("collective", ["scatter", "gather"])
def test_nothing_is_sent_where_the_root_has_all(collective: str) -> None:
    found = search(collective, "ring(3, 10GB/s, 1us)", "1MiB", root=1, shares=[0, 5, 0])
    assert found.time_s == found.bound_s == 0 and not found.schedule.num_transfers
