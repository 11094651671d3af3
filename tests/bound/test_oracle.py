"""The bound held to every cut, every partition and every way of small networks at random."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from choreo.bound import Bound, bound
from choreo.bound.cuts import Question, best_group, heaviest_cut
from choreo.bound.demands import Everybody, Pairs
from choreo.bound.flow import Arcs, minimum_cut
from choreo.bound.flow_network import FlowNetwork
from choreo.bound.partitions import best_boxes, search
from choreo.bound.prices import Traffic, solve, solve_by_paths
from choreo.bound.product import Product, answer
from choreo.bound.traffic import traffic_bound
from choreo.collectives import COLLECTIVES
from choreo.errors import UsageError
from choreo.topology import Block, Links, Topology, compose, fat_tree, fully_connected, graph, line, ring, switch
from tests.oracles.bound import (
    arcs_of,
    bottleneck_fraction,
    cut_fraction,
    flow_time,
    gigabytes,
    journeys,
    latency_s,
    leaving,
    must_leave,
    partition_fraction,
    reachable,
    subsets,
)

BY_CUTS = ("broadcast", "reduce", "scatter", "gather", "all_gather", "reduce_scatter")
BY_FLOWS = ("all_to_all", "send_recv")
MESSAGES = {"broadcast": 1, "reduce": 1, "all_reduce": 2, "scatter": 0, "gather": 0}  # for each group but one
GB = 1e9

bandwidths = st.sampled_from((0.5, 1, 1, 2, 3, 7)).map(lambda times: times * GB)
latencies = st.sampled_from((0.0, 1e-6, 3e-6))


@st.composite
def networks(draw: st.DrawFn, *, joined: bool = False) -> Topology:
    """Up to five devices and two switches, some that add, with links one way and both, some twice and some dead.

    If it is `joined` every node reaches every other.
    """
    devices, switches = draw(st.integers(1 + joined, 5)), draw(st.integers(0, 2))
    node = st.integers(0, devices + switches - 1)
    ends = draw(st.lists(st.tuples(node, node).filter(lambda pair: pair[0] != pair[1]), max_size=10))
    if draw(st.booleans()):
        ends += [(dst, src) for src, dst in ends]
    bandwidth = [draw(bandwidths | st.just(0.0)) for _ in ends]
    if joined or draw(st.booleans()):
        parents = [(child, draw(st.integers(0, child - 1))) for child in range(1, devices + switches)]
        ends += parents + [(parent, child) for child, parent in parents]
        bandwidth += [draw(bandwidths) for _ in range(2 * len(parents))]
    latency = [draw(latencies) for _ in ends]
    src, dst = np.array(ends, np.int64).reshape(-1, 2).T
    adds = np.array([draw(st.booleans()) and draw(st.booleans()) for _ in range(switches)], np.bool_)
    links = Links(src.copy(), dst.copy(), np.array(bandwidth), np.array(latency))
    return compose("network", [graph(devices, links, switches, reduces=adds)])


@st.composite
def placements(draw: st.DrawFn, topology: Topology) -> list[int]:
    """Some of the devices, each once; or any of them, perhaps several times."""
    device = st.integers(0, topology.num_devices - 1)
    return draw(st.lists(device, min_size=1, max_size=5, unique=draw(st.booleans())))


def cut_proves(found: Bound, topology: Topology, by_rank: list[int], root: int = 0) -> bool:
    """Whether the devices and links of a cut give its fraction."""
    carried = sum((gigabytes(topology, link) for link in found.cut.links), Fraction(0))
    return (
        found.fraction_per_GBps == must_leave(found.collective, frozenset(found.cut.devices), by_rank, root) / carried
    )


@settings(max_examples=120)
@given(st.sampled_from(sorted(COLLECTIVES)), networks(), st.data())
def test_of_all_cuts_partitions_and_ways_it_is_the_heaviest(
    collective: str, topology: Topology, data: st.DataObject
) -> None:
    by_rank = data.draw(placements(topology))
    root = data.draw(st.integers(0, len(by_rank) - 1)) if COLLECTIVES[collective].rooted else None
    pairs = [(by_rank[a], by_rank[b]) for a, b in journeys(collective, len(by_rank), root or 0)]
    if any(there not in reachable(topology, here) for here, there in pairs):
        with pytest.raises(UsageError, match=r"there is no way from device \d to device \d of network") as error:
            bound(collective, topology, 12, root=root, devices=by_rank)
        words = str(error.value).split()
        here, there = int(words[words.index("from") + 2]), int(words[words.index("to") + 2])
        assert there not in reachable(topology, here)
        return
    found = bound(collective, topology, 12, root=root, devices=by_rank)
    assert found.latency_bound_s == pytest.approx(latency_s(topology, collective, by_rank, root or 0), abs=1e-15)
    if collective == "barrier" or len(set(by_rank)) == 1:
        assert found.fraction_per_GBps == found.bandwidth_bound_s == 0
        return
    cuts = cut_fraction(topology, collective, by_rank, root or 0)
    messages = bottleneck_fraction(topology, by_rank) * MESSAGES.get(collective, len(by_rank))
    if collective in BY_CUTS:
        assert (found.fraction_per_GBps, found.exact) == (max(cuts, messages), cuts >= messages)
    elif collective == "all_reduce":
        heaviest = max(cuts, partition_fraction(topology, by_rank), messages)
        assert found.fraction_per_GBps == heaviest if found.exact else cuts <= found.fraction_per_GBps <= heaviest
        searched = len(set(by_rank)) in (2, topology.num_devices) and not topology.reduces.any()
        assert found.exact or not searched or found.fraction_per_GBps == messages
    else:
        units = Counter((here, there) for here, there in pairs if here != there)
        assert float(found.fraction_per_GBps) == pytest.approx(flow_time(topology, units), rel=1e-7)
        assert found.exact
        assert cuts <= found.fraction_per_GBps
    if found.proof == "cut":
        assert cut_proves(found, topology, by_rank, root or 0)


@settings(max_examples=50)
@given(st.sampled_from((*BY_CUTS, *BY_FLOWS)), networks(joined=True), st.data())
def test_blocks_of_different_sizes(collective: str, topology: Topology, data: st.DataObject) -> None:
    by_rank = data.draw(placements(topology))
    blocks = COLLECTIVES[collective].blocks(len(by_rank))
    weights = data.draw(st.lists(st.integers(0, 4), min_size=blocks, max_size=blocks).filter(any))
    found = bound(collective, topology, 12, devices=by_rank, weights=weights)
    cuts = cut_fraction(topology, collective, by_rank, weights=weights if blocks > 1 else None)
    assert found.fraction_per_GBps == cuts if collective in BY_CUTS else found.fraction_per_GBps >= cuts


def test_blocks_of_one_size_are_the_usual_ones() -> None:
    topology = compose("r", [ring(5, GB, 0.0)])
    for collective in sorted(COLLECTIVES):
        blocks = COLLECTIVES[collective].blocks(5)
        assert (
            bound(collective, topology, 10, weights=[3] * blocks).fraction_per_GBps
            == bound(collective, topology, 10).fraction_per_GBps
        )


@settings(max_examples=40)
@given(st.sampled_from(BY_FLOWS), st.integers(3, 7), st.data())
def test_prices_prove_what_they_say(collective: str, size: int, data: st.DataObject) -> None:
    topology = compose("ring", [ring(size, GB, 0.0)]).with_slow_link(1, 2, data.draw(st.sampled_from((0.5, 0.2))))
    topology = topology.with_slow_device(0, data.draw(st.sampled_from((1, 2, 4))))
    by_rank = data.draw(st.permutations(range(size)))
    found = bound(collective, topology, 12, devices=by_rank)
    if found.proof == "cut":
        assert cut_proves(found, topology, by_rank)
        return
    assert found.cut.devices == ()
    price = dict(zip(found.cut.links, found.cut.prices, strict=True))
    links = topology.links
    live = [link for link in range(len(links)) if links.bandwidth_bytes_per_s[link] > 0]
    paid = 0
    for a, b in journeys(collective, len(by_rank)):
        away = dict.fromkeys(range(topology.num_nodes), 10**12) | {by_rank[a]: 0}
        for _ in range(topology.num_nodes):
            for link in live:
                src, dst = int(links.src[link]), int(links.dst[link])
                away[dst] = min(away[dst], away[src] + price.get(link, 0))
        paid += away[by_rank[b]]
    spent = sum((gigabytes(topology, link) * times for link, times in price.items()), Fraction(0))
    assert found.fraction_per_GBps == paid / spent


# Products of blocks: what is said without searching is what a search finds.


@st.composite
def some_blocks(draw: st.DrawFn) -> Block:
    kind, figures = draw(st.sampled_from(("ring", "line", "all", "switch", "tree", "graph"))), (draw(bandwidths), 1e-6)
    size, narrow = draw(st.integers(1, 4)), draw(st.sampled_from((1.0, 1.5, 4.0, 8.0)))
    match kind:
        case "ring":
            return ring(size, *figures)
        case "line":
            return line(size, *figures)
        case "all":
            return fully_connected(size, *figures)
        case "switch":
            return switch(size, *figures, oversubscribed=narrow)
        case "tree":
            sizes = draw(st.sampled_from(((2, 2), (1, 3), (2, 1), (2, 2, 2))))
            return fat_tree(sizes, *figures, oversubscribed=narrow, spines=draw(st.integers(1, 2)))
    ends = [(node, node + 1) for node in range(size)] + [(node + 1, node) for node in range(size)] + [(0, size)]
    src, dst = np.array(ends, np.int64).T
    return graph(
        size + 1, Links(src.copy(), dst.copy(), np.array([draw(bandwidths) for _ in ends]), np.zeros(len(ends)))
    )


@st.composite
def products(draw: st.DrawFn) -> Topology:
    """Up to three blocks and some twenty devices, with slower links or devices."""
    found = compose("product", draw(st.lists(some_blocks(), min_size=1, max_size=3)))
    assume(1 < found.num_devices <= 20)
    for _ in range(draw(st.sampled_from((0, 0, 1, 2)))):
        if draw(st.booleans()):
            found = found.with_slow_device(draw(st.integers(0, found.num_devices - 1)), draw(st.sampled_from((2, 3))))
        else:
            link = draw(st.integers(0, len(found.links) - 1))
            ends = int(found.links.src[link]), int(found.links.dst[link])
            found = found.with_slow_link(*ends, draw(st.sampled_from((0.5, 0.25, 0.0, 2.0))))
    return found


@settings(max_examples=60)
@given(products(), st.booleans(), st.data())
def test_no_cut_is_above_what_its_dimensions_allow(topology: Topology, backwards: bool, data: st.DataObject) -> None:
    product, network = Product.of_topology(topology), FlowNetwork.of_topology(topology)
    assume(product.is_connected)
    device = st.integers(0, topology.num_devices - 1)
    some = data.draw(st.just(range(topology.num_devices)) | st.lists(device, min_size=2, max_size=5, unique=True))
    devices = np.array(sorted(some))
    weight = np.zeros(topology.num_nodes, np.int64)
    weight[devices] = 1
    question = Question(network.backwards() if backwards else network, weight, devices)
    start = best_group(question, product.boxes(()))
    assert start is not None
    searched = heaviest_cut(question, start, compiled=data.draw(st.booleans()))
    highest = product.ceilings(question)[0][0]
    assert highest is not None
    assert start.ratio <= searched.ratio <= highest
    found = answer(question, product)
    assert (found.ratio, found.exact) == (searched.ratio, True)
    carried = question.network.bandwidth(question.network.leaving(found.inside))
    assert found.ratio == int(weight[found.inside].sum()) / carried


@settings(max_examples=50)
@given(products())
def test_no_partition_is_above_what_its_dimensions_allow(topology: Topology) -> None:
    product, network = Product.of_topology(topology), FlowNetwork.of_topology(topology)
    assume(product.is_connected)
    devices = np.arange(topology.num_devices)
    boxes = best_boxes(network, product, devices)
    searched = search(network, devices, boxes)
    ceiling = product.partition_ceiling()
    assert ceiling is not None
    assert boxes.ratio <= searched.ratio <= ceiling
    parts = len(np.unique(searched.part))
    assert searched.ratio == 2 * (parts - 1) / network.bandwidth(searched.links)


@settings(max_examples=40)
@given(st.lists(some_blocks(), min_size=1, max_size=2).map(lambda found: compose("product", found)))
def test_all_to_all_takes_what_its_slowest_dimension_takes(topology: Topology) -> None:
    assume(1 < topology.num_devices <= 12)
    network, everybody = FlowNetwork.of_topology(topology), Everybody(np.ones(topology.num_devices, np.int64))
    found = traffic_bound(network, Product.of_topology(topology), everybody)
    searched = solve(network, everybody, Traffic(Fraction(0)))
    assert found.exact
    assert found.ratio >= searched.ratio
    assert float(found.ratio) == pytest.approx(float(searched.ratio), rel=1e-9)


@settings(max_examples=60)
@given(networks(joined=True), st.data())
def test_prices_of_paths_prove_no_more_than_the_best_prices_and_hardly_less(
    topology: Topology, data: st.DataObject
) -> None:
    device = st.integers(0, topology.num_devices - 1)
    some = data.draw(st.lists(st.tuples(device, device, st.integers(0, 3)), min_size=1, max_size=6))
    assume(any(src != dst and units for src, dst, units in some))
    demand = Pairs(topology.num_devices, *np.array(some, np.int64).T)
    network = FlowNetwork.of_topology(topology)
    best = solve(network, demand, Traffic(Fraction(0)))
    found = solve_by_paths(network, demand, Traffic(Fraction(0)))
    assert found.ratio <= best.ratio
    assert float(found.ratio) >= 0.98 * float(best.ratio)


@settings(max_examples=100)
@given(networks(), st.integers(1, 10**12), st.booleans())
def test_minimum_cuts(topology: Topology, times: int, compiled: bool) -> None:
    assume(topology.num_nodes > 1)
    arcs = arcs_of(topology)
    capacity = [int(arc.bandwidth * 2) * (1 if compiled else times) for arc in arcs]
    src, dst = (np.array([getattr(arc, end) for arc in arcs], np.int64) for end in ("src", "dst"))
    value, inside = minimum_cut(Arcs(topology.num_nodes, src, dst, capacity), 0, 1, compiled=compiled)
    scale = 2 * (1 if compiled else times)
    least = min(leaving(arcs, one | {0}) * scale for one in subsets(range(2, topology.num_nodes)))
    assert value == least
    assert leaving(arcs, frozenset(np.flatnonzero(inside).tolist())) * scale == value
    assert inside[0]
    assert not inside[1]
