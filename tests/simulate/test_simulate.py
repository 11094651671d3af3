"""The simulator on cases worked out by hand: the price, shared links, small and odd runs, mistakes, choices, scale."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from choreo.algorithms import Axes, axes_of, build
from choreo.collectives import COLLECTIVES
from choreo.compiled import ChoreoWarning
from choreo.errors import RefusedError, UsageError
from choreo.price import CostModel, price
from choreo.prove import prove
from choreo.schedule import Schedule, move
from choreo.simulate import Job, simulate, simulate_together, suggested_schedule
from choreo.simulate.flows import backend
from choreo.simulate.flows.backend import is_compiled
from choreo.topology import Links, compose, get_topology, graph
from tests.helpers.simulate import CORES, close, needs_compiler

LATENCY_S, BANDWIDTH = 5e-7, 50e9
FIGURES = "50GB/s, 500ns"
SIZES = (0, 1, 1000, 1 << 20, 1e9)
RING = build("all_reduce", "ring", 4)


# Equal to the price, where every step waits for the one before and nothing meets.

GRID = [
    *(("ring", 1, "one", c, "ring", p) for c in ("all_reduce", "all_gather", "reduce_scatter") for p in (2, 3, 8, 13)),
    *(("switch", 2, "one", "all_reduce", a, p) for a in ("halving_doubling", "recursive_doubling") for p in (2, 8, 32)),
    *(("switch", 2, "one", c, "mst", p) for c in ("broadcast", "reduce") for p in (2, 7, 16)),
    *(("fully_connected", 1, "all", c, "direct", p) for c in ("all_reduce", "all_gather") for p in (2, 5, 16)),
]


@pytest.mark.parametrize(("block", "hops", "ports", "collective", "algorithm", "ranks"), GRID)
@pytest.mark.parametrize("gamma", [0.0, 1e-11])
def test_equal_to_the_price(
    block: str, hops: int, ports: str, collective: str, algorithm: str, ranks: int, gamma: float
) -> None:
    schedule = build(collective, algorithm, ranks)
    link = CostModel(hops * LATENCY_S, BANDWIDTH, gamma)
    for size in SIZES:
        found = simulate(schedule, f"{block}({ranks}, {FIGURES})", size, gamma_s_per_byte=gamma)
        assert found.time_s == close(price(schedule, size, link, ports=ports).total_s), size
        assert found.shared is not is_compiled()


# M equal messages on one link take the latency and M times the bytes.


@pytest.mark.parametrize("flows", [1, 2, 5, 64])
@pytest.mark.parametrize("shape", ["one to all", "all to one", "all through one"])
@pytest.mark.parametrize("core", CORES)
def test_equal_messages_on_one_link(flows: int, shape: str, core: str) -> None:
    size, each = 3000.0 * flows, 3000.0
    others = np.arange(1, flows + 1)
    if shape == "all through one":  # left devices, right devices, and a narrow link between two switches
        left, right = np.arange(flows), np.arange(flows, 2 * flows)
        near, far = np.full(flows, 2 * flows), np.full(flows, 2 * flows + 1)
        ends = np.concatenate((left, near[:1], far)), np.concatenate((near, far[:1], right))
        links = Links.uniform(*ends, 100 * BANDWIDTH, LATENCY_S)
        links.bandwidth_bytes_per_s[flows] = BANDWIDTH
        network = compose("waist", [graph(2 * flows, links, switches=2)])
        moves, hops = move(left, right, left), 3
    else:
        network, hops = get_topology(f"switch({flows + 1}, {FIGURES})"), 2
        moves = move(0, others, others - 1) if shape == "one to all" else move(others, 0, others - 1)
    schedule = Schedule.from_list("broadcast", network.num_devices, [[moves]], num_chunks=flows)
    found = simulate(schedule, network, size, compiled=core == "compiled")
    assert found.time_s == close(hops * LATENCY_S + flows * each / BANDWIDTH)
    assert found.messages.out_s == pytest.approx(np.full(flows, flows * each / BANDWIDTH), rel=1e-12)
    assert found.contended is (flows > 1)
    busiest = found.busiest_link
    assert busiest is not None
    assert busiest.bytes == close(size)


# Where others are wrong, or hang.


@pytest.mark.parametrize(
    ("collective", "algorithm", "ranks"),
    [
        ("all_reduce", "halving_doubling", 6),
        ("all_reduce", "double_binary_tree", 5),
        ("broadcast", "double_binary_tree", 5),
        ("reduce", "double_binary_tree", 6),
        ("broadcast", "mst", 7),
        ("reduce", "rabenseifner", 6),
        ("all_to_all", "pairwise", 5),
        ("barrier", "recursive_doubling", 3),
    ],
)
@pytest.mark.parametrize("text", ["switch(7, 1GB/s, 1us)", "ring(7, 1GB/s, 1us)", "mesh(2x4, 1GB/s, 1us)"])
def test_any_number_of_ranks(collective: str, algorithm: str, ranks: int, text: str) -> None:
    schedule = build(collective, algorithm, ranks)
    prove(schedule)
    for size in (0, 1, 3, 1e6):  # a byte, or less, a chunk
        found = simulate(schedule, text, size)
        assert found.bound.bound_s * (1 - 1e-9) <= found.time_s < 1.0
        assert found.time_s > 0
        assert 0 < found.efficiency <= 1 + 1e-9


def test_zero_bytes_take_the_latency_and_load_no_link() -> None:
    found = simulate(build("all_reduce", "ring", 4), "ring(4, 1GB/s, 1us)", 0)
    assert found.time_s == close(6e-6)
    assert not found.loads.link_bytes.any()
    assert found.busiest_link is None
    assert found.algbw_bytes_per_s == found.busbw_bytes_per_s == 0.0


def test_one_rank_has_nothing_to_do() -> None:
    for text in ("ring(1)", "switch(5)"):
        found = simulate(build("all_reduce", "ring", 1), text, 1e6)
        assert (found.time_s, found.critical_path, found.busiest_link, len(found.messages)) == (0.0, [], None, 0)
        assert found.rank_finish_s.tolist() == [0.0]
        assert found.efficiency == 1.0


def test_a_device_that_nobody_reaches_matters_to_those_that_go_there() -> None:
    pair = compose("islands", [graph(3, Links.uniform([0, 1], [1, 0], 1e9, 1e-6))])
    exchange = build("all_reduce", "ring", 2)
    assert simulate(exchange, pair, 1e6).time_s == close(2 * (1e-6 + 0.5e-3))
    with pytest.raises(UsageError, match="no way from device 0 to device 2"):
        simulate(exchange, pair, 1e6, placement=[0, 2])


def test_a_dead_link_is_gone_around_or_named() -> None:
    schedule = build("all_gather", "ring", 4)
    broken = get_topology("ring(4, 1GB/s, 1us)").with_slow_link(0, 1, 0)
    found = simulate(schedule, broken, 4e6)
    # From 0 to 1 it is three links the other way, of which nobody else takes any.
    assert found.messages.links_of(0).tolist() == [4, 7, 6]
    assert found.time_s == close(3 * 1e-3 + 3e-6 + 2 * 1e-6)
    line = get_topology("mesh(4, 1GB/s, 1us)").with_slow_link(2, 1, 0)
    for size in (0, 4e6):
        with pytest.raises(UsageError, match=r"no way from device [23] to device [01] of mesh.* no bandwidth"):
            simulate(schedule, line, size)
    assert simulate(build("all_gather", "ring", 2), line, 4e6).time_s > 0


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_more_segments_fill_the_pipe(collective: str) -> None:
    runs = {k: build(collective, "double_binary_tree", 7, segments=k) for k in (1, 2, 3, 8, 32, 200)}
    times = [simulate(schedule, "switch(7, 1GB/s)", 1e6).time_s for schedule in runs.values()]
    assert times == sorted(times, reverse=True)
    assert times[-1] < 0.7 * times[0]
    for schedule in runs.values():  # a message goes three times through the switch, whatever the segments
        assert simulate(schedule, "switch(7, 1GB/s, 1ms)", 1e6).time_s > 6e-3


def test_segments_of_a_ring_follow_one_another() -> None:
    for segments in (1, 2, 5, 64):
        found = simulate(build("all_reduce", "ring", 8, segments=segments), f"ring(8, {FIGURES})", 8e6)
        # The latency of a segment's last step is hidden behind the next segment's first.
        assert found.time_s == close((13 * segments + 1) * LATENCY_S + 14e6 / BANDWIDTH)


def test_segments_through_a_switch_that_reduces_overlap_up_and_down() -> None:
    for segments in (1, 2, 10):
        schedule = build("all_reduce", "in_network", 8, segments=segments)
        found = simulate(schedule, f"switch(8, {FIGURES}, reduces)", 8e6)
        assert found.time_s == close(2 * LATENCY_S + (segments + 1) * 8e6 / segments / BANDWIDTH)
        assert len(found.rank_finish_s) == 8
    with pytest.raises(RefusedError, match="needs a switch that reduces"):
        simulate(build("all_reduce", "in_network", 8), f"switch(8, {FIGURES})", 8e6)


# Several at once.


def test_two_on_the_same_devices_take_longer_than_one_and_no_longer_than_both() -> None:
    for algorithm, text in (("ring", "ring(8, 1GB/s, 1us)"), ("halving_doubling", "switch(8, 1GB/s, 1us)")):
        job = Job(build("all_reduce", algorithm, 8), 1e6)
        one, two = (simulate_together([job] * count, text) for count in (1, 2))
        assert one.time_s * 1.5 < two.time_s <= 2 * one.time_s * (1 + 1e-9)
        assert two.job_time_s(0) == close(two.job_time_s(1))
        apart = simulate_together([job, replace(job, start_s=one.time_s)], text)
        assert apart.time_s == close(2 * one.time_s)
        assert apart.job_time_s(1) == close(one.time_s)


def test_those_that_share_no_link_do_not_disturb_each_other() -> None:
    schedule = build("all_reduce", "halving_doubling", 4)
    low, high, middle = (Job(schedule, 1e6, range(first, first + 4)) for first in (0, 4, 2))
    alone_s = simulate(schedule, "switch(8, 1GB/s, 1us)", 1e6).time_s
    disjoint = simulate_together([low, high], "switch(8, 1GB/s, 1us)")
    assert [disjoint.job_time_s(job) for job in (0, 1)] == [close(alone_s)] * 2
    assert not disjoint.contended
    overlapping = simulate_together([low, middle, high], "switch(8, 1GB/s, 1us)")
    assert all(alone_s * 1.1 < overlapping.job_time_s(job) <= 3 * alone_s for job in (0, 1, 2))
    assert overlapping.contended


# What a topology wants.

WANTED = [
    ("ring(8)", "ring"),
    ("switch(8)", "halving_doubling"),
    ("fully_connected(8)", "direct"),
    ("mesh(8)", "ring"),
    ("fat_tree(2x4)", "halving_doubling"),
    ("ring(1) x switch(8)", "halving_doubling"),
]


@pytest.mark.parametrize(("text", "algorithm"), WANTED)
def test_the_algorithm_that_a_block_wants(text: str, algorithm: str) -> None:
    found = suggested_schedule("all_reduce", get_topology(text), 8)
    assert found.algorithm == algorithm
    assert suggested_schedule("all_reduce", text, 5).algorithm == "ring"  # the text does as well


def test_the_axes_that_blocks_want() -> None:
    network = get_topology("ring(2) x fully_connected(3) x line(1) x switch(4)")
    axes = Axes((2, 3, 4), ("ring", "direct", "halving_doubling"))
    assert axes_of(network) == axes
    found = suggested_schedule("all_reduce", network, 24)
    assert found.algorithm == "hierarchical"
    wanted = build("all_reduce", "hierarchical", 24, axes=axes).columns()
    assert all(np.array_equal(column, wanted[name]) for name, column in dict(found.columns()).items())
    assert suggested_schedule("all_reduce", network, 24, along_dimensions=False).algorithm == "ring"


NETWORKS = [
    "ring(1)",
    "ring(2)",
    "ring(5)",
    "switch(6)",
    "fully_connected(5)",
    "mesh(2x3)",
    "torus(2x2x3)",
    "fat_tree(2x3, spines=2)",
    "ring(3) x switch(3)",
    "fully_connected(2) x switch(5)",
    "dgx-1",
    "hgx-h100:2",
]


@pytest.mark.parametrize("text", NETWORKS)
def test_every_collective_is_suggested_proved_and_simulated(text: str) -> None:
    network = get_topology(text)
    for collective, ranks in itertools.product(COLLECTIVES, {network.num_devices, max(1, network.num_devices - 1)}):
        root = ranks - 1 if COLLECTIVES[collective].rooted else None
        schedule = suggested_schedule(collective, network, ranks, root=root)
        prove(schedule)
        found = simulate(schedule, network, 1e5)
        assert found.time_s * (1 + 1e-9) >= found.bound.bound_s
        assert (found.utilisation <= 1 + 1e-9).all()
        assert (found.time_s == 0) == (len(found.messages) == 0 or (collective == "barrier" and ")" in text))


# Large, where nothing meets: one pass, and the closed form.


@needs_compiler
@pytest.mark.parametrize(
    ("collective", "algorithm", "text", "hops", "ports"),
    [
        ("all_reduce", "ring", "ring(512, 50GB/s, 500ns)", 1, "one"),
        ("all_reduce", "halving_doubling", "switch(1024, 50GB/s, 500ns)", 2, "one"),
        ("all_reduce", "direct", "fully_connected(128, 50GB/s, 500ns)", 1, "all"),
        ("all_reduce", "hierarchical", "torus(8x8x8, 50GB/s, 500ns)", 1, "one"),
    ],
)
def test_large_runs_that_meet_nobody_are_their_price(
    collective: str, algorithm: str, text: str, hops: int, ports: str
) -> None:
    network = get_topology(text)
    axes = "8x8x8" if algorithm == "hierarchical" else None
    schedule = build(collective, algorithm, network.num_devices, axes=axes)
    for gamma in (0.0, 1e-11):
        found = simulate(schedule, network, 1 << 26, gamma_s_per_byte=gamma, compiled=True)
        assert found.shared is False
        assert not found.contended
        link = CostModel(hops * LATENCY_S, BANDWIDTH, gamma)
        assert found.time_s == close(price(schedule, 1 << 26, link, ports=ports).total_s)


def test_a_missing_compiled_simulator_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "import_compiled", lambda name: None)
    monkeypatch.setattr("choreo.compiled._warned", set())
    monkeypatch.delenv("CHOREO_PURE_PYTHON", raising=False)
    with pytest.warns(ChoreoWarning, match="the compiled simulator is missing: using the Python one, .* times slower"):
        slow = simulate(RING, "ring(4, 1GB/s)", 1000)
    assert simulate(RING, "ring(4, 1GB/s)", 1000).time_s == slow.time_s, "told once; a second warning would be an error"
    with pytest.raises(UsageError, match="the compiled simulator is missing; install a C compiler"):
        simulate(RING, "ring(4, 1GB/s)", 1000, compiled=True)


def test_python_that_was_asked_for_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "import_compiled", lambda name: None)
    monkeypatch.setattr("choreo.compiled._warned", set())
    monkeypatch.setenv("CHOREO_PURE_PYTHON", "1")
    assert simulate(RING, "ring(4, 1GB/s)", 1000).time_s > 0


def test_sizes_and_times_may_be_text() -> None:
    written = simulate(RING, "ring(4, 1GB/s)", "1MB", gamma_s_per_byte="100GB/s")
    assert written.time_s == simulate(RING, "ring(4, 1GB/s)", 1e6, gamma_s_per_byte=1e-11).time_s
    late = simulate_together([Job(RING, "1MB", start_s="5us")], "ring(4, 1GB/s)")
    assert late.time_s == close(5e-6 + simulate(RING, "ring(4, 1GB/s)", 1e6).time_s)


def test_ranks_are_placed_by_the_names_of_devices(tmp_path: Path) -> None:
    links = [{"from": a, "to": b, "bandwidth": "1GB/s"} for a, b in ("ab", "bc", "cd", "da")]
    (tmp_path / "square.json").write_text(json.dumps({"name": "square", "devices": list("abcd"), "links": links}))
    square = get_topology(tmp_path / "square.json")
    named = simulate(RING, square, 1e6, placement=["b", "c", "d", "a"])
    assert named.time_s == simulate(RING, square, 1e6, placement=[1, 2, 3, 0]).time_s
    assert square.device_of("d") == 3
    with pytest.raises(UsageError, match="square has no node 'z'; devices are a, b, c, d"):
        simulate(RING, square, 1e6, placement=["a", "b", "c", "z"])
    with pytest.raises(UsageError, match="rank 0 and rank 2 on device b; one rank per device"):
        simulate(RING, square, 1e6, placement=["b", "a", "b", "d"])


def test_a_hierarchical_schedule_for_a_topology_is_the_suggested_one() -> None:
    """With the topology as its axes `build` gives what `choreo simulate` runs; without axes it cannot know them."""
    topology = get_topology("hgx-h100:4")
    built = build("all_reduce", "hierarchical", 32, axes=topology)
    wanted = suggested_schedule("all_reduce", topology, 32)
    for column, other in zip(dict(built.columns()).values(), dict(wanted.columns()).values(), strict=True):
        assert (column == other).all()


def test_a_link_that_could_carry_more_than_any_number() -> None:
    found = simulate(build("all_gather", "ring", 2), "ring(2, 50GB/s, 1e100s)", 1024)
    assert found.utilisation.max() < 1e-100
