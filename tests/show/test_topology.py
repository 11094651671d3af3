"""The picture of a network: every link once and where it belongs, readable at any size, safe to open."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from choreo.show import topology_svg
from choreo.show.topology.kinds import kinds_of, width_of
from choreo.show.topology.panels import Panel, panels_of
from choreo.show.topology.place import PlacedWire
from choreo.show.topology.scene import Point, arc, beside, middle, places_of, slots_of, straight
from choreo.show.topology.stages import level_sizes, stages_of
from choreo.topology import Links, Topology, compose, fat_tree, get_topology, graph, list_topologies
from tests.helpers.pages.pictures import SVG, words_of

# Small enough to be drawn whole.
WHOLE = [
    "ring(1)",
    "ring(2, 50GB/s, 500ns)",
    "ring(8, 50GB/s, 500ns)",
    "fully_connected(8, 50GB/s, 500ns)",
    "switch(8, 300GB/s, 500ns, medium=nvlink)",
    "switch(8, 300GB/s, 500ns, oversubscribed=4)",
    "switch(8, 0GB/s, 500ns, oversubscribed=4)",
    "line(5, 50GB/s)",
    "mesh(4x3, 50GB/s, 500ns)",
    "torus(4x3, 50GB/s, 500ns)",
    "torus(4x3x2, 50GB/s, 500ns)",
    "torus(4x4x4, 50GB/s, 500ns)",
    "fat_tree(4x3x2, 50GB/s, 500ns, spines=2)",
    "fat_tree(8x1)",
    "ring(4, 200GB/s, 50ns) x fully_connected(4, 100GB/s, 500ns) x switch(4, 50GB/s, 2us)",
    "switch(8, 450GB/s) x switch(4, 50GB/s)",
    "switch(4, 300GB/s) x torus(3x4, 25GB/s)",
    "fully_connected(2) x ring(5)",
    "line(3) x fat_tree(2x2)",
    "switch(1) x ring(3) x switch(1)",
]
# Too large for that.
LARGE = [
    "hgx-h100:2048",
    "torus(16x16x16, 50GB/s, 500ns)",
    "ring(1024)",
    "fully_connected(256)",
    "switch(64, 50GB/s, 1us, oversubscribed=4)",
    "mesh(20x30)",
    "fat_tree(32x16x8, spines=8)",
    "switch(8) x fat_tree(16x8x4, 25GB/s, 1us, spines=4)",
    "switch(8) x torus(4x4x4)",
    "torus(4x4x4x4)",
    "ring(4) x switch(8) x fully_connected(8) x ring(8) x switch(64)",
    "switch(100000)",
]
HOSTILE = "</title><script>alert(1)</script>'\"& ]]>\x1b[31m\x00"


def cube_mesh(doubled: bool = True) -> Topology:
    """NVIDIA's DGX-1: two quads and a link from each GPU to its twin, some of them double."""
    quad = [(0, 1, 1), (0, 2, 1), (0, 3, 2), (1, 2, 2), (1, 3, 1), (2, 3, 2)]
    pairs = [*quad, *((a + 4, b + 4, n) for a, b, n in quad), (0, 4, 2), (1, 5, 2), (2, 6, 1), (3, 7, 1)]
    ends = [pair for a, b, n in pairs for pair in [(a, b), (b, a)] * (n if doubled else 1)]
    src, dst = np.array(ends).T
    names = tuple(f"gpu{number}" for number in range(8))
    return compose("cube mesh", [graph(8, Links.uniform(src, dst, 25e9, 7e-7), names=names)])


# Every link once, and where it belongs


def all_wires(panels: list[Panel]) -> list[PlacedWire]:
    return [wire for panel in panels for wire in panel.placed.wires]


def drawn_links(panels: list[Panel]) -> Counter[int]:
    found: Counter[int] = Counter()
    for panel in panels:
        for wire in panel.placed.wires:
            found.update(wire.forward.tolist() + wire.backward.tolist())
        for switch in panel.placed.switches:
            found.update(switch.inside.tolist())
    return found


