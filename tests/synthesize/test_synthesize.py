"""The verb: the best of what was tried, proved, and never slower than the library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import choreo
from choreo.synthesize import search
from choreo.synthesize.generators.library import busiest_link_s, library
from choreo.synthesize.problem import read_problem
from choreo.topology import Topology
from tests.helpers.command import run_choreo
from tests.helpers.simulate import CLOSE, EXAMPLES, PROFILE, topologies

GRID = [
    ("ring(5, 50GB/s, 1us)", 1 << 20),
    ("switch(3, 450GB/s, 300ns, reduces) x switch(2, 50GB/s, 1us)", 1 << 24),
    ("torus(3x3, 50GB/s, 500ns)", 3000),
    ("dgx-1", 1 << 20),
]
COLLECTIVES = [name for name in choreo.COLLECTIVES if name != "barrier"]


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(("topology", "size"), GRID)
def test_it_is_proved_and_not_slower_than_the_library(collective: str, topology: str, size: int) -> None:
    found = search(collective, topology, size, effort="low")
    choreo.prove(found.schedule)
    assert found.schedule.collective == collective
    again = choreo.simulate(found.schedule, topology, size)
    assert again.time_s == pytest.approx(found.time_s)
    best = found.library
    assert best is not None and found.time_s <= best["time_s"]
    for algorithm in ("ring", "direct", "mst", "pairwise"):
        if algorithm in {one.name for one in choreo.list_algorithms(collective)}:
            plain = choreo.build(collective, algorithm, again.ranks)
            assert found.time_s <= choreo.simulate(plain, topology, size).time_s * (1 + 1e-12)
    assert found.bound_s <= found.time_s * (1 + 1e-9)


@given(topologies(), st.sampled_from(COLLECTIVES), st.sampled_from((100, 3000, 50_000)))
@settings(PROFILE, max_examples=EXAMPLES // 2)
def test_nothing_that_is_made_beats_the_bound(network: Topology, collective: str, size: int) -> None:
    """What is made comes nearer to the bound than any schedule that is drawn at random."""
    try:
        found = search(collective, network, size, effort="low")
    except choreo.UsageError:  # a dead link that there is no way around
        return
    assert found.time_s >= found.bound_s * (1 - CLOSE)


@pytest.mark.parametrize("size", [0, 1, 7])
@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_odd_sizes_and_few_ranks(size: int, ranks: int) -> None:
    schedule = choreo.synthesize("all_reduce", "ring(7, 50GB/s, 1us)", size, ranks=ranks)
    assert schedule.ranks == ranks
    choreo.prove(schedule)


@pytest.mark.parametrize(("collective", "root"), [("broadcast", 0), ("scatter", 0), ("reduce", 3), ("gather", 3)])
def test_links_of_one_direction_are_enough_towards_or_from_a_root(collective: str, root: int) -> None:
    network = choreo.get_topology("line(4, 1GB/s, 1us)")
    for back in (1, 2, 3):
        network = network.with_slow_link(back, back - 1, 0)
    assert search(collective, network, "1MiB", root=root, effort="low").efficiency > 0.9
    with pytest.raises(choreo.NoPathError):
        choreo.synthesize(collective, network, "1MiB", root=1)


@pytest.mark.parametrize(
    ("collective", "topology"), [("broadcast", "mesh(3x2, 1GB/s)"), ("all_reduce", "line(3, 1GB/s)")]
)
def test_links_a_billion_times_slower_leave_what_needs_no_linear_program(collective: str, topology: str) -> None:
    network = choreo.get_topology(topology).with_slow_link(0, 1, 1e-9)
    found = search(collective, network, "1MiB", effort="low")
    assert found.library is not None and found.time_s <= found.library["time_s"]


@pytest.mark.parametrize("collective", ["all_gather", "all_reduce", "broadcast", "all_to_all"])
def test_fast_is_proved_and_not_slower_than_the_library(collective: str) -> None:
    found = search(collective, "mesh(4x4, 50GB/s, 1us)", "64MiB", effort="fast")
    choreo.prove(found.schedule)
    best = found.library
    assert best is not None and found.time_s <= best["time_s"]
    assert found.generator == "greedy" or collective == "all_to_all" or found.efficiency > 0.98


def test_a_library_that_was_not_simulated_to_its_end_takes_at_least_so_long() -> None:
    arguments = ["synthesize", "all_gather", "-t", "torus(12x12, 50GB/s, 1us)", "--size", "64MiB", "--effort", "fast"]
    best = json.loads(run_choreo(*arguments, "--json").out)["library"]
    assert best["at_least"] is True
    ring = choreo.simulate(choreo.build("all_gather", best["algorithm"], 144), "torus(12x12, 50GB/s, 1us)", "64MiB")
    assert best["time_s"] <= ring.time_s
    assert "or more" in run_choreo(*arguments).out


@pytest.mark.parametrize("network", ["switch(4, 100GB/s, 1us) x switch(3, 25GB/s, 1us)", "torus(3x4, 25GB/s, 1us)"])
@pytest.mark.parametrize("collective", ["all_to_all", "all_reduce", "all_gather"])
def test_no_algorithm_of_the_library_is_faster_than_its_busiest_link(collective: str, network: str) -> None:
    problem = read_problem(collective, network, "64MiB", ranks=None, root=None, effort="low")
    for one in library(problem):
        if one.schedule.switches:  # this network has none that reduce
            assert busiest_link_s(one.schedule, problem) == 0
            continue
        least_s = busiest_link_s(one.schedule, problem)
        assert 0 < least_s <= choreo.simulate(one.schedule, network, "64MiB").time_s * (1 + 1e-9)


def test_on_many_ranks_the_library_is_simulated_only_where_it_could_be_faster() -> None:
    found = search("all_to_all", "switch(8, 450GB/s, 300ns) x switch(20, 50GB/s, 1us)", "1GiB", effort="low")
    best = found.library
    assert best is not None and best["at_least"] and best["time_s"] <= found.time_s < best["time_s"] * 1.002


@pytest.mark.parametrize("routing", ["ecmp", "spray"])
def test_packets_judge_where_they_are_asked_to(routing: Literal["ecmp", "spray"]) -> None:
    """A DGX-1 has two wires between some pairs; a hash uses one of them, and other schedules are the best."""
    packets = choreo.Packets(routing=routing)
    found = search("all_gather", "dgx-1", "1MiB", packets=packets)
    by_flows = search("all_gather", "dgx-1", "1MiB").schedule
    times_s = [choreo.simulate(one, "dgx-1", "1MiB", packets=packets).time_s for one in (found.schedule, by_flows)]
    assert found.time_s == times_s[0] <= 1.01 * times_s[1]  # what is refined differs a little from run to run
    best = found.library
    assert best is not None and found.bound_s <= found.time_s <= best["time_s"]
    assert found.to_dict()["packets"]["routing"] == routing


def test_schedules_whose_packets_pause_each_other_for_ever_are_left_out() -> None:
    packets, ring = choreo.Packets(buffer_bytes="16KiB"), "ring(6, 50GB/s, 500ns)"
    with pytest.raises(choreo.DeadlockError):
        choreo.simulate(choreo.build("all_to_all", "direct", 6), ring, "4MiB", packets=packets)
    found = search("all_to_all", ring, "4MiB", packets=packets)
    assert choreo.simulate(found.schedule, ring, "4MiB", packets=packets).time_s == found.time_s


def test_ranks_may_be_devices() -> None:
    found = search("all_gather", "torus(4x4, 50GB/s, 1us)", "1MiB", ranks=[0, 5, 10, 15])
    assert found.ranks == 4 and 0 < found.efficiency <= 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"effort": "huge"}, "fast, low, medium, high"),
        ({"ranks": 17}, "17 ranks do not fit"),
        ({"ranks": [1, 1]}, "device 1 is given for 2 ranks"),
        ({"root": 3}, "has no root"),
        ({"effort": ["low"]}, "effort must be one of fast, low"),
        ({"ranks": 0}, "there must be at least 1 rank, not 0"),
        ({"ranks": True}, "ranks must be a number, or devices, one for each rank, not True"),
        ({"relays": "no"}, "relays must be true or false, not 'no'"),
        ({"packets": True}, "packets must be Packets or None, not True"),
    ],
)
def test_mistakes_are_reported(options: dict[str, object], says: str) -> None:
    with pytest.raises(choreo.UsageError, match=says):
        choreo.synthesize("all_gather", "torus(4x4, 50GB/s, 1us)", "1MiB", **options)  # type: ignore[arg-type]


def test_the_command_says_what_was_reached(tmp_path: Path) -> None:
    file = tmp_path / "made.json"
    arguments = ["synthesize", "all_gather", "-t", "ring(4, 50GB/s, 1us)", "--size", "1MiB"]
    said = run_choreo(*arguments, "-o", str(file)).out
    assert "of the bound" in said and "the library" in said and "Proved" in said
    found = json.loads(run_choreo(*arguments, "--json").out)
    assert list(found) == list(choreo.Synthesis.columns)
    assert list(found["library"]) == ["algorithm", "time_s", "efficiency"]
    choreo.prove(choreo.load(file))


def test_synthesized_is_an_algorithm_of_simulate() -> None:
    arguments = ["simulate", "all_gather", "-t", "torus(3x3, 50GB/s, 1us)", "--size", "1MiB", "--slow-link", "0-1=0.5"]
    one = json.loads(run_choreo(*arguments, "--algorithm", "synthesized", "--json").out)
    assert one["algorithm"] == "synthesized"
    ranked = json.loads(run_choreo(*arguments, "--algorithm", "all", "--json").out)
    times = {run["algorithm"]: run["time_s"] for run in ranked}
    assert times["synthesized"] == min(times.values()) == one["time_s"]


def test_it_is_an_algorithm_of_the_commands_that_take_schedules() -> None:
    network = ["-a", "synthesized", "-t", "ring(4, 50GB/s, 1us)", "--size", "64KiB"]
    assert "over 4 ranks" in run_choreo("prove", "all_reduce", *network).out
    prices = json.loads(run_choreo("price", "all_reduce", *network, "-a", "ring", "--json").out)
    assert {one["algorithm"] for one in prices} == {"ring", "synthesized"}
    assert "synthesized" not in {
        one.name for one in choreo.list_algorithms("all_reduce")
    }  # only while it was asked for
    for verb, option in (("prove", "-p"), ("price", "--size")):
        assert "say which: --topology T" in run_choreo(verb, "all_reduce", "-a", "synthesized", option, "4").err
    without = run_choreo("prove", "all_reduce", "-a", "ring", "-p", "4", *network[2:4])
    assert without.code == 2 and "leave it out" in without.err


def test_it_is_an_algorithm_of_sweeps() -> None:
    """A sweep synthesizes for the network as it is in each case."""
    asked = [
        "sweep",
        "simulate",
        "all_gather",
        "-t",
        "ring(4, 50GB/s, 1us)",
        "--size",
        "1MiB",
        "-a",
        "synthesized,ring",
    ]
    rows = json.loads(run_choreo(*asked, "--slow-link", "none,0-1=0", "--json").out)
    times = {(one["slow_link"], one["algorithm"]): one["time_s"] for one in rows}
    network = choreo.get_topology("ring(4, 50GB/s, 1us)").with_slow_link(0, 1, 0).with_slow_link(1, 0, 0)
    assert times["0-1=0", "synthesized"] == search("all_gather", network, "1MiB").time_s
    assert times["none", "synthesized"] < times["0-1=0", "synthesized"] < times["0-1=0", "ring"]
    refused = run_choreo(*asked[:-1], "synthesized", "--segments", "4")
    assert refused.code == 2 and "leave out segments" in refused.err


def test_a_command_without_a_network_says_where_synthesized_schedules_come_from() -> None:
    refused = run_choreo("show", "all_gather", "-a", "synthesized", "-p", "4")
    assert refused.code == 2 and "choreo build all_gather -a synthesized" in refused.err
