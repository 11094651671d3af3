"""Rarest chunk first: every short message is proved, not below the bound, and near it where few hops are to go."""

from __future__ import annotations

import numpy as np
import pytest

import choreo
from choreo.synthesize.generators.greedy import greedy
from choreo.synthesize.problem import read_problem
from choreo.topology import compose
from choreo.topology.blocks import graph
from choreo.topology.graph import Links

DEAD = choreo.get_topology("torus(3x3, 50GB/s, 500ns)").with_slow_link(0, 1, 0)
NETWORKS = [
    "ring(2, 50GB/s, 1us)",
    "mesh(4x3, 50GB/s, 500ns)",
    "switch(3, 400GB/s, 300ns) x switch(2, 50GB/s, 1.35us)",
    "dgx-1",
    DEAD,
]
COLLECTIVES = ["all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce"]


@pytest.mark.parametrize("network", NETWORKS, ids=str)
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_what_is_made_is_proved_and_never_below_the_bound(
    network: str | choreo.Topology, collective: str, size: int
) -> None:
    root = 1 if collective in ("broadcast", "reduce") else None
    problem = read_problem(collective, network, size, ranks=None, root=root, effort="low")
    made = list(greedy(problem))
    assert made
    bound_s = choreo.bound(collective, network, size, root=root).bound_s
    for one in (made[0], made[-1]):
        choreo.prove(one.schedule)
        assert choreo.simulate(one.schedule, network, size).time_s >= bound_s * (1 - 1e-9)


@pytest.mark.parametrize(("collective", "share"), [("all_gather", 0.88), ("all_reduce", 0.86), ("broadcast", 0.68)])
def test_a_megabyte_on_a_dgx_1(collective: str, share: float) -> None:
    root = 0 if collective == "broadcast" else None
    problem = read_problem(collective, "dgx-1", "1MiB", ranks=None, root=root, effort="low")
    made = list(greedy(problem))[-8:]
    assert max(choreo.simulate(one.schedule, "dgx-1", "1MiB").efficiency for one in made) > share


def test_a_slow_link_leaves_a_chunk_to_a_much_faster_way() -> None:
    network = choreo.get_topology("switch(4, 400GB/s, 300ns) x switch(2, 10GB/s, 5us)")
    problem = read_problem("all_gather", network, 1 << 20, ranks=None, root=None, effort="low")
    rows = next(iter(greedy(problem))).schedule.columns()
    across = rows.src // 4 != rows.dst // 4
    assert across.sum() == 8  # every share crosses once


def test_a_large_graph_with_few_links_takes_long_messages_too() -> None:
    rng = np.random.default_rng(3)
    pairs = {(int(rng.integers(v)), v) for v in range(1, 96)} | {(v, (v * 7 + 3) % 96) for v in range(96)}
    ends = np.array(sorted({(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]}))
    src, dst = np.concatenate((ends, ends[:, ::-1])).T
    width = np.tile(25e9 * rng.choice([1, 2, 4], len(ends)), 2)
    network = compose("sparse", [graph(96, Links(src, dst, width, np.full(len(src), 1e-6)))])
    made = next(greedy(read_problem("all_gather", network, "1GiB", ranks=None, root=None, effort="low")))
    choreo.prove(made.schedule)
    assert choreo.simulate(made.schedule, network, "1GiB").efficiency > 0.95


@pytest.mark.parametrize("collective", ["all_to_all", "scatter"])
def test_what_it_is_not_for(collective: str) -> None:
    root = 0 if collective == "scatter" else None
    assert not list(greedy(read_problem(collective, "dgx-1", "1MiB", ranks=None, root=root, effort="low")))
    for network in ("dgx-1", "gb200-nvl72:2"):  # behind a switch a device has hops to all others
        assert not list(greedy(read_problem("all_gather", network, "1GiB", ranks=None, root=None, effort="low")))
