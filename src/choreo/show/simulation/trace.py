"""A simulation's timeline for Perfetto and chrome://tracing, in the Trace Event Format.

Every rank has a track of what it sends and one of what it receives, and every link one of what crosses it. Arrows
follow the critical path; counters show how much the busiest links carry.
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from choreo.errors import UsageError
from choreo.show.simulation.links import Crossings, crossings_of, throughput
from choreo.show.simulation.path import on_path
from choreo.show.simulation.words import WAITED, link_names, rank_names, title
from choreo.show.trace_events import Event, Slice, Trace, Tracks, microseconds, write_events
from choreo.simulate import Simulation
from choreo.topology.graph import Floats, Ints
from choreo.units import counted, format_bytes

__all__ = ["MOST_SLICES", "trace_events", "write_trace"]

# What Perfetto opens within seconds, in a file of some 50 MB.
MOST_SLICES = 200_000
COUNTERS = 8
RANKS, LINKS = 1, 2  # process numbers, in the order they are shown in
FIRST_THREAD = 101
# What a message waits for before it starts, by the kind of its cause.
BEFORE_START = ("data", "port", "sender")


def write_trace(simulation: Simulation, path: str | os.PathLike[str]) -> None:
    """Write the timeline into a file that ui.perfetto.dev and chrome://tracing open."""
    write_events(trace_events(simulation), path)


def trace_events(simulation: Simulation) -> Trace:
    """The timeline as the format's JSON object.

    If there are too many link crossings, only the busiest links are included, and `otherData` says so. If there are too
    many messages, that is an error.
    """
    maker = _Maker.of(simulation)
    crossings = crossings_of(simulation)
    kept, carried = _kept_links(simulation, crossings)
    threads = itertools.count(FIRST_THREAD)
    ranks, links = Tracks(RANKS, "ranks", threads), Tracks(LINKS, "links", threads)
    about = title(simulation)
    left_out = "" if len(kept) == carried else f"the {len(kept)} busiest of the {carried} links that carried anything"
    ranks.label(about)
    links.label(left_out or about)
    sends, receives = _rank_tracks(simulation, maker, ranks)
    _link_tracks(simulation, maker, links, crossings.on(kept)[0])
    _counters(simulation, links, crossings)
    flows = _arrows(simulation, sends, receives)
    other: dict[str, object] = {
        "title": about,
        "collective": simulation.collective,
        "algorithm": simulation.algorithm,
        "ranks": simulation.ranks,
        "topology": simulation.topology.name,
        "size_bytes": simulation.size_bytes,
        "time_us": simulation.time_s * 1e6,
        "jobs": len(simulation.jobs),
        "links": left_out or "every link that carried anything",
        "critical path": f"{counted(len(simulation.critical_path), 'message')}, joined by arrows",
    }
    return {"traceEvents": [*ranks.events, *links.events, *flows], "otherData": other}


def _kept_links(simulation: Simulation, crossings: Crossings) -> tuple[Ints, int]:
    """The links that get a track, the busiest first while there is room; and how many carried anything."""
    messages = len(simulation.messages)
    room = MOST_SLICES - 2 * messages
    if room < 0:
        raise UsageError(
            f"a timeline holds at most {MOST_SLICES} slices, and {messages} messages have two each, sent and received; "
            "simulate fewer ranks or segments, or write the page instead"
        )
    used, count = np.unique(crossings.link, return_counts=True)
    busiest = np.argsort(-simulation.utilisation[used], kind="stable")
    fits = np.flatnonzero(count[busiest].cumsum() > room)
    kept = busiest[: fits[0]] if len(fits) else busiest
    return np.sort(used[kept]), len(used)


@dataclass(frozen=True, slots=True, eq=False)
class _Maker:
    """Makes slices, with what is known about their messages."""

    simulation: Simulation
    names: list[list[str]]
    critical: set[int]

    @staticmethod
    def of(simulation: Simulation) -> _Maker:
        return _Maker(simulation, rank_names(simulation), {leg.message for leg in simulation.critical_path})

    def arguments(self, message: int, cause: int, kinds: tuple[str, ...]) -> dict[str, object]:
        """What is known about a message; `kinds` are those of the causes of a wait."""
        messages = self.simulation.messages
        arguments: dict[str, object] = {
            "step": int(messages.step[message]),
            "from": int(messages.src[message]),
            "to": int(messages.dst[message]),
            "bytes": float(messages.bytes[message]),
            "job": int(messages.job[message]),
            "message": message,
            "waited_for": self.waited(cause, kinds),
        }
        if message in self.critical:
            arguments["critical"] = True
        return arguments

    def waited(self, cause: int, kinds: tuple[str, ...]) -> str:
        """What a message waited for last, and which message that was."""
        if cause < 0:
            return "nothing" if kinds[0] == "data" else "its arrival"
        before, kind = divmod(cause, 3)
        messages = self.simulation.messages
        step, src, dst = (int(column[before]) for column in (messages.step, messages.src, messages.dst))
        return f"{WAITED[kinds[kind]]}: step {step}, {src} -> {dst}"

    def size(self, message: int) -> str:
        """How large it is."""
        return format_bytes(float(self.simulation.messages.bytes[message]))


