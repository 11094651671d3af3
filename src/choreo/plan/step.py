"""One step of training under a plan: how long it takes, what of that shows what, and what it needs.

Symmetry is used: all replicas do the same, and so do the tensor-parallel ranks of a stage; one rank of each stage is
computed, however many there are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from choreo.hardware import Device
from choreo.plan.data_parallel.sharing import by_micro_batch, sharing
from choreo.plan.network import Cluster, collective_time, get_cluster
from choreo.plan.pipeline import Pipeline, simulate_pipeline
from choreo.plan.software import Software, get_software
from choreo.plan.software.ability import ability_of
from choreo.plan.stage_memory import stage_memory
from choreo.plan.stages import Setting, Stage, build_stages, model_parts
from choreo.topology import Topology
from choreo.workload import Model, Plan

__all__ = ["Step", "evaluate"]

# Adam over fp32 state: read gradient, parameter and both moments, write the last three; a copy in 16 bits is written.
ADAM_BYTES, COPY_BYTES = 28, 2
# The norm of the gradients is one more reading, setting them to zero one more writing.
NORM_BYTES, ZERO_BYTES = 4, 4


@dataclass(frozen=True, slots=True)
class Step:
    """What a step takes and needs. Times are seconds, memory bytes of the fullest rank."""

    step_time_s: float
    parts: Mapping[str, float]  # seconds of the busiest stage: they add up to the step
    exposed_comm_s: Mapping[str, float]
    bubble_s: float
    memory: Mapping[str, float]
    peak_allocated_bytes: float
    peak_reserved_bytes: float
    device_bytes: float
    mfu: float
    hfu: float
    tokens_per_s_per_gpu: float
    bottleneck: str
    gpus: int
    stage_memory: tuple[Mapping[str, float], ...]
    pipeline: Pipeline = field(repr=False)
    warnings: tuple[str, ...] = ()

    @property
    def allocated_bytes(self) -> float:
        """What PyTorch's allocator gave out at the fullest moment."""
        return self.peak_allocated_bytes

    @property
    def reserved_bytes(self) -> float:
        """What it took from the device for that."""
        return self.peak_reserved_bytes

    @property
    def memory_bytes(self) -> float:
        """What the fullest device must have: reserved memory and the context beside it."""
        return self.peak_reserved_bytes + self.memory.get("context", 0.0)

    @property
    def fits(self) -> bool:
        """Whether the device has that."""
        return self.memory_bytes <= self.device_bytes

    @property
    def gpu_hours(self) -> float:
        """Of one step, all devices together."""
        return self.step_time_s * self.gpus / 3600


