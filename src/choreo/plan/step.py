"""One training step under a plan, in detail: its time, where the time goes, and the memory it needs.

All replicas do the same work, and so do the tensor-parallel ranks of a stage, so one rank per stage is computed. The
formulas are those of the search, but the pipeline is simulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from choreo.errors import UsageError
from choreo.hardware import Device
from choreo.plan.data_parallel.cost import DataParallelCost, by_micro_batch, data_parallel_cost
from choreo.plan.data_parallel.send_times import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, SendTimes
from choreo.plan.how_sure.how_sure import UNKNOWN, Errors, errors_of, fits_chance
from choreo.plan.job import TrainingJob
from choreo.plan.layer.table import LayerTable, tabulate
from choreo.plan.layer.work import KINDS
from choreo.plan.memory.memory import stage_memory
from choreo.plan.network import Cluster, get_cluster
from choreo.plan.pipeline import Pipeline, simulate_pipeline
from choreo.plan.pipeline.split import PipelineStage
from choreo.plan.search.space import space_of
from choreo.plan.software import Software, get_software
from choreo.plan.software.ability import ability_of
from choreo.plan.stages import (
    PlanBatch,
    accumulation_s,
    batch_plans,
    message_s,
    optimizer_s,
    replica_host_s,
    shared_table_s,
)
from choreo.results import Result, result
from choreo.topology import Topology
from choreo.units import format_bytes, format_time
from choreo.workload import Plan, Workload, get_model

__all__ = ["STEP_FIGURES", "Step", "evaluate", "evaluate_job"]

Floats = npt.NDArray[np.float64]
NARROW = ("fp8", "fp4")  # precisions that many devices do not have

# The figures of a step that are read most often.
STEP_FIGURES = (
    "step_time_s",
    "step_time_range_s",
    "tokens_per_s_per_gpu",
    "mfu",
    "hfu",
    "memory_bytes",
    "memory_range_bytes",
    "memory",
    "fits",
    "fits_chance",
    "exposed_comm_s",
    "bubble_s",
    "parts",
    "kernels",
)


@result
class Step(Result):
    """The time and memory of a step. Times are in seconds; memory is that of the fullest rank, in bytes."""

    columns: ClassVar[tuple[str, ...]] = (
        *STEP_FIGURES,
        "bottleneck",
        "gpus",
        "gpu_hours",
        "warnings",
    )

    step_time_s: float
    parts: Mapping[str, float]  # seconds of the busiest stage: they add up to the step
    exposed_comm_s: Mapping[str, float]
    bubble_s: float
    memory: Mapping[str, float]
    peak_allocated_bytes: float  # given out by PyTorch's allocator at the fullest moment
    peak_reserved_bytes: float  # taken from the device for that
    device_bytes: float
    mfu: float
    hfu: float
    tokens_per_s_per_gpu: float
    bottleneck: str
    gpus: int
    stage_memory: tuple[Mapping[str, float], ...]
    pipeline: Pipeline
    warnings: tuple[str, ...] = ()
    kernels: Mapping[str, float] = field(
        default_factory=dict
    )  # seconds of compute at the busiest stage, by kind of kernel
    errors: Errors = UNKNOWN

    def summary(self) -> str:
        """Time, MFU and memory."""
        fits = "" if self.fits else ", which does not fit"
        time, memory = format_time(self.step_time_s), format_bytes(self.memory_bytes, binary=False)
        return f"{time} a step, MFU {100 * self.mfu:.1f} %, {memory}{fits}, limited by {self.bottleneck}"

    @property
    def memory_bytes(self) -> float:
        """The memory that the fullest device needs: what the allocator reserves, and the context."""
        return self.peak_reserved_bytes + self.memory.get("context", 0.0)

    @property
    def fits(self) -> bool:
        """Whether the device has that much memory."""
        return self.memory_bytes <= self.device_bytes

    @property
    def step_time_range_s(self) -> tuple[float, float]:
        """The range that held nine of ten published steps like this one."""
        return self.errors.range_of(self.step_time_s)

    @property
    def memory_range_bytes(self) -> tuple[float, float]:
        """The same for the memory."""
        return self.errors.range_of(self.memory_bytes, memory=True)

    @property
    def fits_chance(self) -> float:
        """The probability that the device has that much memory."""
        return fits_chance(self.memory_bytes, self.device_bytes, self.errors.memory)

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of one step, all devices together."""
        return self.step_time_s * self.gpus / 3600


