"""What a picture of a network marks: loads of links, slow and highlighted ones, and what it refuses to mark."""

from __future__ import annotations

import re

import numpy as np
import pytest

from choreo.errors import UsageError
from choreo.show import topology_svg
from choreo.show.drawing import WRONG
from choreo.show.topology.paint import LOADS, load_color
from choreo.show.topology.panels import panels_of
from choreo.topology import get_topology
from tests.helpers.pages.pictures import words_of


def told_colors(picture: str) -> dict[str, str]:
    """The colour of every link that is described on its own."""
    return dict(re.findall(r'<g><title>([^<]*)</title><path [^>]*stroke="(#[0-9a-f]{6})"', picture))


def test_load_colours_both_directions_of_every_link() -> None:
    topology = get_topology("ring(4, 50GB/s)")
    load = np.array([0, 0.25, 0.5, 1, 0, 0, 0, 0.75])
    picture = topology_svg(topology, load=load)
    links = topology.links
    assert told_colors(picture) == {
        f"{links.src[link]} → {links.dst[link]}, 50.0 GB/s, {load[link]:.0%} busy": load_color(load[link])
        for link in range(8)
    }
    assert "the busiest: 3 → 0, 100%" in words_of(picture)
    assert [load_color(at / 5) for at in range(6)] == list(LOADS)
    assert load_color(2.0) == LOADS[-1]


def test_a_cable_has_the_load_of_its_busiest_link() -> None:
    topology = get_topology("switch(4, 100GB/s) x switch(2, 10GB/s)")
    load = np.zeros(len(topology.links))
    wire = next(wire for panel in panels_of(topology) for wire in panel.placed.wires if wire.dim == 1)
    load[wire.forward[2]] = 0.6
    colors = told_colors(topology_svg(topology, load=load))
    assert colors["0 → switch2 and 3 more, 10.0 GB/s, 60% busy"] == load_color(0.6)
    assert colors["4 → switch2 and 3 more, 10.0 GB/s, 0% busy"] == load_color(0.0)


def test_the_busiest_link_is_never_left_out() -> None:
    topology = get_topology("torus(64x64x64, 50GB/s)")
    load = np.zeros(len(topology.links))
    src, dst = 12345, 12346
    link = int(np.flatnonzero((topology.links.src == src) & (topology.links.dst == dst))[0])
    load[link] = 0.9
    assert {"12345", "12346"} <= set(words_of(topology_svg(topology, load=load)))
    assert {"12345", "12346"} <= set(words_of(topology_svg(topology, highlight=[link])))
    assert "12345" not in words_of(topology_svg(topology))
    inner = words_of(
        topology_svg(get_topology("ring(4) x switch(8) x fully_connected(8) x switch(64)").with_slow_device(9999, 2))
    )
    assert "9999" in inner


def test_slow_links_and_devices_stand_out() -> None:
    topology = get_topology("ring(8, 50GB/s)").with_slow_link(2, 3, 0.1).with_slow_link(5, 6, 0).with_slow_device(0, 2)
    picture = topology_svg(topology)
    words = words_of(picture)
    assert "5 links slower than the others: 5.00 GB/s to 25.0 GB/s" in words
    assert "1 link down" in words
    assert "1 device 2 times slower" in words
    assert picture.count(f'stroke="{WRONG}" stroke-width="1.8"/>') == 1
    # Of a link that is slow one way only that way is red.
    colors = told_colors(picture)
    assert colors["2 → 3, 5.00 GB/s"] == colors["5 → 6, down"] == WRONG
    assert colors["3 → 2, 50.0 GB/s"] == colors["6 → 5, 50.0 GB/s"] != WRONG
    assert WRONG not in topology_svg(get_topology("ring(8, 50GB/s)"))
    assert WRONG in topology_svg(get_topology("ring(8, 0GB/s)"))


def test_highlighted_links_have_an_arrow() -> None:
    topology = get_topology("fully_connected(4, 50GB/s)")
    plain, pointed = topology_svg(topology), topology_svg(topology, highlight=[3])
    assert "pointed out" in words_of(pointed)
    assert pointed.count('z" fill=') == plain.count('z" fill=') + 1
    assert topology_svg(topology, highlight=np.array([3])) == pointed


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"load": [0.5]}, "load has the shape (1,); ring(4) has 8 links"),
        ({"load": np.full(8, 1.5)}, "a link's load is a number from 0 to 1"),
        ({"load": np.full(8, -0.1)}, "a link's load is a number from 0 to 1"),
        ({"load": np.full(8, np.nan)}, "a link's load is a number from 0 to 1"),
        ({"highlight": [8]}, "highlight has a link that is not there; they are 0 to 7"),
        ({"highlight": [-1]}, "highlight has a link that is not there"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options: dict[str, list[int]], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        topology_svg(get_topology("ring(4)"), **options)
    assert sentence in str(refused.value)
