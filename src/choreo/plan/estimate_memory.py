"""The memory of a stage for whole columns of plans: `stage_memory`'s formulas, written for arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from choreo.plan.data_parallel.estimate import reduced_bytes
from choreo.plan.job import TrainingJob
from choreo.plan.layer.table import KINDS
from choreo.plan.memory import logit_bytes, model_state_bytes
from choreo.plan.stage_memory import CAST_BYTES
from choreo.workload.plan import RECOMPUTE, SCHEDULES

__all__ = ["passes_held", "stage_bytes"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Block = dict[str, Floats]
GPIPE, FULL = SCHEDULES.index("gpipe"), RECOMPUTE.index("full")


def passes_held(schedule: Ints, stage: int, stages: int, micro_batches: Floats, chunks: int) -> Floats:
    """How many chunk-passes a stage holds the activations of; see `pipeline.in_flight`."""
    total = micro_batches * chunks
    if chunks > 1:
        group = stages + micro_batches % stages
        ahead = np.where(micro_batches <= stages, total, (stages - stage - 1) * 2 + (chunks - 1) * group) + 1
    else:
        ahead = np.full_like(total, stages - stage)
    return np.asarray(np.where(schedule == GPIPE, total, np.minimum(total, ahead)))


def stage_bytes(  # noqa: PLR0917 -- all that memory depends on
    job: TrainingJob,
    pp: int,
    chunks: int,
    counts: tuple[int, ...],
    stage: int,
    block: dict[str, Block],
    columns: dict[str, Ints],
    micro_batches: Floats,
) -> Floats:
    """Bytes that a rank of a stage needs, context and fragmentation included."""
    software, model, zero = job.software, job.model, columns["zero"]
    number = dict(zip(KINDS, counts, strict=True))
    layers = number["dense"] + number["experts"]
    kinds = [kind for kind in ("dense", "experts") if number[kind]]

    def total(field: str, of: tuple[str, ...] = KINDS) -> Floats:
        found = np.zeros(len(zero))
        for kind in of:
            if number[kind]:
                found = found + number[kind] * block[kind][field]
        return found

    parameters, experts = total("parameters"), total("expert_parameters")
    if pp > 1 and number["head"] and model.tied_embeddings:
        parameters = parameters + model.vocab * model.hidden / columns["tp"]
    replicas = (columns["dp"] * columns["cp"]).astype(np.float64)
    state = np.zeros((3, len(zero)))
    for level in np.unique(zero):
        here = zero == level
        for owned, copies in ((parameters - experts, replicas), (experts, replicas / columns["ep"])):
            found = model_state_bytes(owned[here], copies[here], int(level), software, job.precision == "fp16")
            state[:, here] += np.array(found)
    passes = passes_held(columns["schedule"], stage, pp, micro_batches, chunks)
    activations = passes * total("saved_bytes", ("dense", "experts")) / chunks
    if number["embedding"]:
        activations = activations + block["embedding"]["saved_bytes"] * passes / chunks
    logits = np.zeros(len(zero))
    if number["head"]:
        tokens = columns["micro_batch"] * job.seq / columns["cp"]
        logits = logit_bytes(tokens, model.vocab / columns["tp"], software)
        activations = activations + block["head"]["input_bytes"]
    full = columns["recompute"] == FULL
    # A stage of the head alone works on what an embedding would.
    there = [block[kind] for kind in kinds or ["embedding"] if kind in block]
    zeros = np.zeros(len(zero))
    working = np.max([zeros, *(np.where(full, one["working_bytes"], one["widest_bytes"]) for one in there)], axis=0)
    largest = np.max([zeros, *(block[kind]["parameters"] for kind in kinds)], axis=0)
    outside = total("parameters", ("embedding", "head"))
    if pp > 1:
        buffers = parameters * (CAST_BYTES + reduced_bytes(job))
    else:
        buffers = (outside + 2 * largest) * 2 + np.maximum(largest, outside) * (2 + reduced_bytes(job))
    buffers = np.where(zero == 3, buffers, 0.0) + software.workspace_bytes
    weights = np.where(full, outside, parameters) * CAST_BYTES if software.cast_weights else 0.0
    held, gradients, optimizer = state
    fresh = (zero < 3) & (micro_batches == 1) if software.accumulate_bytes == 0 else np.zeros(len(zero), np.bool_)
    kept = np.where(fresh, 0.0, gradients)
    at_loss = activations + np.maximum(logits, working)
    at_end = activations / max(1, layers) + working
    dynamic = np.where(at_end + gradients > at_loss + kept, at_end, at_loss)
    gradients = np.where(at_end + gradients > at_loss + kept, gradients, kept)
    found = held + weights + gradients + optimizer + dynamic + buffers
    return np.asarray(found + software.fragmentation * (dynamic + buffers) + software.context_bytes)
