"""Bytes at one rank of each stage, part by part: what the memory columns of `choreo.plan` are held to.

Like `tests.oracles.plan`, for one plan at a time and without arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from choreo.plan.job import TrainingJob
from choreo.plan.layer.work import LayerWork
from choreo.plan.pipeline import orders
from choreo.plan.pipeline.dual import DUAL
from choreo.workload import Plan

__all__ = ["gathered_bytes", "held_parameters", "most_in_flight", "reduced_bytes", "stage_memory"]


def gathered_bytes(job: TrainingJob, plan: Plan) -> int:
    """Bytes per parameter that a gather moves."""
    return job.software.gathered_fp8_bytes if plan.precision in ("fp8", "fp4") else 2


def reduced_bytes(job: TrainingJob, plan: Plan) -> int:
    """Bytes per parameter that a reduction moves."""
    software = job.software
    narrow = software.accumulate_bytes == 2 or software.pure or plan.precision == "fp16"
    widens = software.gradient_bytes == 2 and not narrow
    return 4 if widens else software.gradient_bytes


def held_parameters(
    job: TrainingJob, plan: Plan, stage: list[list[str]], works: Mapping[str, LayerWork]
) -> tuple[float, float]:
    """Parameters of a stage, and of these the experts'."""
    names = [kind for chunk in stage for kind in chunk]
    held = sum(works[kind].parameters for kind in names)
    if plan.pp > 1 and (("head" in names and job.model.tied_embeddings) or "further token" in names):
        held += job.model.vocab * job.model.hidden / plan.tp
    return held, sum(works[kind].expert_parameters for kind in names)


def copies(plan: Plan) -> int:
    """How many stages hold the same layers."""
    return 2 if plan.pp > 1 and plan.schedule == "dualpipe" else 1


def most_in_flight(schedule: str, stage: int, stages: int, micro_batches: int, chunks: int) -> int:
    """The most passes that a stage has begun and not gone back through, by counting along its order."""
    kept = most = 0
    for kind, _, _ in orders(schedule, stages, micro_batches, chunks)[stage]:
        kept += 1 if kind == "F" else -1
        most = max(most, kept)
    return most


def _state_bytes(job: TrainingJob, plan: Plan, parameters: float, replicas: int) -> tuple[float, float, float]:
    software = job.software
    if software.pure:
        held, kept, state = 2, 2, 4
    elif software.parameter_bytes == 4:
        held, kept, state = 4, 4, software.moment_bytes
    else:
        held, kept, state = 2, software.accumulate_bytes or 2, 4 + software.moment_bytes
        if plan.precision == "fp16" and software.gradient_bytes == 2:
            kept = 2
    state = 0 if software.optimizer_offload else state
    return (
        parameters * held / (replicas if plan.zero >= 3 else 1),
        parameters * kept / (replicas if plan.zero >= 2 else 1),
        parameters * state / (replicas if plan.zero >= 1 else 1),
    )


def _bucket_bytes(job: TrainingJob, plan: Plan, parameters: float) -> float:
    return job.software.bucket_copy_bytes * parameters if plan.zero == 0 and plan.dp * plan.cp > 1 else 0.0


def stage_memory(
    job: TrainingJob, plan: Plan, index: int, stage: list[list[str]], works: Mapping[str, LayerWork]
) -> dict[str, float]:
    """Bytes by part at one rank of a stage."""
    model, software = job.model, job.software
    micro_batches, chunks = plan.micro_batches(job.global_batch) // copies(plan), len(stage)
    names = [kind for chunk in stage for kind in chunk]
    layers = [kind for kind in names if kind.startswith(("dense", "experts"))]
    held, experts = held_parameters(job, plan, stage, works)
    if plan.pp > 1 and plan.zero == 2 and software.accumulate_bytes == 0 and software.reduces == "micro-batch":
        plan = replace(plan, zero=3)
    dense = _state_bytes(job, plan, held - experts, (plan.shard_size or plan.dp) * plan.cp * copies(plan))
    shared = _state_bytes(job, plan, experts, plan.axis_size("edp") * copies(plan))
    parameters, gradients, optimizer = (one + other for one, other in zip(dense, shared, strict=True))
    schedule = "gpipe" if plan.schedule == "gpipe" else "1f1b"
    passes = most_in_flight(schedule, index, plan.pp, micro_batches, chunks)
    if plan.pp > 1 and plan.schedule in DUAL:
        passes = min(2 * micro_batches, plan.pp * plan.interleave + 1)
    stays = 1 - software.activation_offload
    kept = sum(
        works[kind].saved_bytes * (stays if kind.startswith(("dense", "experts")) else 1)
        for kind in names
        if "head" not in kind
    )
    activations, logits = passes * kept / chunks, 0.0
    if heads := sum("head" in kind for kind in names):
        each = software.parallel_logit_bytes if plan.tp > 1 and software.parallel_logit_bytes else software.logit_bytes
        logits = heads * plan.micro_batch * job.seq / plan.cp * model.vocab / plan.tp * each
        losses = micro_batches if schedule == "gpipe" and plan.pp > 1 else 1  # before the first backward pass
        activations += losses * heads * works["head"].input_bytes + (losses - 1) * logits * 2 / 3
    full = plan.recompute == "full"
    at_work = [works[kind] for kind in layers or ["embedding"]]
    working = max(max(work.widths_bytes, default=0.0) for work in at_work)
    working += max(work.working_bytes for work in at_work) if full else 0.0
    outside = sum(works[kind].parameters for kind in names if kind not in layers)
    largest = max((works[kind].parameters for kind in layers), default=0.0)
    stream = plan.micro_batch * job.seq / plan.cp * job.model.hidden * 2 if plan.tp > 1 else 0.0
    buffers = (
        software.workspace_bytes
        + software.stream_buffers * stream * plan.sequence_parallel
        + _bucket_bytes(job, plan, held)
    )
    gathered = gathered_bytes(job, plan)
    if plan.zero == 3:
        reduced = reduced_bytes(job, plan)
        buffers += held * (gathered + reduced) if plan.pp > 1 else (outside + 2 * largest) * gathered
        buffers += max(largest, outside) * (gathered + reduced)
    if software.cast_weights:
        parameters += 2 * (outside if full else held)
    freed = software.accumulate_bytes == 0 and plan.zero < 3 and micro_batches == 1
    at_loss = activations + max(logits, working) + (0.0 if freed else gradients)
    at_end = activations / max(1, len(layers)) + working
    if at_end + gradients > at_loss:
        activations, logits = at_end, 0.0
    else:
        gradients = 0.0 if freed else gradients
        if working > logits:
            activations, logits = activations + working, 0.0
    ahead = min(1.0, max(0.0, (micro_batches - 2) / 6))
    if plan.pp > 1:
        ahead = 0.0 if software.p2p_host_s else max(0, min(micro_batches, plan.pp - index) - 2)
    return {
        "parameters": parameters,
        "gradients": gradients,
        "optimizer": optimizer,
        "activations": activations,
        "logits": logits,
        "buffers": buffers,
        "fragmentation": software.fragmentation * (activations + logits + buffers)
        + software.stream_kept * stream * len(layers) * ahead,
        "context": software.context_bytes
        + software.network_context_bytes * (plan.gpus > job.cluster.node_gpus)
        + software.pipeline_context_bytes * (plan.pp > 1),
    }
