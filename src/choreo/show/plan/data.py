"""The data of a plan's page and trace: passes, memory over time, where the time goes, and what-if curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from choreo.show.plan.fields import (
    ChartData,
    LaunchData,
    MemoryData,
    PartData,
    PlanData,
    PlanPage,
    StageData,
    TailData,
    TimelineData,
)
from choreo.show.plan.words import kernels, limits, notes, run_words, shares
from choreo.units import format_count

if TYPE_CHECKING:
    from choreo.plan import Planned, Planning, Step
    from choreo.plan.pipeline import PipelinePass
    from choreo.plan.training_run import TrainingRun

__all__ = ["page_data", "plan_data"]

# With more passes than this a browser is slow; the timeline then has the first and the last.
MOST_TASKS = 24_000
CHARTS = {
    "bandwidth": "bandwidth of the links",
    "latency": "latency of the links",
    "flops": "FLOP/s",
    "memory-bandwidth": "memory bandwidth",
    "memory": "memory",
}
# From the bottom of the chart up: what stays, then what comes and goes.
PARTS = ("context", "parameters", "optimizer", "gradients", "buffers", "activations", "logits", "fragmentation")
COLORS = {
    "compute": "matmul", "matmuls": "matmul", "attention": "attention", "memory-bound kernels": "kernels",
    "recomputation (memory)": "again", "host": "host", "bubble": "bubble",
    "optimizer": "optimizer", "stragglers": "part", "contention": "kernels",
}  # fmt: skip


def page_data(planning: Planning, run: TrainingRun | None = None) -> PlanPage:
    """The data of the page."""
    work = planning.workload
    batch = f"global batch {planning.global_batch}"
    if planning.job is not None:
        batch += f" of {planning.seq:,} tokens"
    whole = "" if run is None else f". The best plan: {'; '.join(run_words(run))}"
    return PlanPage(
        model=work.name,
        place=f"{planning.gpus:,} × {planning.device.name}",
        facts=f"{format_count(work.parameters)} parameters, {batch}, {planning.precision}, {planning.software.name} on "
        f"{planning.cluster.name}, network: {planning.cluster.network.name}{whole}{notes(planning)}",
        network_model=planning.cluster.network.name,
        unit="tokens" if planning.job is not None else "samples",
        considered=planning.considered,
        ruled_out=dict(planning.ruled_out),
        equal=planning.equal,
        plans=[plan_data(planning, planned) for planned in planning.plans],
    )


def plan_data(planning: Planning, planned: Planned, *, charts: bool = True) -> PlanData:
    """The data of one plan; without `charts` the what-if curves are left out, which is quick."""
    from choreo.plan.search.search import detailed
    from choreo.plan.what_if import what_if

    step = planned.step if planning.job is None else detailed(planning.job, planned.plan, timeline=True)
    curves = what_if(planning, planned.plan) if charts else ()
    return PlanData(
        plan=planned.plan.fields(),
        step_time_s=step.step_time_s,
        step_time_range_s=list(step.step_time_range_s),
        tokens_per_s_per_gpu=step.tokens_per_s_per_gpu,
        mfu=step.mfu,
        hfu=step.hfu,
        memory_bytes=step.memory_bytes,
        memory_range_bytes=list(step.memory_range_bytes),
        fits=step.fits,
        fits_chance=step.fits_chance,
        bubble_s=step.bubble_s,
        limits=limits(planning, planned, 2),
        timeline=_timeline(step),
        memory=_memory(step),
        where=_where(planning, planned),
        what_if=[
            ChartData(
                title=CHARTS[curve.name],
                points=[
                    {
                        "factor": point.factor,
                        "step_time_s": point.step_time_s,
                        "plan": None if point.plan is None else str(point.plan),
                    }
                    for point in curve.points
                ],
            )
            for curve in curves
        ],
        launch=_launch(planning, planned),
    )


def _where(planning: Planning, planned: Planned) -> list[PartData]:
    found, waits = [], 0
    parts = shares(planning, planned)
    if by_kind := kernels(planned.step):
        parts.pop("compute")
        parts |= {
            "memory-bound kernels" if name == "memory-bound" else name: seconds for name, seconds in by_kind.items()
        }
    for name, seconds in sorted(parts.items(), key=lambda part: -part[1]):
        if seconds < 1e-4 * planned.step.step_time_s:
            continue
        color = COLORS.get(name)
        if color is None:
            color, waits = f"wait-{min(waits, 3)}", waits + 1
        found.append(PartData(name=name, value=seconds, color=color))
    return found


def _timeline(step: Step) -> TimelineData:
    tasks = sorted(step.pipeline.tasks, key=lambda task: (task.start_s, task.stage))
    if len(tasks) > MOST_TASKS:
        tasks = [*tasks[: MOST_TASKS // 2], *tasks[-MOST_TASKS // 2 :]]
    tail, at = [], step.pipeline.time_s
    # A convolutional network or a recommender has no part of that name: it waits for one all_reduce at the end.
    summing = step.parts.get("data parallel", step.exposed_comm_s.get("dp all_reduce", 0.0))
    after = {
        "gradients and parameters": (summing, "wait-0"),
        "contention": (step.parts.get("contention", 0.0), "kernels"),
        "optimizer": (step.parts.get("optimizer", 0.0), "optimizer"),
        "stragglers": (step.parts.get("stragglers", 0.0), "part"),
    }
    left = step.step_time_s - at
    scale = min(1.0, left / max(sum(seconds for seconds, _ in after.values()), 1e-12))
    for name, (seconds, color) in after.items():
        if seconds * scale > 1e-4 * step.step_time_s:
            tail.append(TailData(name=name, color=color, start_s=at, end_s=at + seconds * scale))
            at += seconds * scale
    return TimelineData(
        stages=len(step.pipeline.busy_s),
        chunks=1 + max((task.chunk for task in tasks), default=0),
        kind=[task.kind for task in tasks],
        stage=[task.stage for task in tasks],
        micro_batch=[task.micro_batch for task in tasks],
        chunk=[task.chunk for task in tasks],
        start_s=[_short(task.start_s) for task in tasks],
        end_s=[_short(task.end_s) for task in tasks],
        tail=tail,
    )


def _memory(step: Step) -> MemoryData:
    sums = [sum(found.values()) for found in step.stage_memory]
    fullest = sums.index(max(sums))
    by_stage: list[list[PipelinePass]] = [[] for _ in step.stage_memory]
    for task in step.pipeline.tasks:
        by_stage[task.stage].append(task)
    return MemoryData(
        capacity_bytes=step.device_bytes,
        parts=[name for name in PARTS if any(found.get(name, 0) for found in step.stage_memory)],
        fullest=fullest,
        peak={name: float(step.memory.get(name, 0.0)) for name in PARTS},
        stages=[_stage(step, found, tasks) for found, tasks in zip(step.stage_memory, by_stage, strict=True)],
    )


def _stage(step: Step, parts: Mapping[str, float], tasks: list[PipelinePass]) -> StageData:
    """Activations grow while a micro-batch goes forward and shrink while it comes back; the rest stays."""
    tasks = sorted(tasks, key=lambda task: task.start_s)
    ends = {"F": 1.0, "B": -1.0, "W": 0.0}
    held, most = 0.0, 1.0
    for task in tasks:
        held += ends[task.kind]
        most = max(most, held)
    times, level = [0.0], [0.0]
    held = 0.0
    for task in tasks:
        times.append(task.start_s)
        level.append(held / most)
        held += ends[task.kind]
        times.append(task.end_s)
        level.append(max(0.0, held / most))
    times.append(step.step_time_s)
    level.append(max(0.0, held / most))
    if len(times) > 1200:  # as many as there are pixels
        every = len(times) // 600
        keep = sorted({0, len(times) - 1, *range(0, len(times), every), level.index(max(level))})
        times, level = [times[at] for at in keep], [level[at] for at in keep]
    series = {}
    for name, size in parts.items():
        if name in ("activations", "logits", "fragmentation"):
            series[name] = [_short(size * share) for share in level]
        else:
            series[name] = [_short(size)] * len(times)
    return StageData(time_s=[_short(moment) for moment in times], series=series)


def _launch(planning: Planning, planned: Planned) -> list[LaunchData]:
    from choreo.plan.launch import launches

    if planning.job is None:
        return []
    return [
        LaunchData(
            name=launch.program,
            options=list(launch.options),
            notes=[*launch.notes, *(["cannot run it:", *launch.lacks] if launch.lacks else [])],
        )
        for launch in launches(planning.job, planned.plan)
    ]


def _short(value: float) -> float:
    return float(f"{value:.6g}")
