"""Arc-disjoint trees of one root: each reaches every device, no slot is taken twice, and they are not deep."""

from __future__ import annotations

import numpy as np
import pytest

import choreo
from choreo.synthesize import search
from choreo.synthesize.network import Hops, hops_of
from choreo.synthesize.trees.disjoint import disjoint_trees
from choreo.synthesize.trees.packing import tree_depth
from choreo.topology import Topology, compose
from choreo.topology.blocks import graph
from choreo.topology.graph import Ints, Links


def random_network(seed: int) -> Topology:
    """A connected graph whose links are one or two times as wide, the two ways of a link not alike."""
    rng = np.random.default_rng(seed)
    devices = int(rng.integers(3, 10))
    ring = [(at, (at + 1) % devices) for at in range(devices)]
    others = [tuple(rng.choice(devices, 2, replace=False).tolist()) for _ in range(2 * devices)]
    src, dst = np.array(sorted({*ring, *others})).T
    width = rng.choice([25e9, 50e9], len(src))
    return compose("random", [graph(devices, Links(src, dst, width, np.full(len(src), 1e-6)))])


def trees_of(network: Topology, root: int) -> tuple[Hops, list[Ints], float]:
    hops = hops_of(network)
    s_a_byte = choreo.bound("broadcast", network, "1GiB", root=root).bandwidth_bound_s / 2**30
    return hops, disjoint_trees(hops, root, np.ones(len(hops)), s_a_byte), s_a_byte


@pytest.mark.parametrize("seed", range(30))
def test_trees_are_as_many_as_the_bound_allows_and_take_no_slot_twice(seed: int) -> None:
    network = random_network(seed)
    root = seed % network.num_devices
    hops, trees, s_a_byte = trees_of(network, root)
    assert trees  # widths are whole, and so the bound is met by few trees
    for into in trees:
        assert into[root] == -1 and (np.delete(into, root) >= 0).all()
        assert (hops.dst[into[into >= 0]] == np.flatnonzero(into >= 0)).all()
        assert tree_depth(hops, np.ones(len(hops)), into, root) < network.num_devices  # there are no cycles
    used = np.bincount(np.concatenate(trees) + 1, minlength=len(hops) + 1)[1:]
    assert (used / len(trees) <= hops.bandwidth_bytes_per_s * s_a_byte / 0.98 + 1e-9).all()


@pytest.mark.parametrize(
    ("network", "count", "depth"),
    [
        ("torus(4x4, 50GB/s, 1us)", 4, 5),
        ("torus(16x4, 50GB/s, 1us)", 4, 11),
        ("torus(16x16, 50GB/s, 1us)", 4, 18),
        ("mesh(5x5, 50GB/s, 1us)", 2, 8),
        ("ring(5, 50GB/s, 1us)", 2, 4),
    ],
)
def test_on_regular_networks_trees_are_hardly_deeper_than_the_network(network: str, count: int, depth: int) -> None:
    hops, trees, _ = trees_of(choreo.get_topology(network), 0)
    assert len(trees) == count
    assert max(tree_depth(hops, np.ones(len(hops)), into, 0) for into in trees) <= depth


def test_there_are_none_where_ports_are_shared() -> None:
    assert not trees_of(choreo.get_topology("switch(4, 50GB/s, 1us)"), 0)[1]


def test_a_reduce_on_a_torus_reaches_the_bound_along_them() -> None:
    found = search("reduce", "torus(4x3, 100GB/s, 1us)", "64MiB", root=5, effort="low")
    choreo.prove(found.schedule)
    assert found.generator == "packed" and found.efficiency > 0.93
