"""Routes: whole, shortest, one dimension after another, spread or hashed, and around links that are down."""

from __future__ import annotations

import pickle
import sys
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from choreo.errors import UsageError
from choreo.topology import (
    Block,
    Links,
    Topology,
    compose,
    fat_tree,
    fully_connected,
    get_topology,
    graph,
    line,
    ring,
    switch,
)
from choreo.topology.graph import hashed_index
from tests.oracles.topology import MANY, all_pairs, check_all_routes, check_route, distances, named, route, routes

GB = 1e9


@pytest.mark.parametrize("text", MANY)
def test_a_topology_can_be_sent_to_another_process(text: str) -> None:
    topology = get_topology(text)
    sent = pickle.loads(pickle.dumps(topology))
    assert repr(sent) == repr(topology)
    ends = tuple(ends[:200] for ends in all_pairs(topology))
    assert routes(sent, *ends) == routes(topology, *ends)


@pytest.mark.parametrize("routing", ["spread", "hashed"])
@pytest.mark.parametrize("text", MANY)
def test_every_route_arrives_whole_by_the_shortest_way(text: str, routing: str) -> None:
    topology = get_topology(text).with_routing(routing)
    check_all_routes(topology)
    if routing == "hashed":
        assert all(part == 1 for way in routes(topology, *all_pairs(topology)) for part in way.share)


@pytest.mark.parametrize("text", ["torus(3x4x5)", "mesh(3x4x5)", "ring(4) x fully_connected(3) x switch(5)", "dgx-1:3"])
def test_routes_settle_one_dimension_after_another(text: str) -> None:
    topology = get_topology(text)
    dimension = topology.dimension_of_links()
    strides = np.cumprod((1, *topology.sizes))
    for way in routes(topology, *all_pairs(topology)):
        order = dimension[way.links].tolist()
        assert order == sorted(order)
        differing = [
            k
            for k, (size, stride) in enumerate(zip(topology.sizes, strides, strict=False))
            if way.src // stride % size != way.dst // stride % size
        ]
        assert sorted(set(order)) == differing


def test_a_ring_goes_the_short_way_round_and_forward_where_both_are_short() -> None:
    topology = get_topology("ring(6, 50GB/s, 500ns)")
    assert named(topology, route(topology, 0, 2)) == ["0>1", "1>2"]
    assert named(topology, route(topology, 0, 4)) == ["0>5", "5>4"]
    assert named(topology, route(topology, 1, 4)) == ["1>2", "2>3", "3>4"]
    assert named(topology, route(topology, 5, 0)) == ["5>0"]
    assert route(topology, 1, 4).latency_s == pytest.approx(3 * 500e-9)


def test_a_torus_settles_its_first_coordinate_first() -> None:
    torus, mesh = get_topology("torus(4x4)"), get_topology("mesh(4x4)")
    assert named(torus, route(torus, 0, 15)) == ["0>3", "3>15"]
    assert named(mesh, route(mesh, 0, 10)) == ["0>1", "1>2", "2>6", "6>10"]
    assert named(mesh, route(mesh, 10, 0)) == ["10>9", "9>8", "8>4", "4>0"]


def test_a_switch_takes_two_links_and_an_oversubscribed_one_shares_the_link_inside() -> None:
    wide, narrow = get_topology("switch(6, 10GB/s, 1us)"), get_topology("switch(6, 10GB/s, 1us, oversubscribed=3)")
    assert named(wide, route(wide, 4, 1)) == ["4>switch0", "switch0>1"]
    assert named(narrow, route(narrow, 4, 1)) == ["4>switch0", "switch0>switch1", "switch1>1"]
    assert route(narrow, 4, 1).latency_s == pytest.approx(2e-6)
    assert narrow.links.bandwidth_bytes_per_s[-1] == pytest.approx(6 * 10 * GB / 3)
    assert route(narrow, 4, 1).bandwidth == pytest.approx(10 * GB)
    very = get_topology("switch(4, 10GB/s, 1us, oversubscribed=8)")
    assert route(very, 0, 1).bandwidth == pytest.approx(5 * GB)


def test_a_fat_tree_has_as_much_above_its_leaves_as_below_them() -> None:
    tree = get_topology("fat_tree(4x3x2, 10GB/s, 1us, spines=2)")
    assert tree.num_switches == 6 + 2 * 2 + 2
    links, devices = tree.links, tree.num_devices
    leaves = set(range(devices, devices + 6))
    from_leaves = sum(
        speed
        for here, there, speed in zip(
            links.src.tolist(), links.dst.tolist(), links.bandwidth_bytes_per_s.tolist(), strict=True
        )
        if here in leaves and there >= devices
    )
    assert from_leaves == pytest.approx(24 * 10 * GB)
    top = set(range(tree.num_nodes - 2, tree.num_nodes))
    assert links.bandwidth_bytes_per_s[np.isin(links.src, list(top))].sum() == pytest.approx(24 * 10 * GB)
    assert [route(tree, 0, to).latency_s for to in (1, 4, 12)] == pytest.approx([2e-6, 4e-6, 6e-6])