def is_at(panel: Panel, topology: Topology, level: int, node: int, point: Point) -> bool:
    """Whether a point is where a node is drawn, or in the group of a wire's level that the node is in."""
    placed, (x, y) = panel.placed, point
    boxes = [(switch.at, switch.shape.width, switch.shape.height) for switch in placed.switches]
    if node < topology.num_devices:
        boxes = [(group.at, group.width, group.height) for group in placed.groups
                 if group.level == level and group.number == node // group.devices]  # fmt: skip
        if not boxes:
            boxes = [(device.at, 1.0, 1.0) for device in placed.devices if device.number == node]
    return any(abs(x - at[0]) <= wide / 2 and abs(y - at[1]) <= tall / 2 for at, wide, tall in boxes)


@pytest.mark.parametrize("text", WHOLE)
def test_every_link_is_drawn_once_and_between_its_ends(text: str) -> None:
    topology = get_topology(text)
    panels = panels_of(topology)
    assert drawn_links(panels) == Counter(range(len(topology.links)))
    (panel,) = panels
    for wire in panel.placed.wires:
        start, end = wire.curves[0][0], wire.curves[-1][3]
        for links, (first, last) in ((wire.forward, (start, end)), (wire.backward, (end, start))):
            for link in links.tolist():
                assert is_at(panel, topology, wire.level, int(topology.links.src[link]), first)
                assert is_at(panel, topology, wire.level, int(topology.links.dst[link]), last)


@pytest.mark.parametrize("text", WHOLE)
def test_every_device_is_drawn_once(text: str) -> None:
    topology = get_topology(text)
    numbers = [device.number for panel in panels_of(topology) for device in panel.placed.devices]
    assert sorted(numbers) == list(range(topology.num_devices))
    words = words_of(topology_svg(topology))
    assert {str(number) for number in numbers} <= set(words)


@pytest.mark.parametrize("text", LARGE)
def test_of_a_large_network_what_is_drawn_is_right(text: str) -> None:
    topology = get_topology(text)
    panels = panels_of(topology)
    assert max(drawn_links(panels).values()) == 1
    for wire in all_wires(panels):
        ends = [(set(topology.links.src[some].tolist()), set(topology.links.dst[some].tolist()))
                for some in (wire.forward, wire.backward)]  # fmt: skip
        if wire.dim == len(topology.blocks) - 1 and topology.blocks[wire.dim].switches == 0:
            assert ends[0] == ends[1][::-1]


def test_the_parts_of_an_arrangement_by_hand() -> None:
    assert [stage.kind for stage in stages_of(get_topology("ring(4) x ring(4) x switch(2) x ring(3)"))] == [
        "grid",
        "switch",
        "ring",
    ]
    assert [(stage.kind, stage.inner) for stage in stages_of(get_topology("torus(2x3x4x5x6)"))] == [
        ("space", 1),
        ("grid", 24),
    ]
    assert stages_of(get_topology("ring(1) x switch(1)")) == []
    assert slots_of((0, 1, 2, 9)) == [0, 1, 2, None, 9]
    assert places_of([0, 1, 2], 0.5) == [-1, 0, 1]
    assert places_of([0, None, 9], 0.5) == [-0.75, 0, 0.75]


@pytest.mark.parametrize("sizes", [(4,), (4, 3), (2, 2, 2), (1, 4), (8, 1), (3, 1, 2), (4, 4, 2)])
@pytest.mark.parametrize("spines", [1, 2, 3])
def test_the_levels_of_a_tree_are_read_from_its_links(sizes: tuple[int, ...], spines: int) -> None:
    assert level_sizes(fat_tree(sizes, 1e9, 0.0, spines=spines)) == sizes


# What a person reads


@pytest.mark.parametrize("text", [*WHOLE, *LARGE, *(machine.name for machine in list_topologies())])
def test_the_picture_is_whole_small_and_always_the_same(text: str) -> None:
    topology = get_topology(text)
    picture = topology_svg(topology)
    assert picture == topology_svg(topology)
    assert len(picture) < 100_000
    root = ElementTree.fromstring(picture)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert 300 < width < 2000
    assert 100 < height < 1700
    assert root.attrib["viewBox"] == f"0 0 {width:.0f} {height:.0f}"
    words = words_of(picture)
    assert " ".join(words).startswith(topology.name)
    facts = next(word for word in words if " device" in word)
    assert facts.startswith(f"{topology.num_devices} device")
    assert facts.endswith(f"{len(topology.links)} link{'s' if len(topology.links) != 1 else ''}")
    assert not re.search(r"<script|href|url\(|@import|<style|id=|https?://(?!www\.w3\.org/2000/svg)", picture)
    assert "nan" not in picture
    assert "inf" not in picture.replace("information", "")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("hgx-h100:2048", "2048 in all"),
        ("torus(16x16x16)", "16 x 16 x 16 in all"),
        ("mesh(20x30)", "20 x 30 in all"),
        ("ring(1024)", "1024 in all"),
        ("fully_connected(256)", "256 in all"),
        ("fat_tree(32x16x8)", "4096 in all"),
        (
            "ring(4) x switch(8) x fully_connected(8) x ring(8) x switch(64)",
            "inside a group of 256 devices, here 0–255",
        ),
        ("switch(8) x torus(4x4x4)", "inside a group of 8 devices, here group 0"),
    ],
)
def test_what_is_left_out_is_said_once(text: str, told: str) -> None:
    assert words_of(topology_svg(get_topology(text))).count(told) == 1


