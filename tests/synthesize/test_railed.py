"""Broadcasts across servers: pieces along rails, and who passes them on."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import choreo
from choreo.synthesize.generators.railed import railed
from choreo.synthesize.network import hops_of
from choreo.synthesize.problem import Problem, read_problem
from choreo.synthesize.rails.plan import Shape
from choreo.synthesize.rails.rails import rails_of
from choreo.synthesize.rails.swarm import swarm

NETWORKS = [
    "switch(4, 300GB/s, 200ns, overhead=100ns) x switch(3, 25GB/s, 350ns, overhead=1us)",
    "switch(4, 300GB/s, 200ns, overhead=100ns, reduces) x switch(4, 100GB/s, 350ns, overhead=1us)",
    "switch(6, 100GB/s, 200ns, overhead=100ns, reduces) x switch(3, 100GB/s, 350ns, overhead=1us)",
    "torus(3x2, 100GB/s, 1us) x switch(2, 25GB/s, 350ns)",
]


def problem(collective: str, topology: str, size: str = "8MiB", root: int | None = None) -> Problem:
    return read_problem(collective, topology, size, ranks=None, root=root, effort="medium")


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize("topology", NETWORKS)
@pytest.mark.parametrize("root", [0, 5])
def test_what_is_made_proves_and_no_time_is_below_the_bound(collective: str, topology: str, root: int) -> None:
    asked = problem(collective, topology, root=root)
    made = list(railed(asked))
    assert made
    for candidate in (made[0], made[-1]):
        choreo.prove(candidate.schedule)
        assert candidate.schedule.root == root
        reached = choreo.simulate(candidate.schedule, topology, "8MiB")
        assert reached.time_s >= asked.bound().bound_s * (1 - 1e-9)


def test_only_broadcast_and_reduce_across_servers() -> None:
    assert not list(railed(problem("all_gather", NETWORKS[0])))
    assert not list(railed(problem("broadcast", "torus(4x4, 50GB/s, 1us)")))
    assert not list(railed(problem("broadcast", "hgx-h100")))


def test_four_servers_reach_nine_tenths() -> None:
    """Packed trees reach 85 %: in them a chunk crosses the network three times in a row."""
    found = choreo.synthesize("broadcast", "hgx-b300:4", "64MiB", effort="low")
    bound_s = problem("broadcast", "hgx-b300:4", "64MiB").bound().bound_s
    assert bound_s / choreo.simulate(found, "hgx-b300:4", "64MiB").time_s >= 0.9


def test_inside_trees_reach_every_device_and_balance_the_links() -> None:
    """16 trees of 15 arcs over 64 links: no link has more than 4."""
    topology = choreo.get_topology("trn2:2")
    rails = rails_of(problem("broadcast", "trn2:2", "64MiB"), hops_of(topology))
    assert rails is not None
    arcs = [arc for ((tree, _),) in rails.onward for arc in tree]
    assert all(len({there for _, there in tree}) == 15 for ((tree, _),) in rails.onward)
    assert max(arcs.count(arc) for arc in set(arcs)) == 4


@given(
    servers=st.integers(2, 6),
    pieces=st.lists(st.floats(0.5, 2.0), min_size=1, max_size=12),
    lag=st.floats(0, 3),
    pace=st.floats(0, 1.5),
)
@settings(max_examples=60, deadline=None)
def test_a_swarm_gives_everybody_everything(servers: int, pieces: list[float], lag: float, pace: float) -> None:
    ready = (np.arange(len(pieces)) * pace).tolist()
    found = swarm(servers, pieces, lag, ready)
    assert len({(one.piece, one.dst) for one in found}) == len(found) == len(pieces) * (servers - 1)
    have = {(piece, 0): at for piece, at in enumerate(ready)}
    for one in found:
        assert have[one.piece, one.src] <= one.start_s + 1e-5
        have[one.piece, one.dst] = one.start_s + pieces[one.piece] + lag
    for server in range(servers):
        for sends in (True, False):
            mine = [one for one in found if (one.src if sends else one.dst) == server]
            for first, second in pairwise(sorted(mine)):
                assert first.start_s + pieces[first.piece] <= second.start_s + 1e-5


def test_a_swarm_is_done_before_a_chain() -> None:
    pieces, lag = 48, 1.5
    ends = max(one.start_s for one in swarm(4, [1.0] * pieces, lag, [0.0] * pieces)) + 1
    chain = pieces + 2 * (1 + lag)
    assert pieces < ends < chain - 1


def test_a_shape_has_smaller_pieces_at_its_ends() -> None:
    parts = Shape(8, rising=2, falling=1, factor=0.5).parts()
    assert parts.sum() == pytest.approx(1)
    assert (parts / parts[4]).tolist() == pytest.approx([0.25, 0.5, 1, 1, 1, 1, 1, 0.5])


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_trees_inside_servers_leave_out_what_is_dead_in_any(collective: str) -> None:
    whole = choreo.get_topology("fully_connected(4, 50GB/s, 500ns) x switch(3, 25GB/s, 1us)")
    network = whole.with_slow_link(5, 7, 0).with_slow_link(7, 5, 0)
    made = list(railed(read_problem(collective, network, "8MiB", ranks=None, root=9, effort="medium")))
    assert made
    choreo.prove(made[0].schedule)
    choreo.simulate(made[0].schedule, network, "8MiB")
    cut_off = whole
    for other in (4, 5, 6):
        cut_off = cut_off.with_slow_link(other, 7, 0)
    assert not list(railed(read_problem(collective, cut_off, "8MiB", ranks=None, root=9, effort="medium")))
