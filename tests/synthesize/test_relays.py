"""Process groups whose members are far apart: devices that are no members relay."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import choreo
from choreo.errors import RefusedError, UsageError
from choreo.synthesize import search
from choreo.synthesize.problem import read_problem
from choreo.synthesize.relays import relays_of
from tests.helpers.cli import fine, mistake

MESH = "mesh(3x3, 50GB/s, 1us)"
SERVERS = "switch(4, 300GB/s, 300ns) x switch(2, 25GB/s, 1us)"
COLLECTIVES = ["all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all", "scatter", "gather"]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_two_gpus_use_the_network_ports_of_their_servers(collective: str) -> None:
    found = search(collective, SERVERS, "64MiB", ranks=[0, 4])
    assert found.schedule.ranks == 2 and found.schedule.relays
    choreo.prove(found.schedule)
    library = found.library
    assert library is not None and found.efficiency > 3 * library["efficiency"]
    assert found.efficiency > 0.9
    again = choreo.simulate(found.schedule, SERVERS, "64MiB", placement=[0, 4])
    assert again.time_s == pytest.approx(found.time_s)


@given(
    collective=st.sampled_from(COLLECTIVES),
    ranks=st.lists(st.integers(0, 8), min_size=2, max_size=6, unique=True),
    slow=st.booleans(),
)
def test_no_group_is_faster_than_its_bound(collective: str, ranks: list[int], slow: bool) -> None:
    network = choreo.get_topology(MESH)
    network = network.with_slow_device(4, 3) if slow else network
    found = search(collective, network, "1MiB", ranks=ranks, effort="low")
    choreo.prove(found.schedule)
    assert found.time_s >= found.bound_s * (1 - 1e-9)
    if found.library is not None:
        assert found.time_s <= found.library["time_s"]


def test_ranks_in_another_order_are_a_group_without_relays() -> None:
    order = [3, 1, 4, 0, 5, 2, 8, 6, 7]
    found = search("all_gather", MESH, "64MiB", ranks=order)
    assert found.schedule.relays == 0 and found.efficiency > 0.95


def test_relays_can_be_left_out() -> None:
    schedule = choreo.synthesize("all_gather", MESH, "64MiB", ranks=[1, 3, 5, 7], relays=False)
    assert schedule.relays == 0
    out = fine("synthesize", "all_gather", "-t", MESH, "--size", "1MiB", "--placement", "1,7", "--no-relays").out
    assert "relay" not in out


SHARP = "switch(8, 450GB/s, 200ns, reduces)"


def test_without_relays_switches_only_forward() -> None:
    with_switches = search("all_reduce", SHARP, "16MiB", effort="low")
    found = search("all_reduce", SHARP, "16MiB", relays=False, effort="low")
    assert with_switches.schedule.switches > 0 == found.schedule.switches
    assert found.bound_s > with_switches.bound_s  # the bound is that of plain switches as well


def test_files_for_other_tools_have_ranks_alone(tmp_path: Path) -> None:
    network = ("-t", SHARP, "--size", "1MiB")
    xml, plan = str(tmp_path / "made.xml"), str(tmp_path / "made.json")
    fine("synthesize", "all_reduce", *network, "--effort", "low", "-o", xml)
    fine("build", "all_gather", "-a", "synthesized", *network, "--format", "mscclpp", "-o", plan)
    for file in (xml, plan):
        assert "proved exactly" in fine("prove", "--schedule", file).out
    told = mistake("synthesize", "all_reduce", *network, "--effort", "low", "--relays", "-o", xml)
    assert "adds or copies in 1 switch, which a file for MSCCL cannot say; synthesize with --no-relays" in told


def test_the_command_says_how_many_devices_relay() -> None:
    out = fine("synthesize", "all_gather", "-t", MESH, "--size", "64MiB", "--placement", "1,3,5,7").out
    assert "5 devices that no rank is on relay" in out


def test_of_many_devices_those_least_out_of_the_way_relay() -> None:
    problem = read_problem("all_gather", "hgx-h100:8", "1MiB", ranks=[0, 8], root=None, effort="medium")
    assert relays_of(problem, 14).tolist() == [*range(1, 8), *range(9, 16)]


def test_devices_and_switches_out_of_reach_are_in_no_tree() -> None:
    one_dead = choreo.get_topology(MESH)
    for neighbour in (1, 3, 5, 7):
        one_dead = one_dead.with_slow_link(4, neighbour, 0).with_slow_link(neighbour, 4, 0)
    two_servers = "switch(4, 300GB/s, 300ns, reduces) x switch(2, 25GB/s, 1us)"
    around = search("all_reduce", one_dead, "64MiB", ranks=[0, 1, 2, 3, 5, 6, 7, 8], effort="low")
    in_one = search("all_reduce", two_servers, "64MiB", ranks=4, relays=False, effort="low")
    for found in (around, in_one):
        choreo.prove(found.schedule)
        assert found.efficiency > 0.8


def test_a_broadcast_reaches_a_device_that_cannot_answer() -> None:
    one_way = choreo.get_topology("mesh(2x2, 50GB/s, 1us) x switch(2, 25GB/s, 1us)")
    for neighbour in np.unique(one_way.links.dst[one_way.links.src == 7]).tolist():
        one_way = one_way.with_slow_link(7, neighbour, 0)
    found = search("broadcast", one_way, "64MiB", effort="low")
    choreo.prove(found.schedule)
    assert found.generator == "packed" and found.efficiency > 0.8


def test_a_file_keeps_its_relays(tmp_path: Path) -> None:
    schedule = choreo.synthesize("all_reduce", MESH, "64KiB", ranks=[1, 3, 5, 7], effort="low")
    for name in ("group.json", "group.npz"):
        choreo.save(schedule, tmp_path / name)
        again = choreo.load(tmp_path / name)
        assert (again.ranks, again.relays) == (4, schedule.relays)
        times = [choreo.simulate(one, MESH, "64KiB", placement=[1, 3, 5, 7]).time_s for one in (schedule, again)]
        assert times[0] == times[1]
    assert json.loads((tmp_path / "group.json").read_text())["relays"] == schedule.relays


def over_the_middle() -> choreo.Schedule:
    """A broadcast from rank 0 to rank 1 over relay 0."""
    transfers = choreo.Schedule.from_list("broadcast", 3, [choreo.move(0, 2, 0), choreo.move(2, 1, 0)], root=0).body
    return choreo.Schedule("broadcast", transfers, 0, "over", relays=1)


def test_a_relay_is_a_member_without_input() -> None:
    schedule = over_the_middle()
    assert (schedule.ranks, schedule.members, schedule.who) == (2, 3, "2 ranks and 1 relay")
    assert schedule.member_name(2) == "relay 0"
    assert not schedule.held_before()[2].any() and not schedule.held_after()[2].any()
    choreo.prove(schedule)
    backwards = choreo.backwards(schedule)
    choreo.prove(backwards)
    assert backwards.relays == 1


def test_relays_are_on_the_devices_that_no_rank_is_on() -> None:
    schedule = over_the_middle()
    line = "line(3, 50GB/s, 1us)"
    near = choreo.simulate(schedule, line, "1MiB", placement=[0, 2])
    assert np.array_equal(near.jobs[0].node, [0, 2, 1])
    far = choreo.simulate(schedule, line, "1MiB", placement=[1, 2, 0])
    assert far.time_s > near.time_s
    with pytest.raises(UsageError, match="rank 0 and relay 0 on device 1"):
        choreo.simulate(schedule, line, "1MiB", placement=[1, 2, 1])
    with pytest.raises(UsageError, match="2 ranks and 1 relay do not fit"):
        choreo.simulate(schedule, "line(2, 50GB/s, 1us)", "1MiB")


def test_pictures_and_prices_name_relays() -> None:
    schedule = over_the_middle()
    assert "relay 0" in choreo.to_text(schedule)
    assert "a device that relays" in choreo.to_svg(schedule)
    assert '"relays":1' in choreo.to_html(schedule).replace(" ", "")
    price = choreo.price(schedule, 1e6, choreo.CostModel(alpha_s="1us", bandwidth_bytes_per_s="1GB/s"))
    assert price.total_s == pytest.approx(2 * (1e-6 + 1e-3))


def test_other_tools_know_no_relays(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="1 relay, which a file for"):
        choreo.save(over_the_middle(), tmp_path / "over.xml")


def test_ranks_far_apart_on_a_torus_have_all_other_devices_as_relays() -> None:
    """On the diagonal no rank is a neighbour of another: with fewer relays most links are out of reach."""
    found = search("broadcast", "torus(8x8, 50GB/s, 1us)", "256MiB", ranks=list(range(0, 64, 9)), effort="low")
    choreo.prove(found.schedule)
    assert found.generator == "packed" and found.efficiency > 0.9
