"""The bound at scale: exact without a search, or said not to be."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import choreo
from choreo.bound import bound
from choreo.topology import Links, compose, get_topology, graph
from tests.oracles.bound import fraction

LARGE = [
    ("ring(4096, 50GB/s, 500ns)", "4095/100", "1048576/25", "4095/204800"),
    ("switch(4096, 50GB/s, 500ns)", "4095/50", "4095/50", "4095/102400"),
    ("torus(128x128)", "16383/4", "262144", "16383/32768"),
    ("torus(32x32x16)", "16383/6", "65536", "16383/49152"),
    ("mesh(128x128)", "16383/2", "524288", "16383/32512"),
    ("fully_connected(512)", "1", "1", "1/256"),
    ("switch(8, 450GB/s) x switch(2048, 50GB/s)", "16376/400", "8188/25", "2047/409600"),
    ("hgx-h100:2048", "16376/400", "8188/25", "2047/409600"),
]


@pytest.mark.parametrize(("topology", "all_gather", "all_to_all", "all_reduce"), LARGE, ids=[row[0] for row in LARGE])
def test_large(topology: str, all_gather: str, all_to_all: str, all_reduce: str) -> None:
    large = get_topology(topology)
    assert fraction("all_gather", large) == fraction("reduce_scatter", large) == Fraction(all_gather)
    assert fraction("scatter", large) == fraction("gather", large) == Fraction(all_gather)
    assert fraction("all_to_all", large) == Fraction(all_to_all)
    assert fraction("all_reduce", large) == Fraction(all_reduce)
    assert fraction("broadcast", large) == fraction("reduce", large)


def test_large_with_a_slow_device() -> None:
    large = get_topology("torus(64x64)")
    assert fraction("all_gather", large.with_slow_device(77, 3)) == Fraction(3 * 4095, 4)
    assert fraction("all_gather", large.with_slow_link(0, 1, 0.5)) == Fraction(4095 * 2, 7)
    assert fraction("broadcast", large.with_slow_link(5, 4, 0.0), root=9) == Fraction(1, 3)
    servers = get_topology("switch(8, 450GB/s) x switch(512, 50GB/s)")
    assert fraction("all_gather", servers.with_slow_device(9, 2)) == Fraction(4095, 250)


def test_large_where_it_may_not_be_the_best() -> None:
    large = get_topology("torus(64x64)").with_slow_device(0, 3)
    for collective in ("all_to_all", "all_reduce", "send_recv"):
        found = bound(collective, large, 1e9)
        assert not found.exact
        assert found.fraction_per_GBps >= bound(collective, get_topology("torus(64x64)"), 1e9).fraction_per_GBps > 0
    some = bound("all_to_all", get_topology("torus(64x64)"), 1e9, devices=range(0, 4096, 3))
    assert not some.exact
    assert some.fraction_per_GBps > 0


def test_large_graphs_are_bounded_by_the_cuts_around_devices() -> None:
    at = np.arange(3000)
    ends = np.concatenate((at, (at + 1) % 3000)), np.concatenate(((at + 1) % 3000, at))
    large = compose("a ring in a file", [graph(3000, Links.uniform(*ends, 2e9, 1e-6))])
    found = bound("all_gather", large, 3e9)
    assert (found.fraction_per_GBps, found.exact) == (Fraction(2999, 4), False)
    assert found.latency_bound_s == pytest.approx(1500e-6)
    many = get_topology(" x ".join(["ring(2)"] * 12))
    assert bound("all_gather", many, 1).fraction_per_GBps == Fraction(4095, 12)


@pytest.mark.parametrize(
    ("network", "optimum"), [("torus(8x8, 50GB/s, 1us)", 7 / 8), ("torus(4x4x4, 50GB/s, 1us)", 3 / 4)]
)
def test_a_send_recv_of_many_ranks_is_bounded_by_prices_of_links(network: str, optimum: float) -> None:
    """Cuts alone prove half of what the best flow takes on the torus of 8 x 8."""
    found = bound("send_recv", network, "64MiB")
    assert found.proof == "prices" and not found.exact
    assert 0.98 * optimum < found.bandwidth_bound_s / (64 * 2**20 / 50e9) <= optimum * (1 + 1e-9)
    direct = choreo.build("send_recv", "direct", 64)
    assert choreo.simulate(direct, network, "64MiB").time_s >= found.bound_s