def test_an_oversubscribed_fat_tree_loses_above_its_leaves_only() -> None:
    tree = get_topology("fat_tree(4x3, 10GB/s, 1us, oversubscribed=2, spines=2)")
    speeds = tree.links.bandwidth_bytes_per_s
    assert speeds[: 2 * 12].tolist() == [10 * GB] * 24
    assert speeds[2 * 12 :].tolist() == [4 * 10 * GB / 2 / 2] * 12
    assert route(tree, 0, 1).bandwidth == pytest.approx(10 * GB)
    alone = get_topology("fat_tree(4x3, 10GB/s, 1us, oversubscribed=16)")
    assert route(alone, 0, 4).bandwidth == pytest.approx(4 * 10 * GB / 16)


def test_spread_messages_use_all_spines_at_once_and_hashed_ones_all_in_turn() -> None:
    spread = get_topology("fat_tree(8x8, 10GB/s, 1us, spines=4)")
    assert len(route(spread, 0, 8).links) == 1 + 4 + 4 + 1
    assert sorted(set(route(spread, 0, 8).share)) == [0.25, 1.0]
    hashed = spread.with_routing("hashed")
    used = np.zeros(4)
    for way in routes(hashed, *all_pairs(hashed)):
        if len(way.links) == 4:
            used[hashed.links.dst[way.links[1]] - 64 - 8] += 1
    assert used.min() > 0.8 * used.mean(), "a hash of the ends sends about as much over each spine"
    assert routes(hashed, [3, 3], [60, 60])[0] == routes(hashed, [60, 3], [3, 60])[1], "a pair keeps to its way"


def test_a_graph_divides_a_message_among_its_shortest_ways_by_what_they_carry() -> None:
    links = Links(
        np.array([0, 2, 0, 3]), np.array([2, 1, 3, 1]), np.array([30 * GB, 5 * GB, 10 * GB, 9 * GB]), np.full(4, 1e-6)
    )
    topology = compose("two ways", [graph(2, links, 2)])
    way = route(topology, 0, 1)
    assert dict(zip(named(topology, way), way.share, strict=True)) == {
        "0>switch0": pytest.approx(5 / 14),
        "0>switch1": pytest.approx(9 / 14),
        "switch0>1": pytest.approx(5 / 14),
        "switch1>1": pytest.approx(9 / 14),
    }
    assert way.bandwidth == pytest.approx(14 * GB)
    assert route(get_topology("dgx-1"), 0, 5).bandwidth == pytest.approx(50 * GB), "a single and a double NVLink"


def test_a_changed_graph_divides_by_what_its_links_are_now() -> None:
    links = Links.uniform([0, 2, 0, 3], [2, 1, 3, 1], 1 * GB, 0)
    topology = compose("two ways", [graph(2, links, 2)])
    assert route(topology, 0, 1).bandwidth == pytest.approx(2 * GB)
    for factor in (0.5, 0.001):
        slow = topology.with_slow_link(2, 1, factor)
        assert route(slow, 0, 1).bandwidth == pytest.approx((1 + factor) * GB), "less of it goes the slow way"
    assert route(topology.with_slow_link(2, 1, 0), 0, 1).bandwidth == pytest.approx(1 * GB)


def test_latency_is_that_of_the_slowest_way() -> None:
    links = Links(np.array([0, 2, 0, 3]), np.array([2, 1, 3, 1]), np.ones(4), np.array([5e-6, 2e-6, 1e-6, 1e-6]))
    assert route(compose("two ways", [graph(2, links, 2)]), 0, 1).latency_s == pytest.approx(7e-6)


def test_many_pairs_are_looked_up_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = get_topology("dgx-1:2 x ring(3)")
    whole = routes(topology, *all_pairs(topology))
    monkeypatch.setattr("choreo.topology.topology.PAIRS_AT_ONCE", 7)
    monkeypatch.setattr(sys.modules["choreo.topology.graph"], "MAX_DISTANCES", 20)
    assert routes(topology, *all_pairs(topology)) == whole
    assert routes(topology, [], []) == []


def test_the_hash_is_the_same_everywhere() -> None:
    """Routes are part of a result, so they must not change with the machine or the version of NumPy."""

    def mixed(src: int, dst: int, choices: int) -> int:
        value = (src * 0x9E3779B97F4A7C15 + dst + 1) % 2**64
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            value = (value ^ (value >> shift)) * factor % 2**64
        return (value ^ (value >> 31)) % choices

    src, dst, choices = np.arange(6), np.array([5, 0, 3, 2, 1 << 40, 7]), np.array([1, 2, 3, 1000, 1000, 1 << 40])
    assert hashed_index(src, dst, choices).tolist() == list(map(mixed, src.tolist(), dst.tolist(), choices.tolist()))
    assert hashed_index(np.array([0]), np.array([5]), 1000).tolist() == [492]


# Links that are down.


