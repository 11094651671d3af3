"""The bound: known values, what they are for, and that no simulation beats it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import choreo
from choreo.algorithms import build, list_algorithms
from choreo.bound import Bound, Cut, bound
from choreo.collectives import COLLECTIVES
from choreo.errors import RefusedError, UsageError
from choreo.simulate import simulate
from choreo.topology import Links, Topology, compose, get_topology, graph
from tests.helpers.simulate import topologies
from tests.oracles.bound import fraction

GB = 1e9
ROOTED = [name for name, contract in COLLECTIVES.items() if contract.rooted]


def dgx_1() -> Topology:
    """The hybrid cube mesh of eight V100: six NVLinks each of 25 GB/s, some of them double."""
    double = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]
    single = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)]
    ends = [*double, *double, *single]
    src, dst = np.array([*ends, *((b, a) for a, b in ends)]).T
    return compose("dgx-1 by hand", [graph(8, Links.uniform(src, dst, 25e9, 0.0))])


def turned_round(topology: Topology) -> Topology:
    """The same graph with every link the other way."""
    links, block = topology.links, topology.blocks[0]
    turned = Links(links.dst, links.src, links.bandwidth_bytes_per_s, links.latency_s)
    return compose("turned round", [graph(block.size, turned, block.switches)])


def one_way_ring(size: int) -> Topology:
    at = np.arange(size)
    return compose("one way", [graph(size, Links.uniform(at, (at + 1) % size, GB, 1e-6))])


# Known values.


@pytest.mark.parametrize(
    ("topology", "all_gather", "all_to_all"),
    [("ring(8)", "7/2", "8"), ("torus(4x4)", "15/4", "8"), ("mesh(4x4)", "15/2", "16")],
)
def test_unit_links(topology: str, all_gather: str, all_to_all: str) -> None:
    assert fraction("all_gather", topology) == fraction("reduce_scatter", topology) == Fraction(all_gather)
    assert fraction("all_to_all", topology) == Fraction(all_to_all)


@pytest.mark.parametrize("topology", [dgx_1(), get_topology("dgx-1")], ids=["by hand", "catalogue"])
def test_dgx_1(topology: Topology) -> None:
    found = bound("all_gather", topology, 8e9)
    assert (found.fraction_in_links, found.fraction_per_GBps) == (Fraction(7, 6), Fraction(7, 150))
    assert found.bandwidth_bound_s == pytest.approx(7 / 150)  # a share of 1 GB
    crossing = bound("all_to_all", topology, 8e9)
    assert (crossing.fraction_in_links, crossing.proof) == (Fraction(8, 3), "cut")
    assert crossing.cut.devices in {(0, 1, 2, 3), (4, 5, 6, 7)}
    assert crossing.exact


def test_two_dgx_a100() -> None:
    assert fraction("all_gather", "dgx-a100:2") == Fraction(3, 65)
    found = bound("all_gather", get_topology("dgx-a100:2"), 16e9)
    # All but one GPU, into whose two ports everything else must go.
    assert len(found.cut.devices) == 15
    assert sorted(get_topology("dgx-a100:2").links.bandwidth_bytes_per_s[list(found.cut.links)]) == [25e9, 300e9]


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        ("ring(8)", "7/8"),  # 2 (n - 1) / n by two links each
        ("torus(4x4)", "15/32"),
        ("line(3)", "1"),  # pipelined through the middle
        ("switch(8)", "7/4"),
        ("switch(8, 1GB/s, 0s, reduces)", "1"),  # a switch that adds halves it
        ("fully_connected(8)", "1/4"),
        ("ring(2)", "1"),
        ("switch(8, 450GB/s) x switch(4, 50GB/s)", "31/8000"),  # 32 GPUs by 500 GB/s: 2 (32 - 1) / (32 x 500)
        ("switch(8, 450GB/s) x switch(16, 50GB/s)", "3/640"),  # 16 servers by 8 x 50: 2 (16 - 1) / (16 x 400)
        ("switch(8, 450GB/s, 0s, reduces) x switch(4, 50GB/s)", "3/800"),
        ("switch(8, 200GB/s, 0s, reduces) x switch(2, 50GB/s)", "3/640"),  # 30 by 2 x (8 x 50 + 2 x 7 x 200)
        ("switch(8, 450GB/s) x switch(4, 50GB/s, 0s, reduces)", "31/8400"),  # a switch that adds is in a GPU's part
    ],
)
def test_all_reduce(topology: str, expected: str) -> None:
    found = bound("all_reduce", get_topology(topology), 1e9)
    assert found.fraction_per_GBps == Fraction(expected)


def test_all_reduce_by_trees_is_attained() -> None:
    """Tutte and Nash-Williams: two triangles that share a corner are packed with 3/2 trees, as each triangle is."""
    ends = [(0, 1), (1, 2), (2, 0), (0, 3), (3, 4), (4, 0)]
    src, dst = np.array([*ends, *((b, a) for a, b in ends)]).T
    found = bound("all_reduce", compose("bow tie", [graph(5, Links.uniform(src, dst, GB, 0.0))]), 1e9)
    assert (found.fraction_per_GBps, found.proof, found.exact) == (Fraction(2, 3), "volume", True)


def test_all_reduce_in_parts_of_different_sizes() -> None:
    """A clique of four, and two leaves by slow links: the clique is one part, and each leaf another."""
    clique = [(a, b) for a in range(4) for b in range(4) if a != b]
    leaves = [(0, 4), (4, 0), (1, 5), (5, 1)]
    src, dst = np.array(clique + leaves).T
    links = Links(src.copy(), dst.copy(), np.array([10 * GB] * 12 + [GB] * 4), np.zeros(16))
    found = bound("all_reduce", compose("leaves", [graph(6, links)]), 1e9)
    assert (found.fraction_per_GBps, found.exact) == (Fraction(1), True)
    found = bound("all_reduce", compose("leaves", [graph(6, links)]).with_slow_link(0, 4, 2.0), 1e9)
    assert (found.fraction_per_GBps, found.proof, found.exact) == (Fraction(1), "cut", True)


@pytest.mark.parametrize(
    ("topology", "collective", "devices", "expected"),
    [
        # Through a fabric of six GB/s: a message to each of eleven devices, for a vector or for each of twelve shares.
        ("switch(12, oversubscribed=2)", "broadcast", None, "11/6"),
        ("switch(12, oversubscribed=2)", "reduce", None, "11/6"),
        ("switch(12, oversubscribed=2)", "all_gather", None, "22"),
        ("switch(12, oversubscribed=2)", "reduce_scatter", None, "22"),
        ("switch(12, oversubscribed=2)", "all_reduce", None, "11/3"),
        ("switch(12, oversubscribed=2)", "broadcast", [0, 3, 7, 8, 9, 10, 11], "1"),
        # Four rails, each with a fabric of 3/2 GB/s: twelve shares must reach two other servers.
        ("fully_connected(4, 9GB/s) x switch(3, oversubscribed=2)", "all_gather", None, "4"),
        # Two servers do not fill the fabrics, but each rail of one.
        ("fully_connected(4, 9GB/s) x switch(3, oversubscribed=2)", "broadcast", [0, 1, 2, 3, 4, 5, 6, 7], "1/4"),
    ],
)
def test_messages_through_a_fabric(topology: str, collective: str, devices: list[int] | None, expected: str) -> None:
    found = bound(collective, topology, 1e9, devices=devices)
    assert found.fraction_per_GBps == Fraction(expected)


def test_a_slow_port_makes_a_switch_narrower_on_one_side() -> None:
    """Each of eleven shares goes up to ten devices, by ports that have 21/2 GB/s together."""
    found = bound("all_gather", get_topology("switch(11)").with_slow_link(3, 11, 0.5), 11e9)
    assert (found.fraction_per_GBps, found.proof, found.exact) == (Fraction(220, 21), "volume", False)
    assert found.cut.parts == tuple((device,) for device in range(11))


@pytest.mark.parametrize(
    ("collective", "root", "expected"),
    [
        ("broadcast", 0, "1"),  # to the end of the line, by its one link
        ("reduce", 2, "1"),
        ("scatter", 0, "4"),  # four shares leave by one link
        ("gather", 4, "4"),
        ("scatter", 1, "3"),  # three to one side
        ("gather", 2, "2"),
    ],
)
def test_rooted_on_a_line_of_five(collective: str, root: int, expected: str) -> None:
    assert fraction(collective, "line(5)", root=root) == Fraction(expected)


def test_send_recv_goes_both_ways_round() -> None:
    """7/8 of each vector goes to the next device by one link, 1/8 by the seven others."""
    found = bound("send_recv", get_topology("ring(8)"), 1e9)
    assert (found.fraction_per_GBps, found.proof, found.exact) == (Fraction(7, 8), "prices", True)
    assert found.cut.devices == ()
    assert len(found.cut.prices) == len(found.cut.links) > 0
    assert fraction("send_recv", "switch(5)") == 1
    assert fraction("send_recv", "ring(2)") == 1


def test_one_way() -> None:
    """Round a ring of one-way links everything takes one way, and all_reduce may not be turned round."""
    topology = one_way_ring(5)
    for name, expected in {"all_gather": 4, "broadcast": 1, "all_reduce": 1.6, "all_to_all": 10, "gather": 4}.items():
        assert float(fraction(name, topology)) == expected
    assert bound("barrier", topology, 0).latency_bound_s == pytest.approx(4e-6)
    assert bound("send_recv", topology, 0).latency_bound_s == pytest.approx(1e-6)


@pytest.mark.parametrize(
    ("one", "other"),
    [("all_gather", "reduce_scatter"), ("broadcast", "reduce"), ("scatter", "gather"), ("all_reduce", "all_reduce")],
)
def test_duals_on_the_network_turned_round(one: str, other: str) -> None:
    rng = np.random.default_rng(7)
    src, dst = np.array([(a, b) for a in range(6) for b in range(6) if a != b]).T
    links = Links(src.copy(), dst.copy(), rng.integers(1, 9, 30).astype(np.float64) * GB, np.zeros(30))
    topology = compose("random", [graph(4, links, 2)])
    assert fraction(one, topology) == fraction(other, turned_round(topology))


def test_what_a_fraction_is_for() -> None:
    """bandwidth_bound_s is the fraction times the bytes of a unit: the vector, or one rank's share."""
    topology = get_topology("ring(8)")
    shares = {"all_gather", "reduce_scatter", "all_to_all", "scatter", "gather", "barrier"}
    for collective in COLLECTIVES:
        found = bound(collective, topology, 80e9)
        assert found.of == ("share" if collective in shares else "vector")
        unit_gb = 0 if collective == "barrier" else 10 if collective in shares else 80
        assert found.of_bytes == unit_gb * GB
        assert found.bandwidth_bound_s == pytest.approx(float(found.fraction_per_GBps * unit_gb))
        assert found.bound_s == max(found.bandwidth_bound_s, found.latency_bound_s, found.crossing_bound_s)


