"""Networks: how devices and links are numbered, what no network has, slow links and slow devices, large ones."""

from __future__ import annotations

import time
from itertools import product

import numpy as np
import pytest

from choreo.errors import UsageError
from choreo.topology import compose, fat_tree, fully_connected, get_topology, line, ring, switch
from choreo.topology.topology import MAX_DEVICES
from tests.oracles.topology import MANY, check_all_routes, route

GB = 1e9


# Composition.


def test_the_leftmost_coordinate_varies_fastest() -> None:
    topology = get_topology("ring(4, 200GB/s, 50ns) x fully_connected(3, 100GB/s, 500ns) x switch(2, 50GB/s, 2us)")
    assert topology.sizes == (4, 3, 2)
    assert topology.num_devices == 24
    assert topology.num_switches == 12
    joined = {
        (here, there)
        for here, there in zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True)
        if there < 24
    }

    def at(a: int, b: int, c: int) -> int:
        return a + 4 * b + 12 * c

    for a, b, c in product(range(4), range(3), range(2)):
        assert (at(a, b, c), at((a + 1) % 4, b, c)) in joined
        assert (at(a, b, c), at(a, (b + 1) % 3, c)) in joined
        up = topology.links.dst[(topology.links.src == at(a, b, c)) & (topology.links.dst >= 24)].tolist()
        other = topology.links.src[(topology.links.dst == at(a, b, 1 - c)) & (topology.links.src >= 24)].tolist()
        assert up == other, "the two that differ in the last coordinate only share a switch"
    assert np.bincount(topology.dimension_of_links()).tolist() == [24 * 2, 24 * 2, 24 * 2]


def test_a_device_has_its_own_ports_in_each_dimension() -> None:
    topology = get_topology("torus(4x4x4, 45GB/s, 1us)")
    assert np.bincount(topology.links.src).tolist() == [6] * 64
    assert np.bincount(topology.links.dst).tolist() == [6] * 64
    mesh = get_topology("mesh(3x3)")
    assert np.bincount(mesh.links.src).tolist() == [2, 3, 2, 3, 4, 3, 2, 3, 2]


def test_a_ring_of_two_has_one_link_each_way() -> None:
    for text in ("ring(2, 50GB/s, 1us)", "line(2, 50GB/s, 1us)", "fully_connected(2, 50GB/s, 1us)"):
        topology = get_topology(text)
        assert sorted(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True)) == [(0, 1), (1, 0)]
    assert len(get_topology("torus(2x2)").links) == 8


@pytest.mark.parametrize("text", MANY)
def test_links_join_nodes_that_are_there_and_nothing_to_itself(text: str) -> None:
    topology = get_topology(text)
    links = topology.links
    assert len(links.src) == len(links.dst) == len(links.bandwidth_bytes_per_s) == len(links.latency_s)
    assert len(topology.dimension_of_links()) == len(links)
    assert len(topology.reduces) == topology.num_nodes
    if len(links):
        assert min(links.src.min(), links.dst.min()) >= 0
        assert max(links.src.max(), links.dst.max()) < topology.num_nodes
    assert not (links.src == links.dst).any()
    pairs = set(zip(links.src.tolist(), links.dst.tolist(), strict=True))
    assert len(pairs) == len(links) or text.startswith("dgx-1"), "only its NVLinks come in pairs"
    assert [topology.find_node(topology.node_name(node)) for node in range(topology.num_nodes)] == list(
        range(topology.num_nodes)
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("switch(3, 10GB/s, 1us)", "the switch is switch0"),
        ("switch(2, 10GB/s, 1us) x switch(2, 10GB/s, 1us)", "switches are switch0 to switch3"),
    ],
)
def test_a_node_that_is_not_there_is_reported_with_those_that_are(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=f"has no node 'elsewhere'; devices are .*, {told}$"):
        get_topology(text).find_node("elsewhere")


def test_which_switches_reduce() -> None:
    topology = get_topology("switch(3, 10GB/s, 1us, reduces) x switch(2, 10GB/s, 1us)")
    assert topology.reduces.tolist() == [False] * 6 + [True] * 2 + [False] * 3
    assert not get_topology("ring(4)").reduces.any()


