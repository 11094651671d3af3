"""Shares of the ranks that are found: what the bound allows, and no worse than equal ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import choreo
from choreo.errors import UsageError
from choreo.synthesize import search
from choreo.synthesize.shares import best_shares
from choreo.topology import Links, compose, graph
from tests.helpers.cli import fine, mistake, record

SWITCH = "switch(4, 100GB/s, 1us)"


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("topology", [SWITCH, "ring(5, 50GB/s, 1us)", "dgx-1"])
def test_a_slow_rank_gets_more_and_all_are_done_sooner(collective: str, topology: str) -> None:
    network = choreo.get_topology(topology).with_slow_device(2, 3)
    even = search(collective, network, "64MiB")
    found = search(collective, network, "64MiB", shares="auto")
    choreo.prove(found.schedule)
    assert found.shares is not None and np.argmax(found.shares) == 2
    assert sum(found.shares) == pytest.approx(1)
    assert found.time_s < 0.9 * even.time_s
    assert found.time_s >= found.bound_s * (1 - 1e-9)


def test_a_rank_a_billion_times_slower_keeps_half_as_well() -> None:
    network = choreo.get_topology(SWITCH).with_slow_device(3, 1e9)
    assert best_shares("all_gather", network, np.arange(4)).round(3).tolist() == [0.167, 0.167, 0.167, 0.5]


@given(
    slow=st.lists(st.floats(1, 8), min_size=4, max_size=4), others=st.lists(st.integers(0, 50), min_size=4, max_size=4)
)
def test_no_other_shares_have_a_lesser_bound(slow: list[float], others: list[int]) -> None:
    network = choreo.get_topology(SWITCH)
    for device, times in enumerate(slow):
        network = network.with_slow_device(device, times)
    shares = np.round(best_shares("all_gather", network, np.arange(4)) * (1 << 20)).astype(np.int64)
    best = choreo.bound("all_gather", network, "1GB", weights=shares).bandwidth_bound_s
    if any(others):
        assert best <= 1.012 * choreo.bound("all_gather", network, "1GB", weights=others).bandwidth_bound_s


def test_ranks_that_are_alike_have_equal_shares() -> None:
    assert search("all_gather", SWITCH, "1MiB", shares="auto").shares is None
    assert best_shares("all_gather", choreo.get_topology(SWITCH), np.arange(4)).tolist() == [0.25] * 4


def test_members_of_a_group_have_shares() -> None:
    network = choreo.get_topology("mesh(3x3, 50GB/s, 1us)").with_slow_device(5, 4)
    found = search("all_gather", network, "64MiB", ranks=[1, 3, 5], shares="auto")
    choreo.prove(found.schedule)
    assert found.shares is not None and np.argmax(found.shares) == 2


def test_the_command_prints_what_it_found() -> None:
    asked = ("synthesize", "all_gather", "-t", SWITCH, "--size", "64MiB", "--slow-rank", "3=2x", "--shares", "auto")
    assert "in % of all data: 16.7, 16.7, 16.7, 50.0" in fine(*asked).out
    shares = record(fine(*asked, "--json"))["shares"]
    assert isinstance(shares, list) and len(shares) == 4


def test_what_has_no_shares_to_find_is_refused() -> None:
    with pytest.raises(UsageError, match="for all_gather and reduce_scatter, not for gather"):
        choreo.synthesize("gather", SWITCH, "1MiB", shares="auto")
    with pytest.raises(UsageError, match="or 'auto', not 'best'"):
        choreo.synthesize("all_gather", SWITCH, "1MiB", shares="best")
    assert "has no blocks" in mistake("synthesize", "all_reduce", "-t", SWITCH, "--size", "1MiB", "--shares", "auto")


def test_shares_that_leave_no_port_a_free_moment_give_way_to_more_even_ones() -> None:
    network = choreo.get_topology("hgx-h100:2").with_slow_device(3, 2)
    uneven = search("reduce_scatter", network, "64MiB", shares=best_shares("reduce_scatter", network, np.arange(16)))
    found = search("reduce_scatter", network, "64MiB", shares="auto")
    assert found.shares is not None and uneven.shares is not None
    assert max(found.shares) < max(uneven.shares) and found.time_s < uneven.time_s


def test_where_equal_shares_are_faster_they_are_found() -> None:
    """A short message does not pay for what a slow link's rank must send alone."""
    network = choreo.get_topology("mesh(4x2, 50GB/s, 1us)").with_slow_device(1, 4)
    even = search("all_gather", network, 65536, effort="low")
    found = search("all_gather", network, 65536, shares="auto", effort="low")
    assert (best_shares("all_gather", network, np.arange(8)) != 1 / 8).any()
    assert found.shares is None and found.time_s == even.time_s


def test_a_large_block_is_cut_finely_enough() -> None:
    """A rank behind narrow links keeps half of the data: as many chunks as suit equal blocks would be too few."""
    rng = np.random.default_rng(100)
    pairs = {(int(rng.integers(child)), child) for child in range(1, 11)}
    while len(pairs) < 22:
        here, there = sorted(rng.choice(11, 2, replace=False).tolist())
        pairs.add((here, there))
    src, dst = np.array(sorted(pairs)).T
    width = 25e9 * rng.choice([1, 2, 4], len(src))
    ends = np.concatenate((src, dst)), np.concatenate((dst, src))
    network = compose("random", [graph(11, Links(*ends, np.tile(width, 2), np.full(44, 1e-6)))])
    found = search("all_gather", network, "1GiB", shares="auto", effort="low")
    choreo.prove(found.schedule)
    assert found.shares is not None and max(found.shares) > 0.4
    assert found.efficiency > 0.95
