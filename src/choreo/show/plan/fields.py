"""The fields of a plan's page, which is also the data of its timeline."""

from __future__ import annotations

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
]


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
    """Memory: the capacity, the parts from the bottom up, and each stage over time."""

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
    """The step time with a factor, and the plan if another one is then best."""

    factor: float
    step_time_s: float
    plan: str | None


class ChartData(TypedDict):
    """The step time as one thing changes."""

    title: str
    points: list[PointData]


class LaunchData(TypedDict):
    """The options to run a plan with a program."""

    name: str
    options: list[str]
    notes: list[str]


class PlanData(TypedDict):
    """One plan."""

    plan: dict[str, object]
    step_time_s: float
    step_time_range_s: list[float]  # the range of nine of ten published steps like it
    tokens_per_s_per_gpu: float
    mfu: float
    hfu: float
    memory_bytes: float
    memory_range_bytes: list[float]
    fits: bool
    fits_chance: float
    bubble_s: float
    limits: str
    timeline: TimelineData
    memory: MemoryData
    where: list[PartData]
    what_if: list[ChartData]
    launch: list[LaunchData]


class PlanPage(TypedDict):
    """The data of the page."""

    model: str
    place: str
    facts: str
    network_model: str  # the network model: nccl, simulated or torus
    unit: str
    considered: int
    ruled_out: dict[str, int]
    equal: int  # how many of the first plans are equally good, within the prediction error
    plans: list[PlanData]
