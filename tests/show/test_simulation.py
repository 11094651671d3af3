"""The data behind the page of a simulation is what the simulator said, and the page is safe to open."""

from __future__ import annotations

import html
import itertools
import json
import re
import time
from dataclasses import replace

import numpy as np
import pytest

from choreo.algorithms import build
from choreo.errors import UsageError
from choreo.show import simulation_html
from choreo.show.simulation import data as data_module
from choreo.show.simulation.data import MOST_MESSAGES, MOST_TOLD, SimulationData, simulation_data
from choreo.show.simulation.links import crossings_of, throughput
from choreo.show.simulation.loads import Sent, load_over_time, sent_over_time, spread_in_python
from choreo.show.simulation.path import MOST_LEGS
from choreo.show.simulation.words import link_names, rank_names
from choreo.simulate import Simulation, simulate, suggested_schedule
from choreo.topology import Links, compose, get_topology, graph
from choreo.topology.graph import Floats
from tests.helpers.pages.simulations import HOSTILE, MIB, SIMULATIONS, composed_run, ring_run, slow_run, two_jobs_run

EVERY = pytest.mark.parametrize("name", list(SIMULATIONS))


def _slowly(run: Simulation, bins: int) -> Floats:
    """The load of every link over time, one message, link and bin after another."""
    crossings, width = crossings_of(run), run.time_s / bins
    load = np.zeros((len(run.topology.links), bins))
    for at in range(len(crossings)):
        begin, end = crossings.begin_s[at], crossings.end_s[at]
        for part in range(bins if end > begin else 0):
            overlap = min(end, (part + 1) * width) - max(begin, part * width)
            load[crossings.link[at], part] += crossings.bytes[at] * max(0.0, overlap) / (end - begin)
    most = run.topology.links.bandwidth_bytes_per_s[:, None] * width
    return np.minimum(1.0, load / most) if run.time_s > 0 else load


@pytest.mark.parametrize("name", ["slow", "contended", "spread", "stored", "two jobs", "no bytes", "one rank"])
def test_loads_over_time_are_those_of_the_messages(name: str) -> None:
    run = SIMULATIONS[name]()
    every = np.arange(len(run.topology.links))
    load = load_over_time(run, every, 37)
    assert np.allclose(load, _slowly(run, 37), atol=1e-9)
    assert ((load >= 0) & (load <= 1)).all()
    assert load.any() == run.loads.link_bytes.any()
    assert sent_over_time(run, 37).sum() * run.time_s / 37 == pytest.approx(run.messages.bytes.sum())


@EVERY
def test_every_byte_crosses_where_the_simulator_says(name: str) -> None:
    run = SIMULATIONS[name]()
    crossings = crossings_of(run)
    carried = np.bincount(crossings.link, crossings.bytes, len(run.topology.links))
    assert np.allclose(carried, run.loads.link_bytes)
    assert (crossings.begin_s <= crossings.end_s * (1 + 1e-12)).all()
    assert (np.diff(crossings.link) >= 0).all()
    if not run.contended:
        every = np.arange(len(run.topology.links))
        assert np.allclose(load_over_time(run, every, 50).mean(axis=1), run.utilisation, atol=1e-9)


def test_what_is_stored_and_forwarded_is_on_one_link_after_another() -> None:
    run = simulate(build("all_gather", "ring", 4), "switch(4, 1GB/s, 1us)", 4000, store_and_forward=True)
    crossings, messages = crossings_of(run), run.messages
    for message in range(len(messages)):
        rows = np.flatnonzero(crossings.message == message)
        first, last = sorted(rows, key=lambda row: crossings.begin_s[row])
        assert crossings.begin_s[first] == pytest.approx(messages.start_s[message])
        assert crossings.end_s[first] == pytest.approx(messages.out_s[message])
        assert crossings.begin_s[last] == pytest.approx(messages.out_s[message] + 1e-6)
        assert crossings.end_s[last] == pytest.approx(messages.arrived_s[message] - 1e-6)


def test_throughput_of_a_link_over_time() -> None:
    run = simulate(build("all_gather", "ring", 2), "ring(2, 1GB/s, 1us)", 2000)
    times, rate = throughput(run, crossings_of(run), 0)
    assert times.tolist() == [0.0, 1e-6]
    assert rate.tolist() == pytest.approx([1e9, 0.0])


def test_names_tell_what_they_must() -> None:
    ends = ([0, 0, 1, 1], [1, 1, 0, 0])
    doubled = compose("doubled", [graph(2, Links.uniform(*ends, 1e9, 0.0), names=("left", "right"))])
    run = simulate(build("all_gather", "ring", 2), doubled, MIB)
    assert link_names(run, np.array([3, 0, 1])) == ["right → left #1", "left → right #0", "left → right #1"]
    assert link_names(ring_run(), np.array([0]), "->") == ["0 -> 1"]
    assert rank_names(run) == [["rank 0 on left", "rank 1 on right"]]
    assert rank_names(two_jobs_run())[1] == [f"job 1 rank {rank} on {rank + 2}" for rank in range(4)]
    assert rank_names(ring_run()) == [[f"rank {rank}" for rank in range(8)]]
    adds = ring_run().messages.reduces
    assert (adds == (ring_run().messages.step < 7)).all()
    assert not SIMULATIONS["spread"]().messages.reduces.any()