def evaluate(
    model: Model,
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
    """Time and memory of one step of a model under a plan on a cluster's devices."""
    gpus = plan.gpus if gpus is None else gpus
    place, program = get_cluster(cluster), get_software(software)
    plan.check(model, gpus, global_batch, seq, uneven_stages=ability_of(program.name).uneven_stages)
    chip = place.chip(device)
    place.check_gpus(gpus)
    micro_batches = plan.micro_batches(global_batch)
    setting = Setting(model, plan, seq, micro_batches, program, chip, place)
    parts = model_parts(setting)
    stages = build_stages(setting, parts)
    reduced = _reduced_bytes(plan, program)

    # ZeRO-3 adds to every micro-batch, so it is part of what the pipeline passes take.
    shared = [sharing(stage.units, plan, program, place, chip, reduced_bytes=reduced) for stage in stages]
    each = by_micro_batch(plan, program)
    chunks = plan.interleave if plan.pp > 1 else 1
    forward = [
        [s + (x.forward_s / chunks if each else 0.0) for s in stage.forward_s]
        for stage, x in zip(stages, shared, strict=True)
    ]
    backward = [
        [s + (x.backward_s / chunks if each else 0.0) for s in stage.backward_s]
        for stage, x in zip(stages, shared, strict=True)
    ]
    message = _message_s(model, plan, seq, program, place)
    blocks = program.p2p_blocks
    run = simulate_pipeline(
        "interleaved" if chunks > 1 and plan.schedule == "1f1b" else plan.schedule,
        micro_batches,
        forward,
        backward,
        weight_s=[stage.weight_s for stage in stages],
        message_s=0.0 if blocks else message,
        blocking_s=(message if blocks else 0.0) + (program.p2p_host_s if plan.pp > 1 else 0.0),
        timeline=timeline,
    )
    # The first stage ends last; what it still has to send shows. The slowest of the stages is waited for.
    after = 0.0 if each else max(x.total_s for x in shared)
    optimizer = max(_optimizer_s(stage, plan, program, chip) for stage in stages)
    lone = run.time_s + after + optimizer + program.step_s
    nodes = max(1.0, plan.gpus / place.node_gpus)
    waiting = lone * program.jitter * math.sqrt(2 * math.log(nodes)) if nodes > 1 else 0.0
    total = lone + waiting

    busiest = stages[run.busiest]
    exposed: dict[str, float] = {}
    for name, seconds in busiest.exposed_s.items():
        exposed[name] = seconds * micro_batches
    for name, seconds in shared[run.busiest].exposed_s.items():
        exposed[name] = exposed.get(name, 0.0) + seconds * (micro_batches if each else 1)
    if plan.pp > 1:
        exposed["pp send"] = message * 2 * micro_batches * chunks if blocks else message * 2 * (plan.pp - 1)
    times = {
        "compute": (sum(busiest.forward_s) + sum(busiest.backward_s) - busiest.recompute_s - busiest.host_s)
        * micro_batches
        - sum(busiest.exposed_s.values()) * micro_batches,
        "recompute": busiest.recompute_s * micro_batches,
        "communication": sum(busiest.exposed_s.values()) * micro_batches,
        "host": busiest.host_s * micro_batches,
        "bubble": run.bubble_s,
        "data parallel": after if not each else shared[run.busiest].total_s * micro_batches,
        "optimizer": optimizer + program.step_s,
        "stragglers": waiting,
    }
    memory = [stage_memory(setting, index, stages, parts, reduced) for index in range(len(stages))]
    fullest = max(memory, key=lambda found: sum(found.values()))
    allocated = sum(size for name, size in fullest.items() if name not in ("context", "fragmentation"))
    tokens = global_batch * seq
    flops = 3 * model.flops_per_token(seq) * tokens
    again = flops + _recomputed_flops(stages, plan) * micro_batches * plan.dp * plan.tp * plan.cp
    peak = chip.peak(plan.precision) * plan.gpus * total
    return Step(
        step_time_s=total,
        parts=times,
        exposed_comm_s=exposed,
        bubble_s=run.bubble_s,
        memory=fullest,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=allocated + fullest["fragmentation"],
        device_bytes=chip.memory_bytes,
        mfu=flops / peak,
        hfu=again / peak,
        tokens_per_s_per_gpu=tokens / total / plan.gpus,
        bottleneck=_bottleneck(times, exposed),
        gpus=plan.gpus,
        stage_memory=tuple(memory),
        pipeline=run,
        warnings=(program.warning,) if program.warning else (),
    )


def _reduced_bytes(plan: Plan, software: Software) -> int:
    """Of a gradient while it is summed: bf16 has too few digits for sums, so programs that care widen it."""
    if software.gradient_bytes == 2 and plan.precision != "fp16" and not software.pure:
        return 4
    return software.gradient_bytes


def _message_s(model: Model, plan: Plan, seq: int, software: Software, cluster: Cluster) -> float:
    """A message between stages; each tensor-parallel rank sends its part, and gathers the rest where it needs it."""
    if plan.pp == 1:
        return 0.0
    size = plan.micro_batch * seq / plan.cp * model.hidden * plan.activation_bytes
    stride = plan.tp * plan.cp * plan.dp
    seconds = float(collective_time(cluster, "sendrecv", size / plan.tp, 2, stride))
    if not plan.sequence_parallel and plan.tp > 1:
        seconds += float(collective_time(cluster, "all_gather", size, plan.tp, 1))
    return seconds


def _optimizer_s(stage: Stage, plan: Plan, software: Software, device: Device) -> float:
    """Bound by memory: the share of the state that is this rank's, and all the gradients there are."""
    copies = COPY_BYTES if software.parameter_bytes == 2 else 0
    owned = sum((parameters / (replicas if plan.zero else 1)) for parameters, replicas in stage.replicated(plan))
    gradients = stage.parameters / (plan.dp * plan.cp if plan.zero >= 2 else 1)
    moved = owned * (ADAM_BYTES + copies + NORM_BYTES) + gradients * ZERO_BYTES
    return float(device.memory_time(moved, "optimizer"))


def _recomputed_flops(stages: list[Stage], plan: Plan) -> float:
    return sum(stage.recomputed_flops for stage in stages)


def _bottleneck(times: Mapping[str, float], exposed: Mapping[str, float]) -> str:
    name = max(times, key=lambda part: times[part])
    if name in ("communication", "data parallel") and exposed:
        return max(exposed, key=lambda collective: exposed[collective])
    return name
