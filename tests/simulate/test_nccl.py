"""What NCCL would take on any topology: never faster than its own hops and its own bytes, and only where it runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings

from choreo.errors import RefusedError, UsageError
from choreo.simulate import simulate_nccl
from choreo.topology import Links, Topology, compose, get_topology, graph
from tests.helpers.simulate import topologies

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "gather")


def two_islands(bandwidth: float) -> Topology:
    """Twice five devices, all joined, and one link between the two halves."""
    ends = [(a, b) for island in (range(5), range(5, 10)) for a in island for b in island if a != b]
    ends += [(4, 5), (5, 4)]
    figures = [100e9] * (len(ends) - 2) + [bandwidth] * 2
    src, dst = np.array(ends, np.int64).T
    links = Links(src.copy(), dst.copy(), np.array(figures), np.full(len(ends), 1e-6))
    return compose("islands", [graph(10, links)])


def test_a_ring_crosses_the_narrowest_cut_with_all_its_bytes() -> None:
    found = simulate_nccl("all_reduce", two_islands(3.12e9), 268e6, forced="Ring")
    assert found.bound_s == pytest.approx(268e6 / 3.12e9, rel=1e-3)
    assert found.time_s >= 2 * 9 / 10 * 268e6 / 3.12e9
    assert found.efficiency < 0.56


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_nothing_reaches_all_of_the_bandwidth(collective: str) -> None:
    for network in (two_islands(3.12e9), "dgx-1", "mesh(4x4, 10GB/s, 1us)", "switch(8, 450GB/s, 1us, reduces)"):
        assert simulate_nccl(collective, network, "1GiB").efficiency < 0.97


@pytest.mark.parametrize(("collective", "hops"), [("all_reduce", 126), ("all_gather", 63), ("reduce_scatter", 63)])
def test_never_faster_than_its_own_hops(collective: str, hops: int) -> None:
    assert simulate_nccl(collective, "ring(64, 10GB/s, 100us)", 1024).time_s >= hops * 100e-6
    larger = simulate_nccl(collective, "torus(16x16, 10GB/s, 100us)", 1024, forced="Ring")
    assert larger.time_s >= 4 * hops * 100e-6


def test_members_far_apart_have_longer_hops() -> None:
    found = simulate_nccl("all_reduce", "ring(64, 10GB/s, 100us)", 1024, devices=[0, 32])
    assert found.time_s >= 2 * 32 * 100e-6


@given(topologies())
@settings(max_examples=25)
def test_never_below_the_bound(network: Topology) -> None:
    for collective in COLLECTIVES:
        for size in (8, 1 << 20):
            try:
                found = simulate_nccl(collective, network, size)
            except UsageError:  # no way between two devices
                assume(False)
            assert found.time_s >= found.bound_s
            assert 0 <= found.efficiency <= 1


@pytest.mark.parametrize(
    ("network", "instead"),
    [
        ("tpu-v4", "TPU-v4 has no NCCL: its collectives are XLA's"),
        ("torus(4x4, 50GB/s, 1us, medium=ici)", "TPU has no NCCL"),
        ("cerebras-swarmx", "CS-2 has no NCCL: its collectives are part of Cerebras' compiler"),
        ("hls-1:2", "HCCL"),
        ("dojo", "D1 has no NCCL"),
        ("wormhole-galaxy", "Wormhole has no NCCL"),
    ],
)
def test_accelerators_without_nccl_are_refused(network: str, instead: str) -> None:
    with pytest.raises(RefusedError, match=instead) as refused:
        simulate_nccl("all_reduce", network, "1MiB")
    assert "--algorithm all" in str(refused.value)


def test_a_device_that_nobody_knows_may_have_nccl() -> None:
    assert simulate_nccl("all_reduce", get_topology("switch(4, 100GB/s, 1us)"), "1MiB").time_s > 0


def star(leaves: int) -> Topology:
    """A device in the middle, joined to each of the others by a link of its own."""
    ends = [(0, leaf) for leaf in range(1, leaves + 1)] + [(leaf, 0) for leaf in range(1, leaves + 1)]
    src, dst = np.array(ends, np.int64).T
    links = Links(src.copy(), dst.copy(), np.full(len(ends), 25e9), np.full(len(ends), 100e-6))
    return compose("star", [graph(leaves + 1, links)])


@pytest.mark.parametrize("leaves", [2, 8, 40])
def test_a_ring_through_a_star_passes_its_middle_between_any_two_leaves(leaves: int) -> None:
    ranks, tour = leaves + 1, (2 + 2 * (leaves - 1)) * 100e-6
    assert simulate_nccl("all_gather", star(leaves), 8, forced="Ring").time_s >= (ranks - 1) / ranks * tour
    # All steps of one chunk are two tours but for two hops.
    assert 2 * tour - 400e-6 <= simulate_nccl("all_reduce", star(leaves), 8, forced="Ring").time_s <= 2.1 * tour


def test_a_tree_goes_to_the_farthest_rank_and_back() -> None:
    network = "switch(8, 450GB/s, 500ns, medium=nvlink) x ring(9, 25GB/s, 1ms, medium=network)"
    for algorithm in ("Tree", "Ring"):
        assert simulate_nccl("all_reduce", network, 8, forced=algorithm).time_s >= 2 * 4 * 1e-3


@pytest.mark.parametrize(
    "network", ["hgx-h100:512", "dgx-a100:128", "gb200-nvl72:1", "gb300-nvl72:8", "dgx-superpod:1"]
)
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "broadcast"])
def test_larger_is_never_faster(collective: str, network: str) -> None:
    times = [simulate_nccl(collective, network, 8 << power).time_s for power in range(0, 30, 2)]
    assert times == sorted(times)