@EVERY
def test_data_is_complete_and_within_its_ranges(name: str) -> None:
    run = SIMULATIONS[name]()
    data = simulation_data(run)
    assert json.loads(json.dumps(data, allow_nan=False)) == json.loads(json.dumps(simulation_data(SIMULATIONS[name]())))
    assert all(len(row) == data["bins"] and min(row) >= 0 and max(row) <= 100 for row in data["series"])
    assert data["figures"]["time_us"] == run.time_s * 1e6
    assert data["figures"]["bound_us"] == run.bound.bound_s * 1e6
    assert 0 <= data["opens_us"] <= run.time_s * 1e6
    network, rows = data["network"], len(data["rows"])
    for series in [wire["series"] for wire in network["wires"]] + [link["series"] for link in data["busiest"]]:
        assert 0 <= series < len(data["series"])
    assert all(-1 <= device["row"] < rows for device in network["devices"])
    left, top, width, height = network["box"]
    for device in network["devices"]:
        assert left < device["x"] < left + width
        assert top < device["y"] < top + height
    columns = [value for key, value in data["messages"].items() if key != "all"]
    assert len({len(column) for column in columns if isinstance(column, list)}) == 1
    drawn = len(data["messages"]["src"])
    assert data["messages"]["all"] == len(run.messages)
    few = MOST_TOLD if data["activity"] else MOST_MESSAGES
    assert drawn == len(run.messages) or (0.9 * few < drawn <= few and len(run.messages) > MOST_MESSAGES)


@EVERY
def test_the_critical_path_is_one_line_and_its_parts_are_all_of_the_time(name: str) -> None:
    run = SIMULATIONS[name]()
    path = simulation_data(run)["path"]
    assert path["all"] == len(path["legs"]) == len(run.critical_path)
    assert sum(part["time_us"] for part in path["parts"]) == pytest.approx(run.time_s * 1e6, abs=1e-9)
    least = run.time_s * 1e6 * 1e-9
    for leg, after in itertools.pairwise(path["legs"]):
        (time, row), (next_time, next_row) = leg["way"][-1], after["way"][0]
        assert row == next_row
        assert time == pytest.approx(next_time, abs=least)
    for leg in path["legs"]:
        times = [time for time, _ in leg["way"]]
        assert times == sorted(times)
        assert (leg["shared_us"] > 0) == bool(leg["link"])
    if path["legs"]:
        assert path["legs"][-1]["way"][-1][0] == pytest.approx(run.time_s * 1e6)


def test_busiest_links_are_reported_together_where_they_do_the_same() -> None:
    def told(run: Simulation) -> list[tuple[str, int, int]]:
        return [(link["name"], link["alike"], len(link["wires"])) for link in simulation_data(run)["busiest"]]

    assert told(ring_run()) == [("0 → 1", 7, 8)]
    assert told(slow_run())[0] == ("3 → 4", 0, 1)
    assert len(told(slow_run())) == 8
    composed = composed_run()
    for name, alike, wires in told(composed):
        assert alike + 1 in (64, 128, 192)
        assert wires >= 8, name
    utilisation = [link["utilisation"] for link in simulation_data(composed)["busiest"]]
    assert utilisation == sorted(utilisation, reverse=True)
    assert utilisation[0] == composed.utilisation.max()


def test_many_messages_are_drawn_in_part_with_the_critical_path(monkeypatch: pytest.MonkeyPatch) -> None:
    run = simulate(build("all_reduce", "ring", 16), "ring(16, 50GB/s, 1us)", MIB)
    monkeypatch.setattr(data_module, "MOST_MESSAGES", 100)
    messages = simulation_data(run)["messages"]
    assert messages["all"] == 480
    assert len(run.critical_path) <= MOST_LEGS
    drawn = set(zip(messages["step"], messages["src"], messages["dst"], strict=True))
    assert {(leg.step, leg.src, leg.dst) for leg in run.critical_path} <= drawn
    assert 80 <= len(messages["src"]) <= 100


def test_a_large_network_is_summarised() -> None:
    data = simulation_data(SIMULATIONS["a thousand"]())
    assert len(data["network"]["devices"]) < 150
    assert any(words == "128 in all" for *_, words in data["network"]["dots"])
    assert data["busiest"][0]["alike"] == 2047
    assert len(json.dumps(data)) < 1_000_000
    topology = get_topology("torus(4x4x4, 50GB/s, 500ns) x switch(8, 25GB/s, 2us)")
    network = simulation_data(simulate(suggested_schedule("all_reduce", topology, 512), topology, MIB))["network"]
    assert [words for *_, words in network["headings"]] == ["the whole", "inside a group of 64 devices, here group 0"]
    assert len(network["devices"]) == 64
    assert sum(group["words"] == "64 devices" for group in network["groups"]) == 8
    left, top, width, height = network["box"]
    for x, y in [(device["x"], device["y"]) for device in network["devices"]]:
        assert left < x < left + width
        assert top < y < top + height


