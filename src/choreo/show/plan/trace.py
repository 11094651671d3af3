"""A step's timeline for Perfetto and chrome://tracing: a track for each stage, and counters of memory."""

from __future__ import annotations

import itertools
import os

from choreo.plan import Planning
from choreo.show.plan.data import plan_data
from choreo.show.plan.fields import PlanData
from choreo.show.plan.words import title
from choreo.show.trace_events import Slice, Trace, Tracks, write_events

__all__ = ["plan_trace", "write_plan_trace"]

STAGES, MEMORY = 1, 2  # process numbers, in the order they are shown in
FIRST_THREAD = 101
NAMES = {"F": "forward", "B": "backward", "W": "weight gradients"}


def plan_trace(plan: PlanData, about: str) -> Trace:
    """The format's JSON object."""
    threads = itertools.count(FIRST_THREAD)
    stages, memory = Tracks(STAGES, "stages", threads), Tracks(MEMORY, "memory", threads)
    stages.label(about)
    memory.label(about)
    line = plan["timeline"]
    slices: list[list[Slice]] = [[] for _ in range(line["stages"])]
    columns = (line[name] for name in ("kind", "stage", "micro_batch", "chunk", "start_s", "end_s"))
    for kind, stage, batch, chunk, start, end in zip(*columns, strict=True):
        arguments: dict[str, object] = {"micro_batch": batch, "chunk": chunk, "stage": stage}
        name = f"{NAMES[kind]} {batch}" + (f".{chunk}" if line["chunks"] > 1 else "")
        slices[stage].append(Slice(_ns(start), _ns(end), name, NAMES[kind], arguments))
    for stage, stage_slices in enumerate(slices):
        stage_slices += [
            Slice(_ns(part["start_s"]), _ns(part["end_s"]), part["name"], "after", {}) for part in line["tail"]
        ]
        stages.add(f"stage {stage}", stage_slices)
    for number, stage_memory in enumerate(plan["memory"]["stages"]):
        for part in plan["memory"]["parts"]:
            values = zip(stage_memory["time_s"], stage_memory["series"][part], strict=True)
            by_time = {_ns(moment): size / 1e9 for moment, size in values}
            memory.counter(f"stage {number} {part}", "GB", by_time.items())
    return {
        "traceEvents": [*stages.events, *memory.events],
        "otherData": {"title": about, "plan": plan["plan"], "step_time_s": plan["step_time_s"]},
    }


def write_plan_trace(planning: Planning, path: str | os.PathLike[str]) -> None:
    """Write the best plan's step into a file that ui.perfetto.dev and chrome://tracing open."""
    write_events(plan_trace(plan_data(planning, planning.best, charts=False), title(planning)), path)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
