"""The page of a plan: one HTML file that needs nothing else, with the data that `PlanPage` describes.

The markup, the style and the scripts are plain files in the folder `page`; here they are put into one. Names may come
from anybody's file, so they are escaped for where they stand.
"""

from __future__ import annotations

import json
import re
from html import escape
from importlib.resources import files
from typing import TypedDict

__all__ = [
    "ChartData",
    "LaunchData",
    "MemoryData",
    "PartData",
    "PlanData",
    "PlanPage",
    "PointData",
    "StageData",
    "TailData",
    "TimelineData",
    "plan_html",
]

SCRIPTS = ("simulation_words.js", "plan_timeline.js", "plan_memory.js", "plan.js")


class TailData(TypedDict):
    """What comes after the pipeline."""

    name: str
    color: str
    start_s: float
    end_s: float


class TimelineData(TypedDict):
    """Passes as columns: kind is F, B or W."""

    stages: int
    chunks: int
    kind: list[str]
    stage: list[int]
    micro_batch: list[int]
    chunk: list[int]
    start_s: list[float]
    end_s: list[float]
    tail: list[TailData]


class StageData(TypedDict):
    """Bytes of a stage over time, by part."""

    time_s: list[float]
    series: dict[str, list[float]]


class MemoryData(TypedDict):
    """Memory: what there is, the parts from the bottom up, and each stage over time."""

    capacity_bytes: float
    parts: list[str]
    fullest: int
    peak: dict[str, float]
    stages: list[StageData]


class PartData(TypedDict):
    """A part of the step's time."""

    name: str
    value: float
    color: str


class PointData(TypedDict):
    """With a factor: the step time, and the plan where it is another."""

    factor: float
    step_time_s: float
    plan: str | None


class ChartData(TypedDict):
    """The step time as one thing is varied."""

    title: str
    points: list[PointData]


class LaunchData(TypedDict):
    """Options of a program."""

    name: str
    options: list[str]
    notes: list[str]


class PlanData(TypedDict):
    """One plan."""

    plan: dict[str, object]
    step_time_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    hfu: float
    memory_bytes: float
    fits: bool
    bubble_s: float
    limits: str
    timeline: TimelineData
    memory: MemoryData
    where: list[PartData]
    what_if: list[ChartData]
    launch: list[LaunchData]


class PlanPage(TypedDict):
    """The data twin of the page."""

    model: str
    place: str
    facts: str
    unit: str
    considered: int
    ruled_out: dict[str, int]
    plans: list[PlanData]


def plan_html(page: PlanPage) -> str:
    """A page with the best plans: timeline, memory, where the time goes, and what if."""
    parts = {
        "TITLE": escape(f"{page['model']} on {page['place']}"),
        "STYLE": _file("plan.css"),
        "HEADING": f'{escape(page["model"])} <span class="by">on</span> {escape(page["place"])}',
        "FACTS": escape(page["facts"]),
        "DATA": _embedded(page),
        "SCRIPT": "\n".join(_file(name) for name in SCRIPTS),
    }
    # One pass, so that a name that looks like a placeholder stays what it is.
    return re.sub("@([A-Z]+)@", lambda found: parts[found[1]], _file("plan.html"))


def _embedded(page: PlanPage) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(page, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _file(name: str) -> str:
    return (files("choreo.show") / "page" / name).read_text(encoding="utf-8")