# Some of the devices.


def test_ranks_on_some_devices() -> None:
    assert fraction("all_gather", "ring(8)", devices=[0, 4]) == Fraction(1, 2)
    assert fraction("all_gather", "line(4)", devices=[0, 3]) == 1
    assert fraction("all_gather", "line(4)", devices=[0, 1, 2]) == 2
    # A device without a rank forwards, and has nothing of its own.
    assert fraction("all_reduce", "line(4)", devices=[0, 3]) == 1
    assert fraction("all_to_all", "line(4)", devices=[0, 2, 3]) == 2
    assert fraction("broadcast", "mesh(3x3)", devices=[4, 1], root=0) == Fraction(1, 3)
    assert fraction("all_gather", "switch(8) x switch(4, 0.1GB/s)", devices=range(8, 16)) == Fraction(70, 11)


def test_order_matters_only_where_ranks_are_distinguished() -> None:
    topology = get_topology("mesh(2x4)")
    order = [3, 1, 4, 0, 6, 7, 5, 2]
    for collective in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "barrier"):
        assert (
            bound(collective, topology, 1).fraction_per_GBps
            == bound(collective, topology, 1, devices=order).fraction_per_GBps
        )
    for collective in ROOTED:
        found = bound(collective, topology, 1, devices=order, root=3)  # on device 0
        assert found.fraction_per_GBps == bound(collective, topology, 1, root=0).fraction_per_GBps
    assert fraction("send_recv", "line(4)") == 1
    assert fraction("send_recv", "line(4)", devices=[0, 2, 1, 3]) == 2