def test_the_legend_names_every_dimension() -> None:
    words = words_of(
        topology_svg(get_topology("ring(4, 200GB/s, 50ns) x switch(8, 25GB/s, 2us, medium=network, reduces)"))
    )
    assert "ring of 4: 200 GB/s, 50.0 ns" in words
    assert "switch of 8 groups of 4: 4 × 25.0 GB/s, 2.00 us, network" in words
    assert "a cable is 4 links, one from each device of a group" in words
    assert "a switch that adds and multicasts what passes" in words
    assert "4 switches Σ" in words
    assert {"group 0", "group 7"} <= set(words)
    torus = words_of(topology_svg(get_topology("torus(4x4x4, 50GB/s)")))
    assert {f"ring of 4 {side}: 50.0 GB/s" for side in ("across", "away", "up")} <= set(torus)
    assert "a tail goes on at the other end of its row" in torus
    narrow = words_of(topology_svg(get_topology("switch(8, 50GB/s, oversubscribed=4)")))
    assert "switch0, oversubscribed 4 times" in narrow


def test_each_dimension_has_a_colour_and_faster_links_are_thicker() -> None:
    topology = get_topology("ring(4, 200GB/s) x fully_connected(4, 100GB/s) x switch(4, 50GB/s)")
    kinds = kinds_of(topology, stages_of(topology))
    assert len({kind.color for kind in kinds}) == 3
    picture = topology_svg(topology)
    assert all(kind.color in picture for kind in kinds)
    widths = [width_of(bandwidth, 1e9, 1e12) for bandwidth in (0.0, 1e9, 1e10, 1e11, 1e12)]
    assert widths == sorted(widths)
    assert widths[4] - widths[3] == pytest.approx(widths[2] - widths[1])  # by the logarithm
    assert width_of(1e9, 1e9, 1e9) > width_of(5e8, 1e9, 1e9)


# Graphs


def test_single_and_double_links_of_a_cube_mesh() -> None:
    (panel,) = panels_of(cube_mesh())
    strands = Counter(wire.strand for wire in panel.placed.wires)
    assert strands == {0.0: 8, -0.5: 8, 0.5: 8}
    words = words_of(topology_svg(cube_mesh()))
    assert [word for word in words if word.startswith("gpu")] == [f"gpu{number}" for number in range(8)]
    # What is nearly in line is drawn in line.
    (plain,) = panels_of(cube_mesh(doubled=False))
    ways = [(wire.curves[0][0], wire.curves[0][3]) for wire in plain.placed.wires]
    assert sum(a[0] == b[0] or a[1] == b[1] for a, b in ways) >= 8


def test_a_graph_with_switches_names_and_one_way_links(tmp_path: Path) -> None:
    file = tmp_path / "odd.json"
    entries = [
        ("gpu0", "plx", "16GB/s"),
        ("gpu1", "plx", "16GB/s"),
        ("gpu0", "gpu1", "50GB/s"),
        ("plx", "disk", "3GB/s"),
    ]
    links = [{"from": a, "to": b, "bandwidth": bandwidth, "latency": "1us"} for a, b, bandwidth in entries]
    links[-1]["one_way"] = True  # type: ignore[assignment] # JSON takes both
    document = {"name": "odd", "devices": ["gpu0", "gpu1", "disk"], "switches": ["plx"], "links": links}
    file.write_text(json.dumps(document))
    topology = get_topology(file)
    (panel,) = panels_of(topology)
    assert drawn_links([panel]) == Counter(range(7))
    words = words_of(topology_svg(topology))
    assert {"gpu0", "gpu1", "disk", "plx"} <= set(words)
    assert {f"links: {figure} GB/s, 1.00 us" for figure in ("50.0", "16.0", "3.00")} <= set(words)
    titles = [node.text for node in ElementTree.fromstring(topology_svg(topology)).iter(f"{SVG}title")]
    assert "plx → disk, 3.00 GB/s" in titles


def test_of_a_large_graph_the_part_around_the_first_device_is_drawn() -> None:
    ends = np.arange(999)
    src, dst = np.concatenate((ends, ends + 1)), np.concatenate((ends + 1, ends))
    topology = compose("a long chain", [graph(1000, Links.uniform(src, dst, 1e9, 0.0))])
    (panel,) = panels_of(topology)
    assert [device.number for device in panel.placed.devices] == list(range(48))
    assert len(panel.placed.dotted) == 1
    assert "the 48 nodes nearest to 0, of 1000 in all" in words_of(topology_svg(topology))