@pytest.mark.parametrize("text", ["ring(5)", "torus(3x3, 1GB/s, 1us)", "mesh(3x3)", "fully_connected(4)", "dgx-1"])
@pytest.mark.parametrize("routing", ["spread", "hashed"])
def test_routes_go_around_a_link_that_is_down(text: str, routing: str) -> None:
    whole = get_topology(text).with_routing(routing)
    here, there = int(whole.links.src[0]), int(whole.links.dst[0])
    broken = whole.with_slow_link(here, there, 0)
    away = distances(broken)
    for before, after in zip(routes(whole, *all_pairs(whole)), routes(broken, *all_pairs(broken)), strict=True):
        check_route(broken, after, away)
        if 0 not in before.links:
            assert after == before, "a route that is whole stays as it was"


def test_a_device_that_is_cut_off_is_named() -> None:
    topology = get_topology("switch(4, 10GB/s, 1us)").with_slow_link(2, 4, 0)
    assert len(route(topology, 0, 2).links) == 2
    with pytest.raises(UsageError, match=r"no way from device 2 to device 0 of switch\(4, 10GB/s, 1us\): every path"):
        routes(topology, [0, 2], [1, 0])
    island = compose("island", [graph(3, Links.uniform([0, 1], [1, 0], GB, 0.0), names=("a", "b", "c"))])
    with pytest.raises(UsageError, match="there is no way from device a to device c; add a link"):
        routes(island, [0, 0, 2, 2], [1, 2, 0, 1])


# Any network.


@st.composite
def networks(draw: st.DrawFn) -> Topology:
    """Graphs that nobody would draw: links one way only, some down, devices that nothing joins."""
    devices, switches = draw(st.integers(1, 6)), draw(st.integers(0, 4))
    nodes = devices + switches
    ends = draw(
        st.lists(
            st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)).filter(lambda ends: ends[0] != ends[1]),
            max_size=24,
        )
    )
    speeds = [draw(st.sampled_from([0.0, 1.0, 2.0, 3.0])) * GB for _ in ends]
    late = [draw(st.sampled_from([0.0, 1e-6, 2e-6])) for _ in ends]
    src, dst = (np.array([pair[k] for pair in ends], np.int64) for k in (0, 1))
    links = Links(src, dst, np.array(speeds, np.float64), np.array(late, np.float64))
    return compose("any", [graph(devices, links, switches)], routing=draw(st.sampled_from(["spread", "hashed"])))


@settings(max_examples=100)
@given(networks())
def test_any_graph_has_right_routes_or_says_between_whom_there_is_none(topology: Topology) -> None:
    away = distances(topology)
    for src, dst in product(range(topology.num_devices), repeat=2):
        if away[src][dst] is None:
            with pytest.raises(UsageError, match=f"no way from device {src} to device {dst}"):
                route(topology, src, dst)
        else:
            check_route(topology, route(topology, src, dst), away)


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    size = draw(st.integers(1, 5))
    figures = draw(st.sampled_from([1.0, 50.0])) * GB, draw(st.sampled_from([0.0, 1e-6]))
    spines, narrow = draw(st.integers(1, 3)), draw(st.sampled_from([1.0, 1.5, 4.0]))
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    kinds = [
        ring(size, *figures),
        line(size, *figures),
        fully_connected(size, *figures),
        switch(size, *figures, oversubscribed=narrow),
        fat_tree(sizes, *figures, oversubscribed=narrow, spines=spines),
    ]
    return draw(st.sampled_from(kinds))


@settings(max_examples=80)
@given(st.lists(blocks(), min_size=1, max_size=3), st.sampled_from(["spread", "hashed"]), st.data())
def test_any_product_of_blocks_has_right_routes(parts: list[Block], routing: str, data: st.DataObject) -> None:
    topology = compose("any", parts, routing=routing)
    assert topology.num_devices == np.prod([part.size for part in parts])
    assert len(topology.links) == sum(topology.num_devices // part.size * len(part.links) for part in parts)
    away = distances(topology) if topology.num_devices <= 64 else None
    device = st.integers(0, topology.num_devices - 1)
    pairs = data.draw(st.lists(st.tuples(device, device), min_size=1, max_size=20))
    for way in routes(topology, [src for src, _ in pairs], [dst for _, dst in pairs]):
        if away is not None:
            check_route(topology, way, away)


@settings(max_examples=50)
@given(st.sampled_from(["torus(3x3)", "mesh(3x3)", "dgx-1", "hls-1", "fat_tree(3x3, 1GB/s, 1us, spines=2)"]), st.data())
def test_any_few_links_can_be_down(text: str, data: st.DataObject) -> None:
    topology = get_topology(text)
    for link in data.draw(st.lists(st.integers(0, len(topology.links) - 1), max_size=4)):
        topology = topology.with_slow_link(int(topology.links.src[link]), int(topology.links.dst[link]), 0)
    away = distances(topology)
    for src, dst in product(range(topology.num_devices), repeat=2):
        if away[src][dst] is None:
            with pytest.raises(UsageError, match=f"no way from device {src} to device {dst}"):
                route(topology, src, dst)
            return
    for way in routes(topology, *all_pairs(topology)):
        links = topology.links
        assert (links.bandwidth_bytes_per_s[way.links] > 0).all()
        assert way.src == way.dst or way.bandwidth > 0
