"""Translated: trees of one rank that every rank follows, with every port busy in every step."""

from __future__ import annotations

import math

import numpy as np
import pytest

from choreo.algorithms import build, parse_axes
from choreo.errors import UsageError
from choreo.prove import prove
from choreo.simulate import simulate

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")
# Axes, and the ports that a rank has along them.
MESHES = {
    "5": 2,
    "6": 2,
    "2": 1,
    "3x3": 4,
    "4x4": 4,
    "5x3": 4,
    "2x8": 3,
    "2x2x2": 3,
    "4x4x4": 6,
    "7x5x3": 6,
    "4x8:ring,direct": 9,
    "8x2:switch,ring": 2,
    "6:direct": 5,
    "9:switch": 1,
    "1x7": 2,
    "3x4:fully_connected,switch": 3,
}


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("axes", MESHES)
def test_proved_over_any_axes(collective: str, axes: str) -> None:
    schedule = build(collective, "translated", parse_axes(axes).ranks, axes=axes)
    assert prove(schedule).ranks == parse_axes(axes).ranks
    assert schedule.axes == str(parse_axes(axes))


@pytest.mark.parametrize(("axes", "ports"), MESHES.items())
def test_no_port_is_idle_before_the_last_step(axes: str, ports: int) -> None:
    ranks = parse_axes(axes).ranks
    assert build("all_gather", "translated", ranks, axes=axes).num_steps == math.ceil((ranks - 1) / ports)


@pytest.mark.parametrize("axes", ["4x4", "5x3", "3x4x5", "8x2"])
def test_a_ring_carries_one_message_each_way_in_a_step(axes: str) -> None:
    sizes = parse_axes(axes).sizes
    rows = build("all_gather", "translated", math.prod(sizes), axes=axes).columns()
    links = np.stack((rows.step, rows.src, rows.dst))
    assert np.unique(links, axis=1).shape == links.shape
    strides = np.cumprod((1, *sizes[:-1]))
    at = [rank[:, None] // strides % sizes for rank in (rows.src, rows.dst)]
    hops = (at[1] - at[0]) % sizes
    assert ((hops == 1) | (hops == np.array(sizes) - 1)).sum(axis=1).tolist() == [1] * len(hops)
    assert ((hops != 0).sum(axis=1) == 1).all()


def test_a_torus_is_used_almost_fully() -> None:
    network = "torus(4x4x4, 45GB/s, 1us)"
    translated, rings = (
        simulate(build("all_gather", name, 64, axes="4x4x4"), network, "1GiB")
        for name in ("translated", "hierarchical")
    )
    assert translated.efficiency > 0.95 > 5 * rings.efficiency


def test_axes_that_make_another_number_of_ranks_are_refused() -> None:
    with pytest.raises(UsageError, match="axes 3 x 4 make 12 ranks, not 8; let them multiply to the ranks"):
        build("all_gather", "translated", 8, axes="3x4")