def test_blocks_can_be_joined_by_hand() -> None:
    blocks = [ring(2, 1 * GB, 0.0), line(2, 1 * GB, 0.0), fully_connected(2, 1 * GB, 0.0), switch(2, 1 * GB, 0.0)]
    topology = compose("by hand", [*blocks, fat_tree((2, 1), 1 * GB, 0.0)], device="abacus")
    assert (topology.sizes, topology.device, topology.name) == ((2,) * 5, "abacus", "by hand")
    assert repr(topology) == "<Topology by hand: 32 devices, 48 switches, 256 links>"
    check_all_routes(topology)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ring(0, 1.0, 0.0), "a block joins at least 1 device, not 0"),
        (lambda: switch(-1, 1.0, 0.0), "a block joins at least 1 device, not -1"),
        (
            lambda: line(2, -1.0, 0.0),
            "a link's bandwidth must be a number of at least 0, or text like '50GB/s', not -1.0",
        ),
        (lambda: line(2, float("nan"), 0.0), "bandwidth must be a number of at least 0"),
        (lambda: ring(2, float("inf"), 0.0), "bandwidth must be a number of at least 0"),
        (lambda: ring(2, 1.0, -1.0), "latency must be a time of at least 0 seconds, or text like '5us', not -1.0"),
        (lambda: fully_connected(2, 1.0, float("inf")), "latency must be a time"),
        (lambda: fully_connected(1 << 15, 1.0, 0.0), "at most 67108864 can be held"),
        (lambda: switch(4, 1.0, 0.0, oversubscribed=0.5), "oversubscribed by a factor of at least 1, not 0.5"),
        (lambda: switch(4, 1.0, 0.0, oversubscribed=float("nan")), "at least 1, not nan"),
        (lambda: switch(4, 1.0, 0.0, oversubscribed=2.0, reduces=True), "cannot reduce what passes"),
        (lambda: fat_tree((4, 0), 1.0, 0.0), "a block joins at least 1 device, not 0"),
        (lambda: fat_tree((4, 2), 1.0, 0.0, spines=0), "at least 1 spine"),
        (lambda: fat_tree((4, 2), 1.0, 0.0, oversubscribed=0.0), "oversubscribed by a factor of at least 1"),
        (lambda: switch(4, 1.0, 0.0, oversubscribed=1e308), "a factor of at most 1e+09, not 1e+308"),
        (lambda: fat_tree((4, 2), 1.0, 0.0, spines=10**9), "can be held"),
        (lambda: compose("nothing", []), "a topology needs at least one block"),
        (lambda: compose("huge", [ring(1 << 12, 1.0, 0.0)] * 2), f"huge has more than {MAX_DEVICES} devices"),
        (lambda: compose("odd", [ring(2, 1.0, 0.0)], routing="spraed"), "must be spread or hashed, not 'spraed'"),
    ],
)
def test_what_no_network_has(make: object, said: str) -> None:
    assert callable(make)
    with pytest.raises(UsageError) as caught:
        make()
    assert said in str(caught.value)


# Slow links and slow devices.


def test_a_slow_link_is_slow_one_way_only() -> None:
    topology = get_topology("ring(4, 50GB/s, 1us)")
    slow = topology.with_slow_link(1, 2, 0.1)
    assert route(slow, 1, 2).bandwidth == pytest.approx(5 * GB)
    assert route(slow, 2, 1).bandwidth == pytest.approx(50 * GB)
    assert route(slow, 0, 2).bandwidth == pytest.approx(5 * GB)
    assert (topology.links.bandwidth_bytes_per_s == 50 * GB).all(), "the topology it was made from is as it was"
    assert route(slow.with_slow_link(1, 2, 2.0), 1, 2).bandwidth == pytest.approx(10 * GB)


def test_a_slow_device_has_slow_links_in_and_out_and_reduces_slowly() -> None:
    topology = get_topology("dgx-a100:2").with_slow_device(3, 4)
    speeds = topology.links.bandwidth_bytes_per_s
    touched = (topology.links.src == 3) | (topology.links.dst == 3)
    assert sorted(set(speeds[touched].tolist())) == [25 * GB / 4, 300 * GB / 4]
    assert sorted(set(speeds[~touched].tolist())) == [25 * GB, 300 * GB]
    assert topology.slowdown.tolist() == [1.0] * 3 + [4.0] + [1.0] * 12
    assert topology.with_slow_device(3, 0.5).slowdown[3] == 2.0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda t: t.with_slow_link(0, 2, 0.5), "ring(4) has no link from 0 to 2"),
        (lambda t: t.with_slow_link(0, 1, -1), "a number of at least 0, not -1"),
        (lambda t: t.with_slow_link(0, 1, float("nan")), "at least 0, not nan"),
        (lambda t: t.with_slow_device(4, 2), "ring(4) has no device 4; they are 0 to 3"),
        (lambda t: t.with_slow_device(-1, 2), "has no device -1"),
        (lambda t: t.with_slow_device(0, 0), "by a factor of more than 0, not 0"),
        (lambda t: t.with_slow_device(0, float("inf")), "by a factor of more than 0, not inf"),
        (lambda t: t.with_routing("ecmp"), "routing must be spread or hashed, not 'ecmp'"),
        (lambda t: t.find_node("4"), "ring(4) has no node '4'; devices are 0 to 3"),
        (lambda t: t.find_node("switch0"), "has no node 'switch0'"),
        (lambda t: t.find_node("-1"), "has no node '-1'"),
        (lambda t: t.find_node("9" * 5000), "devices are 0 to 3"),
    ],
)
def test_nodes_and_factors_that_are_not_there(make: object, said: str) -> None:
    assert callable(make)
    with pytest.raises(UsageError) as caught:
        make(get_topology("ring(4)"))
    assert said in str(caught.value)


# Large networks.


@pytest.mark.parametrize(
    ("text", "devices", "links"),
    [
        ("torus(16x32x32, 50GB/s, 1us)", 16384, 16384 * 6),
        ("switch(4096, 50GB/s, 1us)", 4096, 8192),
        ("fully_connected(1024, 1GB/s, 1us)", 1024, 1024 * 1023),
        ("hgx-h100:2048", 16384, 16384 * 4),
        ("dgx-superpod:64", 16384, 16384 * 2 + 8 * (2 * 2048 + 2 * 64 * 16)),
        ("tpu-v4:64", 4096, 4096 * 6),
        ("dgx-1:512", 4096, 512 * 48 + 4096 * 2),
    ],
)
def test_large_networks_are_built_and_crossed_quickly(text: str, devices: int, links: int) -> None:
    """What takes half a second must not take ten; it is no benchmark."""
    begun = time.process_time()
    topology = get_topology(text)
    assert topology.num_devices == devices
    assert len(topology.links) == links
    here = np.arange(devices)
    found = topology.routes(here, (here + 1) % devices)
    assert (np.diff(found.offsets) > 0).all()
    assert (topology.links.src[found.links[found.offsets[:-1]]] == here).all()
    assert time.process_time() - begun < 10
