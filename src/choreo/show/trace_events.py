"""The Trace Event Format, which Perfetto and chrome://tracing read: tracks of slices, counters, and the file.

Slices of one thread must not overlap. Those that would go to further lanes, which are threads of their own next to the
first. Times are whole nanoseconds, because that is what Perfetto keeps: rounding must not make slices overlap. The
format, JSON: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypedDict

from choreo.files import write_text

__all__ = ["Event", "Slice", "Trace", "Tracks", "microseconds", "write_events"]

Event = dict[str, object]


class Trace(TypedDict):
    """The format's JSON object, with its own names."""

    traceEvents: list[Event]
    otherData: dict[str, object]


@dataclass(slots=True)
class Slice:
    """A stretch of time on a track, in nanoseconds; `thread` is set when the track is laid out."""

    begin_ns: int
    end_ns: int
    name: str
    category: str
    arguments: dict[str, object]
    thread: int = -1

    @property
    def last_ns(self) -> int:
        """The last nanosecond that belongs to this slice."""
        return max(self.begin_ns, self.end_ns - 1)


@dataclass(slots=True)
class Tracks:
    """The tracks of one process. `threads` gives thread numbers that are unique across processes."""

    process: int
    name: str
    threads: Iterable[int]
    events: list[Event] = field(default_factory=list)

    def label(self, words: str) -> None:
        """Name the process, with a few words beside it."""
        for what, arguments in (
            ("process_name", {"name": self.name}),
            ("process_labels", {"labels": words}),
            ("process_sort_index", {"sort_index": self.process}),
        ):
            self.events.append({"ph": "M", "name": what, "pid": self.process, "tid": self.process, "args": arguments})

    def add(self, name: str, slices: list[Slice]) -> int:
        """Add a track of these slices, on as many lanes as it takes; returns how many."""
        lanes: list[tuple[int, int]] = []  # thread, and when it is free
        for track_slice in sorted(slices, key=lambda track_slice: (track_slice.begin_ns, track_slice.end_ns)):
            lane = next((at for at, (_, free) in enumerate(lanes) if free <= track_slice.begin_ns), len(lanes))
            if lane == len(lanes):
                lanes.append((self._thread(name if lane == 0 else f"{name} ({lane + 1})"), 0))
            track_slice.thread = lanes[lane][0]
            # A slice without duration keeps its nanosecond to itself, so that an arrow finds it.
            lanes[lane] = (track_slice.thread, max(track_slice.end_ns, track_slice.begin_ns + 1))
            self.events.append(
                {
                    "ph": "X",
                    "name": track_slice.name,
                    "cat": track_slice.category,
                    "pid": self.process,
                    "tid": track_slice.thread,
                    "ts": microseconds(track_slice.begin_ns),
                    "dur": microseconds(track_slice.end_ns - track_slice.begin_ns),
                    "args": track_slice.arguments,
                }
            )
        return len(lanes)

    def counter(self, name: str, unit: str, values: Iterable[tuple[int, float]]) -> None:
        """A number over time."""
        for time_ns, value in values:
            where = {"pid": self.process, "tid": self.process, "ts": microseconds(time_ns)}
            self.events.append({"ph": "C", "name": name, **where, "args": {unit: value}})

    def _thread(self, name: str) -> int:
        number = next(iter(self.threads))
        for what, arguments in (("thread_name", {"name": name}), ("thread_sort_index", {"sort_index": number})):
            self.events.append({"ph": "M", "name": what, "pid": self.process, "tid": number, "args": arguments})
        return number


def microseconds(time_ns: int) -> float:
    """Nanoseconds as microseconds that truncate back to the same nanosecond."""
    value = time_ns / 1000
    return value if int(value * 1000) == time_ns else math.nextafter(value, math.inf)


def write_events(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write it into a file, an event a line."""
    events = ",\n".join(json.dumps(event, separators=(",", ":")) for event in trace["traceEvents"])
    text = f'{{"otherData":{json.dumps(trace["otherData"])},\n"traceEvents":[\n{events}\n]}}\n'
    write_text(path, text)