def test_a_graph_in_pieces_is_drawn() -> None:
    topology = compose("pieces", [graph(4, Links.uniform([0, 1], [1, 0], 1e9, 0.0))])
    (panel,) = panels_of(topology)
    assert len(panel.placed.devices) == 4
    assert_apart(panel)


def kind_of_block(kind: str, largest: int, dims: int = 1, more: str = "") -> st.SearchStrategy[tuple[str, int]]:
    """A block as text, and how many devices it joins."""
    sizes = st.lists(st.integers(1, largest), min_size=dims, max_size=dims)
    return sizes.map(lambda chosen: (f"{kind}({'x'.join(map(str, chosen))}{more})", math.prod(chosen)))


BLOCKS = st.one_of(
    kind_of_block("ring", 12),
    kind_of_block("line", 12),
    kind_of_block("fully_connected", 10),
    kind_of_block("switch", 20),
    kind_of_block("torus", 6, dims=3),
    kind_of_block("fat_tree", 5, dims=2, more=", spines=3"),
    kind_of_block("fat_tree", 4, dims=3, more=", spines=6"),
    st.sampled_from([("dgx-1", 8), ("ring(300)", 300)]),
)


def assert_apart(panel: Panel) -> None:
    """No two things that stand side by side meet, and everything is inside the picture."""
    placed = panel.placed
    shapes = [(switch.at, switch.shape.width, switch.shape.height) for switch in placed.switches]
    shapes += [(device.at, placed.device.width, placed.device.height) for device in placed.devices]
    shapes += [(group.at, group.width, group.height) for group in placed.groups if group.closed]
    boxes = np.array([(x - w / 2, y - h / 2, x + w / 2, y + h / 2) for (x, y), w, h in shapes])
    left, top, right, bottom = boxes.T[:, :, None]
    meet = (left < right.T - 0.01) & (right > left.T + 0.01) & (top < bottom.T - 0.01) & (bottom > top.T + 0.01)
    assert meet.sum() == len(boxes)
    assert np.abs(boxes[:, [0, 2]]).max() <= placed.width / 2 + 0.01
    assert np.abs(boxes[:, [1, 3]]).max() <= placed.height / 2 + 0.01


@settings(max_examples=40)
@given(st.lists(BLOCKS, min_size=1, max_size=4))
def test_whatever_is_composed_has_a_picture_in_which_nothing_meets(blocks: list[tuple[str, int]]) -> None:
    assume(math.prod(size for _, size in blocks) <= 1 << 13)
    topology = get_topology(" x ".join(text for text, _ in blocks))
    panels = panels_of(topology)
    for panel in panels:
        assert_apart(panel)
        assert len(panel.placed.devices) + len(panel.placed.groups) < 1000
    found = drawn_links(panels)
    assert not found or max(found.values()) == 1
    assert all(0 <= link < len(topology.links) for link in found)
    ElementTree.fromstring(topology_svg(topology))


@settings(max_examples=15)
@given(st.data())
def test_any_graph_has_a_picture_in_which_nothing_meets(data: st.DataObject) -> None:
    devices, switches = data.draw(st.integers(1, 12)), data.draw(st.integers(0, 4))
    node = st.integers(0, devices + switches - 1)
    ends = data.draw(st.lists(st.tuples(node, node).filter(lambda pair: pair[0] != pair[1]), max_size=30))
    src, dst = np.array(ends, np.int64).reshape(-1, 2).T
    topology = compose("any", [graph(devices, Links.uniform(src, dst, 1e9, 1e-6), switches)])
    (panel,) = panels_of(topology)
    assert_apart(panel)
    assert drawn_links([panel]) == Counter(range(len(ends)))
    ElementTree.fromstring(topology_svg(topology))


# Names from anybody's file


def test_hostile_names_stay_text() -> None:
    ends = Links.uniform([0, 1, 2], [1, 2, 0], 1e9, 0.0)
    names = ("<b>&", HOSTILE, "s" * 5000)
    topology = compose(HOSTILE * 40, [replace(graph(2, ends, 1, names=names), medium=HOSTILE)], device=HOSTILE)
    picture = topology_svg(topology, load=np.ones(3))
    words = words_of(picture)
    assert "<script" not in picture
    assert "<b>&" in words
    assert any(word.endswith("…") and word.startswith("sss") for word in words)
    assert len(picture) < 20_000


# Curves


def test_curves() -> None:
    line = straight((0.0, 0.0), (6.0, 0.0))
    assert middle(line) == ((3.0, 0.0), (1.0, 0.0))
    assert beside(line, 2.0)[0] == (0.0, 2.0)  # y runs down, so that is on the right
    quarter = arc(0.0, np.pi / 2, 10.0, 10.0)
    (x, y), _ = middle(quarter)
    assert (x * x + y * y) ** 0.5 == pytest.approx(10, abs=0.01)