def evaluate(
    model: str | Path | Workload,
    plan: Plan,
    *,
    cluster: str | Topology | Cluster,
    global_batch: int,
    seq: int,
    gpus: int | None = None,
    software: str | Software = "megatron-core",
    device: str | Device | None = None,
    timeline: bool = False,
) -> Step:
    """Time and memory of one step of a model under a plan on a cluster's devices.

    >>> step = evaluate("llama3-8b", Plan(dp=8, zero=3), cluster="hgx-h100", global_batch=16, seq=4096)
    >>> step.fits, round(step.step_time_s, 1), step.bottleneck
    (True, 0.9, 'compute')
    """
    model = get_model(model)
    if not isinstance(plan, Plan):
        raise UsageError(f"a plan is a Plan, like Plan(tp=8, dp=2), not {plan!r:.60}")
    gpus = plan.gpus if gpus is None else gpus
    place, program = get_cluster(cluster), get_software(software)
    plan.check(model, gpus, global_batch, seq, uneven_stages=ability_of(program.name).uneven_stages)
    chip = place.chip(device).for_ranks(gpus)
    place.check_gpus(gpus)
    place = place.for_ranks(gpus)
    return evaluate_job(
        TrainingJob(model, gpus, global_batch, seq, place, chip, program, plan.precision), plan, timeline=timeline
    )


def evaluate_job(job: TrainingJob, plan: Plan, *, table: LayerTable | None = None, timeline: bool = False) -> Step:
    """One step of a job under a plan that can be run; `table` has its layers, where they are known already.

    >>> from choreo.plan.network import get_cluster
    >>> place = get_cluster("hgx-h100")
    >>> about = (get_model("llama3-8b"), 8, 16, 4096, place, place.chip(), get_software("nemo"), "bf16")
    >>> evaluate_job(TrainingJob(*about), Plan(dp=8, zero=1, recompute="full")).fits
    True
    """
    space = space_of([plan])
    table = table or tabulate(job, space)
    batch = batch_plans(job, space, table, np.array([0]), every_stage=True)
    cost = data_parallel_cost(batch, SendTimes(job, space, table))
    message, run = _pipeline(batch, plan, cost, timeline)
    once = _exposed_once(batch, table, run.busiest)
    exposed = _exposed_comm(job, plan, batch, cost, run.busiest, once, message)
    total, parts = _times(job, plan, batch, cost, run, sum(once.values()))
    by_stage = stage_memory(batch)
    memory = [{name: float(size[stage, 0]) for name, size in by_stage.items()} for stage in range(plan.pp)]
    fullest = max(memory, key=lambda found: sum(found.values()))
    allocated = sum(size for name, size in fullest.items() if name not in ("context", "fragmentation"))
    tokens = job.global_batch * job.seq
    micro_batches = int(batch.micro_batches[0])
    flops = 3 * job.model.flops_per_token(job.seq) * tokens
    again = float(np.sum(batch.total("recomputed_flops"))) * micro_batches * plan.dp * plan.tp * plan.cp
    peak = job.device.peak(plan.precision) * plan.gpus * total
    return Step(
        step_time_s=total,
        parts=parts,
        exposed_comm_s=exposed,
        bubble_s=run.bubble_s,
        kernels=_kernels(batch, run.busiest, micro_batches),
        errors=errors_of(job),
        memory=fullest,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=allocated + fullest["fragmentation"],
        device_bytes=job.device.memory_bytes,
        mfu=flops / peak,
        hfu=(flops + again) / peak,
        tokens_per_s_per_gpu=tokens / total / plan.gpus,
        bottleneck=_bottleneck(parts, exposed),
        gpus=plan.gpus,
        stage_memory=tuple(memory),
        pipeline=run,
        warnings=_warnings(job, plan),
    )


def _times(  # noqa: PLR0917 -- all that it depends on
    job: TrainingJob, plan: Plan, batch: PlanBatch, cost: DataParallelCost, run: Pipeline, communication: float
) -> tuple[float, dict[str, float]]:
    """Seconds of the step, and of the parts of its busiest stage; `communication` is exposed in a micro-batch there."""
    often, micro_batches, busiest = bool(by_micro_batch(batch)[0]), int(batch.micro_batches[0]), run.busiest
    # The first stage ends last, so what it still has to send is exposed. All wait for the slowest stage.
    after = 0.0 if often else float(np.max(cost.total_s))
    optimizer = float(np.max(optimizer_s(batch)))
    added = float(np.max(accumulation_s(batch) + replica_host_s(batch)))
    table_s = float(shared_table_s(batch)[0])
    lone = run.time_s + after + added + table_s + optimizer + job.software.step_s
    total = lone * (1 + job.straggling)
    recompute, host, forward, backward = (
        float(batch.total(name)[busiest, 0]) for name in ("recompute_s", "host_s", "forward_s", "backward_s")
    )
    # A stage that shares cores is faster while others wait.
    shares = plan.pp > 1 and job.device.sharing > 1
    pace = run.busy_s[busiest] / ((forward + backward) * micro_batches) if shares else 1.0
    recompute, host, forward, backward, communication = (
        seconds * pace for seconds in (recompute, host, forward, backward, communication)
    )
    return total, {
        "compute": (forward + backward - recompute - host - communication) * micro_batches + added,
        "recompute": recompute * micro_batches,
        "communication": communication * micro_batches + table_s,
        "host": host * micro_batches,
        "bubble": run.bubble_s,
        "data parallel": float(cost.total_s[busiest, 0]) * micro_batches if often else after,
        "optimizer": optimizer + job.software.step_s,
        "stragglers": total - lone,
    }


