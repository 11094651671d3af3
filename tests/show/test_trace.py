"""The timeline of a simulation is what the Trace Event Format asks for, and what the simulator said."""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from choreo.algorithms import build
from choreo.errors import UsageError
from choreo.show import write_trace
from choreo.show.simulation import trace
from choreo.show.simulation.path import on_path
from choreo.show.simulation.trace import LINKS, RANKS, trace_events
from choreo.show.trace_events import Event, Trace, microseconds
from choreo.simulate import Simulation, simulate
from choreo.topology import get_topology
from tests.helpers.pages.simulations import MIB, SIMULATIONS

# What the format knows of metadata, and the argument each needs.
METADATA = {
    "process_name": "name",
    "process_labels": "labels",
    "process_sort_index": "sort_index",
    "thread_name": "name",
    "thread_sort_index": "sort_index",
}


# The largest would be most of the time that these tests take, and shows nothing more.
EVERY = pytest.mark.parametrize("name", [name for name in SIMULATIONS if name != "a thousand"])


def _events(made: Trace, phase: str) -> list[Event]:
    return [event for event in made["traceEvents"] if event["ph"] == phase]


def _ends(run: Simulation) -> tuple[list[int], list[int]]:
    return run.topology.links.src.tolist(), run.topology.links.dst.tolist()


def _ns(microseconds_read: object) -> int:
    """As Perfetto reads a time: multiplied, and cut off."""
    assert isinstance(microseconds_read, float)
    return int(microseconds_read * 1000)


@EVERY
def test_every_event_has_what_its_phase_requires(name: str) -> None:
    made = json.loads(json.dumps(trace_events(SIMULATIONS[name]()), allow_nan=False))
    assert set(made) == {"traceEvents", "otherData"}
    threads: dict[int, int] = {}
    for event in made["traceEvents"]:
        assert isinstance(event["name"], str) and event["name"]
        assert event["pid"] in (RANKS, LINKS)
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert METADATA[event["name"]] in event["args"]
            continue
        assert isinstance(event["ts"], float) and event["ts"] >= 0
        if event["ph"] == "C":
            assert all(isinstance(value, float) and value >= 0 for value in event["args"].values())
            continue
        # Perfetto takes a thread's number as its own in all processes, and a process' number as its main thread.
        assert threads.setdefault(event["tid"], event["pid"]) == event["pid"]
        assert event["tid"] not in (RANKS, LINKS)
        assert isinstance(event["cat"], str)
        if event["ph"] == "X":
            assert isinstance(event["dur"], float) and event["dur"] >= 0
            assert {"step", "bytes", "job", "waited_for"} <= set(event["args"])
        else:
            assert event["ph"] in "sf"
            assert isinstance(event["id"], int)
            assert event.get("bp") == (None if event["ph"] == "s" else "e")
    named = [event["tid"] for event in made["traceEvents"] if event["name"] == "thread_name"]
    assert sorted(named) == sorted(threads) == sorted(set(named))


@EVERY
def test_slices_of_a_thread_follow_each_other(name: str) -> None:
    by_thread: dict[object, list[tuple[int, int]]] = defaultdict(list)
    for event in _events(trace_events(SIMULATIONS[name]()), "X"):
        by_thread[event["tid"]].append((_ns(event["ts"]), _ns(event["dur"])))
    for slices in by_thread.values():
        for (begin, took), (after, _) in itertools.pairwise(sorted(slices)):
            assert begin + took <= after
            assert begin < after


@EVERY
def test_slices_are_the_messages(name: str) -> None:
    run = SIMULATIONS[name]()
    made = trace_events(run)
    messages, slices = run.messages, _events(made, "X")
    sent = [event for event in slices if event["cat"] == "send"]
    got = [event for event in slices if event["cat"] in ("receive", "reduce")]
    for events, begin, end in ((sent, messages.start_s, messages.out_s), (got, messages.arrived_s, messages.written_s)):
        assert len(events) == len(messages)
        for event in events:
            told = event["args"]
            assert isinstance(told, dict)
            at = told["message"]
            assert (told["step"], told["from"], told["to"]) == (messages.step[at], messages.src[at], messages.dst[at])
            assert abs(_ns(event["ts"]) - begin[at] * 1e9) <= 1
            assert abs(_ns(event["dur"]) - (end[at] - begin[at]) * 1e9) <= 2
    carried = np.zeros(len(run.topology.links))
    names = {event["tid"]: event["args"]["name"] for event in _events(made, "M") if event["name"] == "thread_name"}  # type: ignore[index]
    pairs = [(run.topology.node_name(int(a)), run.topology.node_name(int(b))) for a, b in zip(*_ends(run), strict=True)]
    ends = {}
    for link, (src, dst) in enumerate(pairs):
        twin = f" #{pairs[:link].count((src, dst))}" if pairs.count((src, dst)) > 1 else ""
        ends[f"{src} -> {dst}{twin}"] = link
    for event in slices:
        if event["cat"] == "link":
            carried[ends[str(names[event["tid"]]).split(" (")[0]]] += event["args"]["bytes_here"]  # type: ignore[index]
    assert np.allclose(carried, run.loads.link_bytes)


