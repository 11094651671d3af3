"""Schedules whose messages are put in another order, and whose chunks get other sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import choreo
from choreo.schedule import pipelined
from choreo.synthesize import search
from choreo.synthesize.generators import forested
from choreo.synthesize.improvers import regrown
from choreo.synthesize.improvers.refined import refined
from choreo.synthesize.network import hops_between
from choreo.synthesize.problem import Candidate, read_problem

NETWORKS = (
    "ring(5, 50GB/s, 1us, overhead=100ns)",
    "fully_connected(4, 50GB/s, 500ns, overhead=100ns)",
    "switch(4, 200GB/s, 200ns, overhead=100ns) x switch(2, 25GB/s, 350ns, overhead=1us)",
    "switch(3, 200GB/s, 200ns, overhead=100ns, reduces) x switch(2, 25GB/s, 350ns, overhead=1us)",
    "mesh(3x2, 50GB/s, 100ns)",
)
KINDS = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all", "scatter", "gather")


@settings(max_examples=40)
@given(st.sampled_from(NETWORKS), st.sampled_from(KINDS), st.integers(1, 1 << 20), st.data())
def test_it_still_does_what_it_should_and_no_faster_than_the_bound(
    network: str, collective: str, size: int, data: st.DataObject
) -> None:
    problem = read_problem(collective, network, size, ranks=None, root=None, effort="medium")
    names = [one.name for one in choreo.list_algorithms(collective) if one.in_library]
    try:
        schedule = choreo.build(collective, data.draw(st.sampled_from(names)), problem.ranks)
        choreo.simulate(schedule, network, size)
    except choreo.RefusedError:
        return
    segmented = schedule if collective == "all_to_all" else pipelined(schedule, data.draw(st.integers(1, 3)))
    for found in refined(problem, [Candidate("library", segmented)]):
        choreo.prove(found.schedule)
        simulated = choreo.simulate(found.schedule, network, size)
        assert simulated.time_s >= problem.bound().bound_s * (1 - 1e-9)


def test_no_message_writes_over_what_another_still_has_to_read() -> None:
    """Two ranks that add what they get to what they send must send first, in whatever order the rest is."""
    problem = read_problem("all_reduce", NETWORKS[2], "256KiB", ranks=None, root=None, effort="medium")
    schedule = choreo.build("all_reduce", "recursive_doubling", problem.ranks)
    (found,) = refined(problem, [Candidate("library", schedule)])
    choreo.prove(found.schedule)


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_a_server_of_few_messages_gains(collective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (forested, regrown):
        monkeypatch.setattr(module, "TASKS", 5_000_000)
    network = "fully_connected(8, 64GB/s, 500ns, overhead=100ns)"
    best, quick = (search(collective, network, "1MiB", effort=effort) for effort in ("medium", "fast"))
    assert best.time_s < quick.time_s
    assert best.generator == "forested" or "refined" in best.generator


def test_uneven_blocks_keep_their_sizes() -> None:
    traffic = [[0, 5, 1], [1, 0, 0], [1, 1, 0]]
    problem = read_problem("all_to_all", NETWORKS[0], 9e5, ranks=3, root=None, effort="medium", traffic=traffic)
    schedule = choreo.synthesize("all_to_all", NETWORKS[0], 9e5, ranks=3, traffic=traffic, effort="fast", relays=False)
    (found,) = refined(problem, [Candidate("fast", schedule)])
    choreo.prove(found.schedule)
    assert found.schedule.weights is not None and schedule.weights is not None
    assert found.schedule.weights.tolist() == schedule.weights.tolist()


def test_hops_may_lead_past_other_devices() -> None:
    network = choreo.get_topology("ring(6, 50GB/s, 1us, overhead=100ns)")
    hops, hop = hops_between(network, np.arange(6), np.array([0, 0, 5]), np.array([2, 1, 0]))
    assert len(hops) == 3
    assert hops.latency_s[hop].tolist() == pytest.approx([2e-6, 1e-6, 1e-6])
    assert np.diff(hops.load.tocsc().indptr)[hop].tolist() == [2, 1, 1]
