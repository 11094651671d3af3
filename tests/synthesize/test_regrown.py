"""Broadcasts and reduces whose trees are changed: right, no slower, and as fast as planned."""

from __future__ import annotations

import pytest

import choreo
import choreo.synthesize.improvers.regrown as module
from choreo.compiled import import_compiled
from choreo.synthesize.generators.greedy import greedy
from choreo.synthesize.generators.layered import layered
from choreo.synthesize.improvers.regrown import regrown
from choreo.synthesize.problem import Candidate, read_problem
from choreo.synthesize.timeline import CORE

NETWORKS = [
    "fully_connected(6, 60GB/s, 500ns, overhead=100ns)",
    "mesh(3x3, 60GB/s, 500ns, overhead=100ns)",
    "switch(3, 200GB/s, 200ns, overhead=100ns) x switch(2, 25GB/s, 1us, overhead=1us)",
    "switch(3, 200GB/s, 200ns, overhead=100ns, reduces) x switch(2, 25GB/s, 1us, overhead=1us)",
]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize("root", [0, 4])
def test_other_trees_are_right_and_as_fast_as_planned(
    collective: str, network: str, root: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TASKS", 1_000_000)
    problem = read_problem(collective, network, "256KiB", ranks=None, root=root, effort="medium")
    given = [*list(layered(problem))[-2:], *list(greedy(problem))[-1:]]
    made = list(regrown(problem, given))
    if import_compiled(CORE) is not None:
        assert made
    for one in made:
        choreo.prove(one.schedule)
        assert _time_s(problem.topology, one) >= problem.bound().bound_s * (1 - 1e-9)


@pytest.mark.skipif(import_compiled(CORE) is None, reason="nothing is compiled")
def test_a_server_of_few_messages_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TASKS", 10_000_000)
    problem = read_problem("broadcast", "gaudi-3", "1MiB", ranks=None, root=None, effort="medium")
    given = list(greedy(problem))
    least_s = min(_time_s(problem.topology, one) for one in given)
    assert min(_time_s(problem.topology, one) for one in regrown(problem, given)) < 0.96 * least_s


def test_what_is_no_broadcast_along_trees_is_left_alone() -> None:
    gathered = read_problem("all_gather", NETWORKS[0], "256KiB", ranks=None, root=None, effort="medium")
    assert not list(regrown(gathered, list(greedy(gathered))))
    long = read_problem("broadcast", NETWORKS[0], "64MiB", ranks=None, root=None, effort="medium")
    assert not list(regrown(long, [Candidate("library", choreo.build("broadcast", "mst", 6))]))
    # Straight from corner to corner a message passes other devices.
    past = read_problem("broadcast", NETWORKS[1], "256KiB", ranks=None, root=None, effort="medium")
    assert not list(regrown(past, [Candidate("library", choreo.build("broadcast", "linear", 9))]))


def _time_s(topology: choreo.Topology, one: Candidate) -> float:
    return choreo.simulate(one.schedule, topology, "256KiB" if topology.num_devices != 8 else "1MiB").time_s