@EVERY
def test_arrows_lead_along_the_critical_path(name: str) -> None:
    run = SIMULATIONS[name]()
    events = trace_events(run)["traceEvents"]
    # As Perfetto does it: in order of time and then of the file, to the slice that was begun last on the thread.
    begun: dict[object, Event] = {}
    ends: dict[object, list[Event]] = defaultdict(list)
    for event in sorted((one for one in events if one["ph"] in ("X", "s", "f")), key=lambda one: _ns(one["ts"])):
        if event["ph"] == "X":
            begun[event["tid"]] = event
        else:
            ends[event["id"]].append(begun[event["tid"]])
    legs = run.critical_path
    expected = []
    for leg, (sends, writes) in zip(legs, on_path(legs), strict=True):
        expected += [(leg.message, "send")] if sends else []
        expected += [(leg.message, "receive")] if writes else []
    found = {
        number: [(one["args"]["message"], "send" if one["cat"] == "send" else "receive") for one in pair]  # type: ignore[index]
        for number, pair in ends.items()
    }
    assert all(one["args"]["critical"] for pair in ends.values() for one in pair)  # type: ignore[index]
    assert len(found) == max(0, len(expected) - 1)
    for number, pair in enumerate(itertools.pairwise(expected)):
        assert sorted(found[number]) == sorted(pair)


def test_waits_are_reported() -> None:
    run = simulate(build("all_reduce", "ring", 4), "ring(4, 1GB/s, 1us)", 4000)
    told = [event["args"]["waited_for"] for event in _events(trace_events(run), "X") if event["cat"] == "send"]  # type: ignore[index]
    assert Counter(text.split(":")[0] for text in told) == {"nothing": 4, "its data": 20}
    assert "its data: step 0, 3 -> 0" in told


def test_counters_sum_up_to_what_was_carried() -> None:
    run = simulate(build("all_reduce", "ring", 8), "ring(8, 50GB/s, 500ns)", 256 * MIB)
    by_link: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for event in _events(trace_events(run), "C"):
        by_link[str(event["name"])].append((_ns(event["ts"]), event["args"]["GB/s"]))  # type: ignore[index]
    assert sorted(by_link) == [f"{rank} -> {(rank + 1) % 8} carries" for rank in range(8)]
    for points in by_link.values():
        assert [time for time, _ in points] == sorted({time for time, _ in points})
        carried = sum((after - time) * rate for (time, rate), (after, _) in itertools.pairwise(points))
        assert carried == pytest.approx(run.loads.link_bytes[0], rel=1e-4)
        assert max(rate for _, rate in points) == pytest.approx(50, rel=1e-6)
        assert points[-1][1] == 0


def test_too_many_crossings_keep_the_busiest_links_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = get_topology("ring(8, 50GB/s, 500ns)").with_slow_link(3, 4, 0.25)
    run = simulate(build("all_reduce", "ring", 8), topology, MIB)
    assert trace_events(run)["otherData"]["links"] == "every link that carried anything"
    monkeypatch.setattr(trace, "MOST_SLICES", 2 * 112 + 30)
    made = trace_events(run)
    crossed = [event for event in _events(made, "X") if event["cat"] == "link"]
    assert {event["args"]["from"] for event in crossed} == {0, 3}  # type: ignore[index]
    words = "the 2 busiest of the 8 links that carried anything"
    assert made["otherData"]["links"] == words
    labels = [event["args"]["labels"] for event in _events(made, "M") if event["name"] == "process_labels"]  # type: ignore[index]
    assert words in labels
    monkeypatch.setattr(trace, "MOST_SLICES", 200)
    with pytest.raises(UsageError, match="at most 200 slices, and 112 messages have two each"):
        trace_events(run)


def test_the_file_is_the_same_every_time_and_safe(tmp_path: Path) -> None:
    hostile = replace(get_topology("ring(4, 1GB/s)"), name='</script>"\n\x1b[31m')
    run = simulate(build("all_reduce", "ring", 4).named('a"b\x00'), hostile, MIB)
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    write_trace(run, first)
    write_trace(simulate(build("all_reduce", "ring", 4).named('a"b\x00'), hostile, MIB), str(second))
    text = first.read_text(encoding="utf-8")
    assert text == second.read_text(encoding="utf-8")
    read = json.loads(text)
    assert read == json.loads(json.dumps(trace_events(run)))
    assert read["otherData"]["topology"] == hostile.name
    assert read["otherData"]["title"] == 'all_reduce by a"b�, 1 MiB on </script>"��[31m'
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        write_trace(run, tmp_path / "nowhere" / "trace.json")


@given(st.integers(min_value=0, max_value=10**15))
def test_times_are_read_back_to_the_nanosecond(time_ns: int) -> None:
    assert int(microseconds(time_ns) * 1000) == time_ns
    assert int(json.loads(json.dumps(microseconds(time_ns))) * 1000) == time_ns
    assert microseconds(time_ns) == pytest.approx(time_ns / 1000, rel=1e-15)
