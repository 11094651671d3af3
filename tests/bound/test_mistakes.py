"""The bound's numbers, and what it says of mistakes."""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from choreo.bound import bound
from choreo.bound.flow_network import exact_gigabytes
from choreo.collectives import COLLECTIVES
from choreo.errors import UnknownNameError, UsageError
from choreo.topology import Links, compose, fully_connected, get_topology, graph, line, ring
from tests.oracles.bound import fraction


def test_bandwidths_are_the_fractions_that_were_meant() -> None:
    assert exact_gigabytes(50e9 * (1 / 3)) == Fraction(50, 3)
    assert exact_gigabytes(12.5e9) == Fraction(25, 2)
    assert exact_gigabytes(1e9 / math.pi) == Fraction(1e9 / math.pi) / 10**9
    assert exact_gigabytes(1.0) == Fraction(1, 10**9)
    slow = get_topology("torus(4x4)").with_slow_device(3, 3)
    assert fraction("all_gather", slow) == Fraction(45, 4)


def test_numbers_that_are_no_simple_fractions() -> None:
    topology = get_topology("mesh(3x3)").with_slow_device(4, math.pi).with_slow_link(0, 1, math.sqrt(0.5))
    found = bound("all_gather", topology, 9e9)
    assert found.exact
    assert found.bandwidth_bound_s == pytest.approx(8 * math.pi / 4)  # into the slow device, by its four links
    for collective in COLLECTIVES:
        assert bound(collective, topology, 9e9).bound_s >= 0


def test_extreme_numbers() -> None:
    tiny = compose("tiny", [ring(4, 1e-100, 0.0)])
    with pytest.raises(UsageError, match="all_gather takes longer than can be counted on tiny; use numbers of this"):
        bound("all_gather", tiny, 1e50)
    wide = compose("wide", [fully_connected(3, 1e100, 0.0)]).with_slow_link(0, 1, 1e-300)
    for collective in COLLECTIVES:
        assert bound(collective, wide, 1).bound_s >= 0
    assert bound("all_gather", compose("r", [line(3, 1e9, 0.0)]), np.float64(3e9)).bound_s == pytest.approx(2.0)


def test_no_way() -> None:
    broken = get_topology("line(4, 1GB/s, 1us)").with_slow_link(1, 2, 0.0)
    for collective in ("all_gather", "all_reduce", "all_to_all", "send_recv", "broadcast", "barrier"):
        with pytest.raises(
            UsageError, match=r"there is no way from device 0 to device 2 of line\(4, 1GB/s, 1us\) over"
        ):
            bound(collective, broken, 1)
    assert bound("gather", broken, 4e9).fraction_per_GBps == 3  # nothing need go that way
    assert bound("all_gather", broken, 2e9, devices=[0, 1]).fraction_per_GBps == 1
    with pytest.raises(UsageError, match="there is no way from device 0 to device 1"):
        bound("reduce", get_topology("switch(2, 0GB/s)"), 1, root=1)
    with pytest.raises(UsageError, match="there is no way from device a to device b"):
        bound("all_gather", compose("two", [graph(2, Links.join([]), names=("a", "b"))]), 1)


def test_junk() -> None:
    topology = get_topology("ring(8)")
    with pytest.raises(UnknownNameError, match="there is no collective 'all_gathr'; did you mean 'all_gather'"):
        bound("all_gathr", topology, 1)
    for size in (-1, math.nan, math.inf, None, True, 10**400):
        with pytest.raises(UsageError, match="size_bytes must be a number of at least 0, or text like '1MiB', not"):
            bound("all_gather", topology, size)  # type: ignore[arg-type]  # the mistake is the test
    with pytest.raises(UsageError, match="'1 megabyte' is not a size"):
        bound("all_gather", topology, "1 megabyte")
    for devices in ([], [[0, 1]], [[0], [0, 1]], [0.5], "01", [True, False], 3):
        with pytest.raises(UsageError, match="a placement is a list of devices, numbers or names, one per rank, not"):
            bound("all_gather", topology, 1, devices=devices)  # type: ignore[arg-type]
    for outside in ([0, 8], [-1]):
        with pytest.raises(UsageError, match=r"rank \d cannot be on device -?\d: ring\(8\) has devices 0 to 7"):
            bound("all_gather", topology, 1, devices=outside)
    for weights in ([1, 2], [1] * 7 + [-1], [0] * 8, [0.5] * 8, "12345678"):
        with pytest.raises(UsageError, match="weights must be 8 whole numbers of at least 0, some above, one for each"):
            bound("all_gather", topology, 1, weights=weights)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="weights must add up to at most"):
        bound("all_gather", topology, 1, weights=[1 << 60] * 8)
    with pytest.raises(UsageError, match="all_gather has no root, but root=0 was given; leave it out"):
        bound("all_gather", topology, 1, root=0)
    with pytest.raises(UsageError, match="root 8 is not a rank: with 8 ranks it must be 0 to 7"):
        bound("broadcast", topology, 1, root=8)
    with pytest.raises(UsageError, match="a topology is a text, a path or a Topology, not SimpleNamespace"):
        bound("all_gather", SimpleNamespace(), 1)  # type: ignore[arg-type]