def test_two_ranks_on_a_device() -> None:
    assert fraction("all_gather", "line(2)", devices=[0, 0, 1]) == 2
    assert fraction("all_to_all", "line(2)", devices=[0, 0, 1]) == 2
    assert fraction("gather", "line(2)", devices=[0, 0, 1]) == 1
    assert bound("all_reduce", get_topology("line(2)"), 1e9, devices=[1, 1, 1]).bound_s == 0


@pytest.mark.parametrize("collective", sorted(COLLECTIVES))
def test_one_rank_and_no_bytes(collective: str) -> None:
    alone = bound(collective, get_topology("ring(8, 1GB/s, 1us)"), 1e9, devices=[5])
    assert (alone.bound_s, alone.fraction_per_GBps, alone.cut, alone.farthest) == (0.0, Fraction(0), Cut(), None)
    assert bound(collective, get_topology("switch(1)"), 1e9).bound_s == 0
    nothing = bound(collective, get_topology("ring(7, 1GB/s, 1us)"), 0)
    assert nothing.bandwidth_bound_s == 0
    assert nothing.bound_s == nothing.latency_bound_s > 0


# Latency.


def test_latency_is_that_of_the_farthest_two() -> None:
    topology = get_topology("ring(6, 1GB/s, 1us) x switch(4, 1GB/s, 10us)")
    for collective in ("all_gather", "barrier", "all_to_all", "all_reduce", "reduce_scatter"):
        found = bound(collective, topology, 0)
        assert found.latency_bound_s == pytest.approx(23e-6)
        assert found.farthest == (0, 21)
    assert bound("broadcast", topology, 0, root=2).latency_bound_s == pytest.approx(23e-6)
    assert bound("broadcast", topology, 0, devices=[0, 1, 6]).latency_bound_s == pytest.approx(20e-6)
    assert bound("send_recv", topology, 0, devices=[0, 1, 2]).latency_bound_s == pytest.approx(2e-6)
    mixed = get_topology("line(3, 1GB/s, 2us) x fully_connected(3, 1GB/s, 5us) x fat_tree(2x2, 1GB/s, 1us)")
    assert bound("barrier", mixed, 0).latency_bound_s == pytest.approx(4e-6 + 5e-6 + 4e-6)