def _rank_tracks(simulation: Simulation, maker: _Maker, tracks: Tracks) -> tuple[dict[int, Slice], dict[int, Slice]]:
    """What every rank sends and receives; the slices by message."""
    messages = simulation.messages
    adds = messages.reduces
    moments = (messages.start_s, messages.out_s, messages.arrived_s, messages.written_s)
    columns = zip(
        messages.job.tolist(),
        messages.src.tolist(),
        messages.dst.tolist(),
        messages.start_cause.tolist(),
        messages.write_cause.tolist(),
        *(_nanoseconds(column).tolist() for column in moments),
        strict=True,
    )
    sends: dict[int, Slice] = {}
    receives: dict[int, Slice] = {}
    by_rank: dict[tuple[int, int], tuple[list[Slice], list[Slice]]] = defaultdict(lambda: ([], []))
    for message, (job, src, dst, start_cause, write_cause, start, out, arrived, written) in enumerate(columns):
        size, doing = maker.size(message), "reduce" if adds[message] else "receive"
        arguments = maker.arguments(message, start_cause, BEFORE_START)
        sends[message] = Slice(start, out, f"send to {dst}, {size}", "send", arguments)
        by_rank[job, src][0].append(sends[message])
        arguments = maker.arguments(message, write_cause, ("writer", "reader"))
        receives[message] = Slice(arrived, written, f"{doing} from {src}, {size}", doing, arguments)
        by_rank[job, dst][1].append(receives[message])
    for (job, rank), (sent, received) in sorted(by_rank.items()):
        name = maker.names[job][rank]
        tracks.add(f"{name} sends", sent)
        tracks.add(f"{name} receives", received)
    return sends, receives


def _link_tracks(simulation: Simulation, maker: _Maker, tracks: Tracks, crossings: Crossings) -> None:
    """What crossed every link."""
    messages = simulation.messages
    by_link: dict[int, list[Slice]] = defaultdict(list)
    begin_ns, end_ns = _nanoseconds(crossings.begin_s), _nanoseconds(crossings.end_s)
    rows = (crossings.message, crossings.link, crossings.bytes, begin_ns, end_ns)
    for message, link, crossed, begin, end in zip(*(column.tolist() for column in rows), strict=True):
        src, dst, step = (int(column[message]) for column in (messages.src, messages.dst, messages.step))
        arguments = maker.arguments(message, int(messages.start_cause[message]), BEFORE_START)
        arguments["bytes_here"] = crossed
        by_link[link].append(
            Slice(begin, end, f"step {step}: {src} -> {dst}, {format_bytes(crossed)}", "link", arguments)
        )
    numbers = np.array(sorted(by_link), np.int64)
    for link, name in zip(numbers.tolist(), link_names(simulation, numbers, "->"), strict=True):
        tracks.add(name, by_link[link])


def _counters(simulation: Simulation, tracks: Tracks, crossings: Crossings) -> None:
    """What the busiest links carry over time."""
    busiest = np.argsort(-simulation.utilisation, kind="stable")[:COUNTERS]
    busiest = busiest[simulation.loads.link_bytes[busiest] > 0]
    for link, name in zip(busiest.tolist(), link_names(simulation, busiest, "->"), strict=True):
        times, rate = throughput(simulation, crossings, link)
        # Of several values within a nanosecond, the last one counts.
        by_time = dict(zip(_nanoseconds(times).tolist(), (rate / 1e9).tolist(), strict=True))
        tracks.counter(f"{name} carries", "GB/s", {0: 0.0, **by_time}.items())


def _arrows(simulation: Simulation, sends: dict[int, Slice], receives: dict[int, Slice]) -> list[Event]:
    """The critical path as arrows from slice to slice."""
    legs = simulation.critical_path
    way: list[Slice] = []
    for leg, (sent, written) in zip(legs, on_path(legs), strict=True):
        way += [sends[leg.message]] if sent else []
        way += [receives[leg.message]] if written else []
    arrows: list[Event] = []
    for number, (before, after) in enumerate(itertools.pairwise(way)):
        arrows += _arrow(number, before, after)
    return arrows


def _arrow(number: int, before: Slice, after: Slice) -> Iterator[Event]:
    for phase, end, time_ns in (("s", before, before.last_ns), ("f", after, after.begin_ns)):
        event: Event = {
            "ph": phase,
            "name": "critical path",
            "cat": "critical",
            "id": number,
            "pid": RANKS,
            "tid": end.thread,
            "ts": microseconds(time_ns),
        }
        if phase == "f":
            event["bp"] = "e"  # to the slice around this moment, not to the next one
        yield event


def _nanoseconds(time_s: Floats) -> Ints:
    rounded: Ints = np.rint(time_s * 1e9).astype(np.int64)
    return rounded
