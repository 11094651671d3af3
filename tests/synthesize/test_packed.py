"""Packed trees on any network: near the bound, proved, and in time as planned."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import choreo
from choreo.synthesize import search
from choreo.synthesize.generators.packed import packed
from choreo.synthesize.network import hops_of
from choreo.synthesize.problem import read_problem
from choreo.synthesize.trees import packing
from choreo.synthesize.trees.arborescence import cheapest_arborescence
from choreo.synthesize.trees.packing import pack, pack_both_ways
from tests.synthesize.networks import two_levels

SLOW = choreo.get_topology("torus(3x3, 50GB/s, 1us)").with_slow_link(0, 1, 0.5).with_slow_link(1, 0, 0.5)
DEAD = choreo.get_topology("torus(3x3, 50GB/s, 1us)").with_slow_link(0, 1, 0).with_slow_link(1, 0, 0)
NETWORKS = {
    "dgx-1": choreo.get_topology("dgx-1"),
    "mesh": choreo.get_topology("mesh(3x3, 50GB/s, 1us)"),
    "a slow link": SLOW,
    "a dead link": DEAD,
    "two servers": choreo.get_topology("switch(4, 300GB/s, 300ns) x switch(2, 25GB/s, 1us)"),
    "two levels": two_levels(),
}
BARS = {"all_gather": 0.95, "reduce_scatter": 0.95, "all_reduce": 0.85, "broadcast": 0.85, "reduce": 0.85}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("collective", BARS)
def test_it_is_proved_and_near_the_bound(name: str, collective: str) -> None:
    problem = read_problem(collective, NETWORKS[name], "1GiB", ranks=None, root=None, effort="low")
    made = list(packed(problem))
    choreo.prove(made[-1].schedule)
    runs = [choreo.simulate(one.schedule, NETWORKS[name], "1GiB") for one in made]
    assert max(run.efficiency for run in runs) > BARS[collective]


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_shares_in_proportion_to_what_ranks_can_take(collective: str) -> None:
    slow = choreo.get_topology("switch(4, 100GB/s, 1us)").with_slow_device(3, 4)
    even = search(collective, slow, "1GiB")
    uneven = search(collective, slow, "1GiB", shares=[4, 4, 4, 0])
    choreo.prove(uneven.schedule)
    assert uneven.efficiency > 0.9 and even.efficiency > 0.9
    weights = uneven.schedule.weights
    assert weights is not None
    assert weights.reshape(4, -1).sum(axis=1) / weights.sum() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0], abs=1e-6)


def test_trees_are_added_though_the_first_few_do_not_help() -> None:
    # All links out of the root are full until there is a tree over each of them.
    hops = hops_of(choreo.get_topology("mi300x:2"))
    _, seconds_a_byte = pack(hops, {0: 1.0}, np.full(len(hops), 1e-12))
    bound_s = choreo.bound("broadcast", "mi300x:2", "1GiB").bandwidth_bound_s
    assert seconds_a_byte * 2**30 == pytest.approx(bound_s, rel=0.05)


def test_a_lone_root_sends_each_part_once_along_short_trees() -> None:
    found = search("broadcast", "gaudi-3:2", "64MiB")
    assert found.efficiency > 0.9
    rows = found.schedule.columns()
    sent = found.schedule.weights_of(rows)[rows.src == 0].sum() / found.schedule.total_weight
    assert sent == pytest.approx(1, abs=0.1)


def test_fine_chunks_between_servers_follow_in_turn() -> None:
    # With few chunks it makes no difference; with many, those that all start at once are late at the end.
    assert search("all_gather", "dgx-1:2", "64MiB").efficiency > 0.975


def test_a_collective_without_blocks_takes_no_shares() -> None:
    with pytest.raises(choreo.UsageError, match="takes no shares"):
        choreo.synthesize("all_reduce", "ring(3, 50GB/s, 1us)", "1MiB", shares=[1, 2, 3])


def test_a_hop_crosses_no_other_device() -> None:
    hops = hops_of(NETWORKS["mesh"])
    assert len(hops) == 24
    assert set(zip(hops.src.tolist(), hops.dst.tolist(), strict=True)) >= {(0, 1), (1, 0), (0, 3)}
    assert len(hops_of(DEAD)) == 34


@pytest.mark.parametrize("seed", range(30))
def test_the_cheapest_arborescence_is_the_best_of_all_trees(seed: int) -> None:
    rng = np.random.default_rng(seed)
    devices = int(rng.integers(2, 6))
    cost = np.where(rng.random((devices, devices)) < 0.3, np.inf, rng.integers(1, 9, (devices, devices)).astype(float))
    cost[np.arange(1, devices), np.arange(devices - 1)] = 9.0
    cost[np.arange(devices - 1), np.arange(1, devices)] = 9.0  # there is a way
    root = int(rng.integers(devices))
    parent = cheapest_arborescence(cost, root)
    assert parent[root] == -1 and is_tree(parent.tolist(), root)
    others = [v for v in range(devices) if v != root]
    best = np.inf
    for above in product(range(devices), repeat=len(others)):
        tree = [-1] * devices
        for v, u in zip(others, above, strict=True):
            tree[v] = u
        if is_tree(tree, root):
            best = min(best, sum(cost[tree[v], v] for v in others))
    assert sum(cost[parent[v], v] for v in others) == best


def is_tree(parent: list[int], root: int) -> bool:
    for start in range(len(parent)):
        at, seen = start, 0
        while at != root and seen <= len(parent):
            at, seen = parent[at], seen + 1
        if at != root:
            return False
    return True


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The linear programs that are solved."""
    calls: list[object] = []
    divide = packing._divide

    def counted(*given: object) -> object:
        calls.append(given)
        return divide(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(packing, "_divide", counted)
    return calls


def test_a_known_bound_ends_the_search_for_trees(divided: list[object]) -> None:
    """Four servers whose first trees are the best: without the bound, more are asked for."""
    network = choreo.get_topology("switch(4, 400GB/s, 200ns, reduces) x switch(4, 50GB/s, 350ns)")
    hops = hops_of(network, through_switches=True)
    least_s = choreo.bound("all_reduce", network, 1.0).bandwidth_bound_s
    times, rounds = [], []
    for known_s in (0.0, least_s):
        divided.clear()
        times.append(pack_both_ways(hops, np.full(len(hops), 1e-15), known_s)[1])
        rounds.append(len(divided))
    assert times == pytest.approx([least_s, least_s], rel=0.01)
    assert rounds[1] < rounds[0]


def test_trees_that_do_not_help_end_the_search_far_from_the_bound(divided: list[object]) -> None:
    network = "switch(4, 200GB/s, oversubscribed=2) x switch(2, 450GB/s, 1us, reduces) x fully_connected(2, 25GB/s)"
    search("all_reduce", network, "1MiB", effort="low")
    assert 0 < len(divided) <= 40


@pytest.mark.parametrize("collective", ["reduce_scatter", "broadcast", "reduce"])
def test_behind_switches_of_two_levels_trees_follow_a_ring(collective: str) -> None:
    network = two_levels((0, 1, 1, 0, 2, 1, 0, 0, 1), (50,) * 9)
    problem = read_problem(collective, network, "64MiB", ranks=None, root=None, effort="low")
    made = [one.schedule for one in packed(problem)]
    efficiency = [choreo.simulate(schedule, network, "64MiB").efficiency for schedule in made]
    choreo.prove(made[int(np.argmax(efficiency))])
    assert max(efficiency) > (0.995 if collective == "reduce_scatter" else 0.98)


def test_a_receiver_takes_in_others_beside_a_slow_message() -> None:
    network = choreo.get_topology("switch(5, 100GB/s, 1us)")
    for device, port, speed in ((0, "out", 0.9), (2, "out", 0.1), (3, "out", 0.5), (0, "in", 0.9), (3, "in", 0.5)):
        switch = network.find_node("switch0")
        network = network.with_slow_link(*((device, switch) if port == "out" else (switch, device)), speed)
    found = search("all_gather", network, "1GiB", effort="low")
    choreo.prove(found.schedule)
    assert found.efficiency > 0.95