def test_latency_goes_round_a_dead_link() -> None:
    topology = get_topology("ring(6, 1GB/s, 1us)").with_slow_link(0, 1, 0.0)
    assert bound("barrier", topology, 0).latency_bound_s == pytest.approx(5e-6)
    # Where there are too many to look at every pair, links count as if they were up.
    assert bound("barrier", get_topology("ring(999, 1GB/s, 1us)").with_slow_link(0, 1, 0.0), 0).latency_bound_s > 0


@pytest.mark.parametrize(
    ("collective", "weights", "latency"),
    [
        ("all_to_all", [0, 1, 0, 0, 0, 0, 0, 0, 0], 1e-6),  # from 0 to 1
        ("all_to_all", [1, 0, 0, 0, 1, 0, 0, 0, 1], 0.0),  # everybody keeps what it has
        ("all_gather", [0, 1, 0], 1e-6),  # from the middle
        ("all_gather", [1, 1, 0], 2e-6),
        ("reduce_scatter", [0, 1, 0], 1e-6),
        ("gather", [1, 1, 0], 1e-6),
        ("scatter", [1, 0, 0], 0.0),
        ("send_recv", [1, 1, 0], 1e-6),
    ],
)
def test_empty_blocks_travel_nowhere(collective: str, weights: list[int], latency: float) -> None:
    found = bound(collective, "line(3, 50GB/s, 1us)", 9, weights=weights)
    assert found.latency_bound_s == pytest.approx(latency)
    assert found.bound_s < latency + 1e-6