def test_a_run_without_a_bound_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Simulation) -> None:
        raise UsageError("there is no bound for this")

    monkeypatch.setattr(Simulation, "bound", property(refuse))
    figures = simulation_data(ring_run())["figures"]
    assert (figures["bound_us"], figures["efficiency"]) == (None, None)
    assert figures["no_bound"] == "there is no bound for this"


def _data_of(page: str) -> SimulationData:
    found = re.search('<script type="application/json" id="simulation">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: SimulationData = json.loads(found[1])
    return data


def test_the_page_needs_nothing_else_and_names_are_escaped() -> None:
    topology = replace(get_topology("ring(4, 1GB/s)"), name=HOSTILE)
    page = simulation_html(simulate(build("all_reduce", "ring", 4).named(HOSTILE), topology, MIB))
    assert page.count("</script>") == 2
    assert "<b onload" not in page
    assert not re.search(r"(?:src|href)\s*=", page)
    assert re.findall(r"https?://[^\"'\s<]*", page) == ["http://www.w3.org/2000/svg"]
    assert "default-src 'none'" in page
    assert "\x00" not in page and "\x1b" not in page
    assert html.escape("</script><b onload=x>'\"&@DATA@ ]]>") in page
    assert _data_of(page)["topology"] == HOSTILE
    assert simulation_html(ring_run()) == simulation_html(ring_run())


@pytest.mark.parametrize("name", ["composed", "a thousand"])
def test_activity_adds_up_to_what_each_rank_sends(name: str) -> None:
    run = SIMULATIONS[name]()
    data = simulation_data(run)
    activity, bins = data["activity"], data["bins"]
    assert activity is not None
    messages, width = run.messages, run.time_s / bins
    size = activity["ranks_per_line"]
    lines = -(-run.ranks // size)
    added, copied = np.zeros((lines, bins)), np.zeros((lines, bins))
    for at, adds in enumerate(run.messages.reduces):
        begin, end = messages.start_s[at] / width, messages.out_s[at] / width
        for part in range(int(begin), min(bins, int(np.ceil(end)))):
            inside = max(0.0, min(end, part + 1) - max(begin, part)) / (end - begin)
            (added if adds else copied)[messages.src[at] // size, part] += messages.bytes[at] * inside / width
    highest = (added + copied).max()
    assert activity["highest_bytes_per_s"] == pytest.approx(highest)
    for expected, numbers in ((added, activity["added"]), (copied, activity["copied"])):
        shown = np.array([activity["series"][number] for number in numbers])
        assert np.abs(shown - 100 * expected / highest).max() <= 1 + 1e-6  # rounded up to a whole percent


def test_few_ranks_have_every_message_instead() -> None:
    assert simulation_data(ring_run())["activity"] is None


def test_the_compiled_bins_are_those_of_their_twin() -> None:
    bins = pytest.importorskip("choreo.show.simulation._bins")
    chance = np.random.default_rng(3)
    for messages, ways, rows in ((0, 1, 0), (1, 1, 1), (500, 20, 7)):
        begin = chance.random(messages)
        end = begin + chance.choice([0.0, 1e-3, 0.2], messages) * chance.random(messages)
        offsets = np.concatenate(([0], chance.integers(0, 4, ways))).cumsum()
        row = chance.integers(-1, rows, offsets[-1]).astype(np.int32)
        way = chance.integers(0, ways, messages).astype(np.int32)
        sent = Sent(begin, end, 1e6 * chance.random(messages), way, offsets, row, chance.random(offsets[-1]))
        found, wanted = bins.spread(*sent, rows, 13, 1.25 / 13), spread_in_python(sent, rows, 13, 1.25 / 13)
        assert np.frombuffer(found) == pytest.approx(np.frombuffer(wanted), abs=1e-6)
    with pytest.raises(ValueError, match="do not fit together"):
        bins.spread(*sent._replace(way=np.full(500, 20, np.int32)), 7, 13, 0.1)
    with pytest.raises(ValueError, match="wrong type"):
        bins.spread(*sent._replace(way=np.zeros(500)), 7, 13, 0.1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="out of range"):
        bins.spread(*sent, 7, 0, 0.1)


def test_a_page_takes_at_most_twice_as_long_as_the_simulation_it_shows() -> None:
    schedule, topology = build("all_reduce", "ring", 512), get_topology("hgx-h100:64")
    ratios = []
    for _ in range(5):
        began = time.process_time()
        run = simulate(schedule, topology, 64 * MIB, keep_messages=True)
        simulated = time.process_time()
        simulation_data(run)
        ratios.append((time.process_time() - simulated) / (simulated - began))
    # It was 18 times as long before messages were binned in C; a loaded machine is given room.
    assert sorted(ratios)[1] < 2