def _exposed_once(batch: PlanBatch, table: LayerTable, stage: int) -> dict[str, float]:
    """Seconds of exposed communication of one micro-batch at a stage, by collective."""
    shown = _exposed(batch.stages[stage], table)
    again = float(batch.recomputed[0])
    if again == 1:
        return shown
    plain = _exposed(batch.stages[stage], table.without())
    return {name: plain.get(name, 0.0) * (1 - again) + again * seconds for name, seconds in shown.items()}


def _exposed_comm(  # noqa: PLR0917 -- all that it depends on
    job: TrainingJob,
    plan: Plan,
    batch: PlanBatch,
    cost: DataParallelCost,
    stage: int,
    once: dict[str, float],
    message_s: float,
) -> dict[str, float]:
    """Seconds of exposed communication of a step at a stage, by collective; `once` are those of a micro-batch."""
    often = bool(by_micro_batch(batch)[0])
    micro_batches = int(batch.micro_batches[0])
    exposed = {name: seconds * micro_batches for name, seconds in once.items()}
    for name, seconds in _exposed_dp(plan, cost, stage, summed=often and job.software.gather == "tensor").items():
        exposed[name] = exposed.get(name, 0.0) + seconds * (micro_batches if often else 1)
    if plan.pp > 1:
        sends = micro_batches * batch.chunks if job.software.p2p_blocks else plan.pp - 1
        exposed["pp send"] = message_s * 2 * sends
    if (table_s := float(shared_table_s(batch)[0])) > 0:
        exposed["pp all_reduce"] = table_s
    return exposed


def _kernels(batch: PlanBatch, stage: int, micro_batches: int) -> dict[str, float]:
    matmuls, attention, bound = (
        float(batch.total(name)[stage, 0]) * micro_batches for name in ("matmul_s", "attention_s", "memory_s")
    )
    return {"matmuls": matmuls - attention, "attention": attention, "memory-bound": bound}


def _warnings(job: TrainingJob, plan: Plan) -> tuple[str, ...]:
    found = [job.software.warning] if job.software.warning else []
    found += [f"this plan asks for {lack}" for lack in ability_of(job.software.name).lacks(plan)]
    used = job.device.precision(plan.precision)
    if plan.precision in NARROW and used != plan.precision:
        found.append(f"{job.device.name} has no matmuls in {plan.precision}; they are taken to be in {used}")
    if 0 < job.model.max_seq < job.seq:
        found.append(f"{job.model.name} was made for sequences of up to {job.model.max_seq} tokens, not {job.seq}")
    return tuple(found)


def _pipeline(batch: PlanBatch, plan: Plan, cost: DataParallelCost, timeline: bool) -> tuple[float, Pipeline]:
    """Seconds of a message between stages, and the simulated pipeline.

    ZeRO-3 adds to every micro-batch, so its time is part of the passes.
    """
    software, chunks = batch.job.software, batch.chunks
    message, often = float(message_s(batch)[0]), bool(by_micro_batch(batch)[0])

    def passes(field: str, added: Floats | None = None) -> list[list[float]]:
        each = {kind: float(batch.layer(kind, field)[0]) for kind in KINDS}
        more = np.zeros(len(batch.stages)) if added is None or not often else added[:, 0] / chunks
        return [
            [sum(each[kind] for kind in chunk) + float(extra) for chunk in stage.chunks]
            for stage, extra in zip(batch.stages, more, strict=True)
        ]

    return message, simulate_pipeline(
        "interleaved" if chunks > 1 and plan.schedule == "1f1b" else plan.schedule,
        int(batch.micro_batches[0]),
        passes("forward_s", cost.forward_s),
        passes("backward_s", cost.backward_s),
        weight_s=passes("weight_s"),
        message_s=0.0 if software.p2p_blocks else message,
        blocking_s=(message if software.p2p_blocks else 0.0) + (software.p2p_host_s if plan.pp > 1 else 0.0),
        sharing=batch.job.device.sharing,
        timeline=timeline,
    )


def _exposed(stage: PipelineStage, table: LayerTable) -> dict[str, float]:
    """Seconds of exposed communication in the layers of a stage, by "axes collective"."""
    found: dict[str, float] = {}
    layers = table.exposed(0)
    for kind, count in Counter(stage.layers).items():
        for name, seconds in layers[kind].items():
            found[name] = found.get(name, 0.0) + count * seconds
    return found


def _exposed_dp(plan: Plan, cost: DataParallelCost, stage: int, *, summed: bool) -> dict[str, float]:
    """Seconds of exposed data-parallel communication at a stage, by "dp collective"."""
    if plan.dp * plan.cp == 1:
        return {}
    found = {f"dp {ALL_REDUCE if summed or plan.zero == 0 else REDUCE_SCATTER}": float(cost.reduce_exposed_s[stage, 0])}
    if plan.zero:
        found[f"dp {ALL_GATHER}"] = float(cost.gather_exposed_s[stage, 0])
    return found


def _bottleneck(times: Mapping[str, float], exposed: Mapping[str, float]) -> str:
    name = max(times, key=lambda part: times[part])
    if name in ("communication", "data parallel") and exposed:
        return max(exposed, key=lambda collective: exposed[collective])
    return name