def test_nothing_takes_no_time_without_latencies() -> None:
    for collective in COLLECTIVES:
        found = bound(collective, "torus(3x3, 10GB/s, 0ns)", 0, root=0 if COLLECTIVES[collective].rooted else None)
        assert found.bound_s == 0


def test_it_is_the_function_of_its_folder() -> None:
    assert choreo.bound is bound
    assert choreo.Bound is Bound
    assert "Cut(" not in repr(bound("all_gather", get_topology("ring(4)"), 1))  # it may be long


# No simulation beats it.

SLACK = 1e-9  # the simulator counts in floats


@settings(max_examples=80, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(topologies(), st.sampled_from(sorted(COLLECTIVES)), st.data())
def test_no_simulation_is_below_the_bound(topology: Topology, collective: str, data: st.DataObject) -> None:
    assume(topology.num_devices > 1)
    ranks = data.draw(st.integers(2, topology.num_devices))
    names = [one.name for one in list_algorithms(collective) if one.name != "hierarchical"]
    root = data.draw(st.integers(0, ranks - 1)) if COLLECTIVES[collective].rooted else None
    segments = data.draw(st.sampled_from((None, 2)))
    devices = data.draw(st.permutations(range(topology.num_devices)))[:ranks]
    size = data.draw(st.sampled_from((0, 1000, 6_000_000)))
    try:
        schedule = build(collective, data.draw(st.sampled_from(names)), ranks, root=root, segments=segments)
        run = simulate(schedule, topology, size, placement=devices)
    except (RefusedError, UsageError):  # no such algorithm at this number of ranks, or no way
        assume(False)
    found = bound(collective, topology, size, root=root, devices=devices)
    assert run.job_time_s(0) >= found.bound_s * (1 - SLACK)


@pytest.mark.parametrize(
    ("collective", "algorithm", "topology"),
    [
        ("all_gather", "ring_bidirectional", "ring(8)"),
        ("reduce_scatter", "ring_bidirectional", "ring(8)"),
        ("all_reduce", "ring_bidirectional", "ring(8)"),
        ("all_reduce", "ring", "switch(8)"),
        ("all_to_all", "direct", "switch(8)"),
        ("all_to_all", "direct", "fully_connected(8)"),
        ("scatter", "linear", "switch(8)"),
        ("all_gather", "direct", "switch(8, oversubscribed=2)"),
        ("reduce_scatter", "direct", "switch(8, oversubscribed=3)"),
        ("all_reduce", "direct", "switch(8, oversubscribed=2)"),
    ],
)
def test_and_some_attain_it(collective: str, algorithm: str, topology: str) -> None:
    run = simulate(build(collective, algorithm, 8), get_topology(topology), 8e6)
    assert run.job_time_s(0) == pytest.approx(bound(collective, get_topology(topology), 8e6).bound_s)


def test_what_binds_is_named() -> None:
    assert bound("all_gather", "ring(8, 1GB/s, 1us)", 0).binds == "latency"
    assert bound("all_gather", "ring(8, 1GB/s, 1us)", 8000).binds == "bandwidth and latency"
    assert bound("all_gather", "ring(8, 1GB/s)", 8000).binds == "bandwidth"
