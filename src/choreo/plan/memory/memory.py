"""What a rank of each stage holds at the fullest moment of a step, part by part.

    parameters   as they are used, whole; with ZeRO-3 this rank's share, and a layer or two gathered (buffers)
    gradients    as they are kept from micro-batch to micro-batch; with ZeRO-2 and 3 a share
    optimizer    fp32 parameters (where those in use are not) and Adam's two moments; with ZeRO-1 to 3 a share
    activations  what the schedule keeps alive, times what a micro-batch keeps a layer, and the layer at work
    logits       of the last stage: in 16 bits, in fp32 for the loss, and their gradient
    buffers      what communication needs beside: gathered layers, buckets of gradients
    context      CUDA, libraries and NCCL; it is not PyTorch's, but it is not free either
    fragmentation   what the allocator holds and cannot give out: a share, and what communication has not given back; on
                 a processor malloc's holes

Allocated memory is the sum without context and fragmentation, as torch.cuda.max_memory_allocated counts; reserved is
what the allocator took from the device for it, fragmentation included.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from choreo.plan.data_parallel.send_times import gathered_bytes, reduced_bytes
from choreo.plan.job import TrainingJob
from choreo.plan.layer.work import LAYERS, OUTSIDE
from choreo.plan.pipeline import in_flight
from choreo.plan.software import Software
from choreo.plan.stages import PlanBatch
from choreo.workload.plan import RECOMPUTE, SCHEDULES

__all__ = ["model_state_bytes", "stage_memory"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
MASTER_BYTES = 4
LOGIT_TENSORS = 3  # as large as the logits: the logits, their log_softmax and its gradient
LOGITS_KEPT = 2 / 3  # of them, from the loss to its backward pass: all but the gradient
CAST_BYTES = 2  # a parameter's 16-bit copy, kept from its forward use to its backward use
GPIPE, FULL = SCHEDULES.index("gpipe"), RECOMPUTE.index("full")


def model_state_bytes(
    parameters: npt.ArrayLike, replicas: npt.ArrayLike, zero: npt.ArrayLike, software: Software, precision: str = "bf16"
) -> tuple[Floats, Floats, Floats]:
    """Bytes of parameters, gradients and optimizer state at one rank; `replicas` ranks shard them.

    >>> from choreo.plan.software import get_software
    >>> [float(size) for size in model_state_bytes(1e9, 8, 1, get_software("megatron-core"))]
    [2000000000.0, 4000000000.0, 1500000000.0]
    """
    if software.pure:
        held, kept, state = 2, 2, 2 * 2
    elif software.parameter_bytes == 4:
        # Parameters are their own master copy, and gradients have their type.
        held, kept, state = 4, 4, software.moment_bytes
    else:
        held, kept, state = 2, software.accumulate_bytes or 2, MASTER_BYTES + software.moment_bytes
        if precision == "fp16" and software.gradient_bytes == 2:
            kept = 2
    if software.frozen:
        kept = 0
    if software.frozen or software.optimizer_offload:
        state = 0
    owned, level = np.asarray(parameters), np.asarray(zero)
    share = owned / replicas
    return (
        held * np.where(level >= 3, share, owned),
        kept * np.where(level >= 2, share, owned),
        state * np.where(level >= 1, share, owned),
    )


def stage_memory(batch: PlanBatch) -> dict[str, Floats]:
    """Bytes by part at one rank of each stage, for each plan: arrays of stages by plans."""
    job, columns = batch.job, batch.columns
    software, zero, micro_batches = job.software, _sharding(batch), batch.micro_batches
    layers = np.maximum(1, sum(batch.count(kind) for kind in LAYERS))
    activations, logits = _activations(batch)
    working = _working(batch)
    parameters, gradients, optimizer = _state(batch)
    if software.reduces == "step" and batch.pp == 1:
        gradients = np.where((zero >= 2) & (micro_batches > 1), 4 * batch.parameters, gradients)
    weights = np.zeros_like(parameters)
    if software.cast_weights:
        # Recomputed layers cast their weights again; those copies last no longer than the layer.
        outside = batch.total("parameters", OUTSIDE)
        weights = CAST_BYTES * np.where(columns["recompute"] == FULL, outside, batch.parameters)
    buffers = _buffers(batch)
    caching = software.allocator == "caching"
    fresh = caching & (software.accumulate_bytes == 0) & (zero < 3) & (micro_batches == 1)
    # Memory peaks at the loss or at the end of the backward pass. At the loss every activation is held, but no
    # gradients if the program frees them between steps. At the end it is the other way round.
    kept = np.where(fresh, 0.0, gradients)
    at_loss, at_end = activations + np.maximum(logits, working), activations / layers + working
    ends = at_end + gradients > at_loss + kept
    # At the loss either the logits are held or a layer is being computed.
    logits = np.where(ends | (working > logits), 0.0, logits)
    activations = np.where(ends, at_end, at_loss - logits)
    holes = software.fragmentation * (activations + logits + buffers) + _waiting(batch)
    if not caching:
        holes = holes + _holes(batch, activations, logits)
    return {
        "parameters": parameters + weights,
        "gradients": np.where(ends, gradients, kept),
        "optimizer": optimizer,
        "activations": activations,
        "logits": logits,
        "buffers": buffers,
        "fragmentation": holes,
        "context": np.full_like(activations, _context_bytes(batch.job, piped=batch.pp > 1)),
    }


def _context_bytes(job: TrainingJob, *, piped: bool) -> float:
    """What is on the device beside PyTorch's memory; NCCL takes more of it if there is a network, or a pipeline."""
    several = job.gpus > job.cluster.node_gpus
    software = job.software
    return software.context_bytes + software.network_context_bytes * several + software.pipeline_context_bytes * piped


def _holes(batch: PlanBatch, activations: Floats, logits: Floats) -> Floats:
    """What malloc holds in holes that cannot be reused, because the tensors allocated between them stay.

    A recomputed layer dropped its activations between tensors that stay, so it needs as much room again. So do the
    gradients of a layer's activations, which are allocated before these are freed. Gradients of the first micro-batch
    lie where its activations were, so the next one needs new room. DDP builds its buckets a second time after the first
    step. ZeRO shards a model that was built whole, and has its shard in one piece. Where logits are larger than
    everything else, smaller tensors take pieces of their room, and they need new room. So do the gradients of a table.
    """
    zero, several = batch.columns["zero"], batch.replicas > 1
    whole = 4 * batch.parameters
    cut = np.where(
        several, whole + np.where(zero == 1, 2, 1) * whole / batch.replicas * ((zero == 1) | (zero == 2)), 0.0
    )
    buckets = np.where(several, whole, 0.0)
    full, first = batch.columns["recompute"] == FULL, batch.micro_batches == 1
    again = np.where(full | first, _largest(batch, "working_bytes"), 0.0)
    beyond = np.maximum(0.0, logits - LOGIT_TENSORS * _largest(batch, "widest_bytes"))
    # With GPipe all other forwards are computed before there are gradients.
    gpipe = (batch.columns["schedule"] == GPIPE) & (batch.pp > 1)
    second = activations / np.where(gpipe, batch.micro_batches, 1)
    return np.where(zero > 0, cut, buckets) + np.where(first, 0.0, second) + again + beyond + _tables(batch)


def _tables(batch: PlanBatch) -> Floats:
    """Room for gradients of the embedding or output layer that are added to others, and for their sums.

    Such a gradient is as large as the table, and needs new room unless the logits, freed before it, leave enough. A
    further micro-batch adds its gradient to that of the first. Where one table is the embedding and the output layer,
    its two gradients are added in each micro-batch.
    """
    model, columns = batch.job.model, batch.columns
    table = 4 * model.vocab * model.hidden / columns["tp"]
    heads, embeddings = batch.count("head") > 0, batch.count("embedding") > 0
    tokens = columns["micro_batch"] * batch.job.seq / columns["cp"]
    added = np.asarray(heads & embeddings & model.tied_embeddings, float) + (batch.micro_batches > 1)
    needed = (heads | embeddings) & ~(heads & (tokens >= model.hidden))
    return np.asarray(2 * added * table * needed)


def _waiting(batch: PlanBatch) -> Floats:
    """Memory of tensor-parallel communication that is not free yet: it is freed only once the device has run it.

    A host that is ahead of the device allocates new memory meanwhile. Without a pipeline it gets a micro-batch ahead,
    if there are more than two. With a pipeline whose sends do not block, it is ahead by all but two in flight.
    """
    job = batch.job
    if not job.software.stream_kept:
        return np.zeros((len(batch.stages), len(batch.plans)))
    if batch.pp == 1:
        ahead = np.clip((batch.micro_batches - 2) / 6, 0, 1)
    else:
        flying = np.minimum(batch.micro_batches, batch.pp - batch.index)
        ahead = np.maximum(0, flying - 2) * (job.software.p2p_host_s == 0)
    layers = sum(batch.count(kind) for kind in LAYERS)
    return np.asarray(layers * _stream_bytes(batch) * ahead * job.software.stream_kept)


def _stream_bytes(batch: PlanBatch) -> Floats:
    """A micro-batch's residual stream as tensor-parallel communication has it, whole; nothing without any."""
    job, columns = batch.job, batch.columns
    tokens = columns["micro_batch"] * job.seq / columns["cp"]
    return np.where(columns["tp"] > 1, tokens * job.model.hidden * 2, 0.0)


def _state(batch: PlanBatch) -> tuple[Floats, Floats, Floats]:
    """Parameters, gradients and optimizer state; experts have fewer replicas than the rest."""
    held, experts = batch.parameters, batch.expert_parameters
    about = _sharding(batch), batch.job.software, batch.job.precision
    dense = model_state_bytes(held - experts, batch.shards, *about)
    if not experts.any():
        return dense
    more = model_state_bytes(experts, batch.expert_replicas, *about)
    return dense[0] + more[0], dense[1] + more[1], dense[2] + more[2]


def _sharding(batch: PlanBatch) -> Ints:
    """The ZeRO stage of each plan. With a pipeline FSDP's ZeRO-2 keeps what its ZeRO-3 does: everything gathered."""
    software, zero = batch.job.software, batch.columns["zero"]
    alike = batch.pp > 1 and software.accumulate_bytes == 0 and software.reduces == "micro-batch"
    return np.where(zero == 2, 3, zero) if alike else zero


def _activations(batch: PlanBatch) -> tuple[Floats, Floats]:
    """The activations kept for micro-batches in flight, and the logits of the one at the loss.

    Under GPipe the losses of all micro-batches come before the first backward pass.
    """
    job, columns = batch.job, batch.columns
    gpipe = columns["schedule"] == GPIPE
    passes = in_flight(batch.index, batch.pp, batch.micro_batches, batch.chunks, batch.schedule, gpipe=gpipe)
    heads = batch.count("head") + batch.count("further head")
    kept = passes / batch.chunks * batch.total("saved_bytes", ("embedding", "further token", *LAYERS))
    tokens = columns["micro_batch"] * job.seq / columns["cp"]
    whole, cut = job.software.logit_bytes, job.software.parallel_logit_bytes or job.software.logit_bytes
    at_once = tokens / job.software.loss_chunks
    logits = at_once * (job.model.vocab / columns["tp"]) * np.where(columns["tp"] > 1, cut, whole)
    waiting = np.where((columns["schedule"] == GPIPE) & (batch.pp > 1), batch.micro_batches, 1)
    kept = kept + heads * (waiting * batch.layer("head", "input_bytes") + (waiting - 1) * LOGITS_KEPT * logits)
    return kept, heads * logits


def _working(batch: PlanBatch) -> Floats:
    """Working memory of the current layer: the gradients between its operators, and recomputed activations."""
    full = batch.columns["recompute"] == FULL
    return np.where(full, _largest(batch, "working_bytes"), 0.0) + _largest(batch, "widest_bytes")


def _largest(batch: PlanBatch, field: str) -> Floats:
    """The largest of a stage's layers in bytes. A stage without layers needs what an embedding would."""
    found = np.zeros((len(batch.stages), len(batch.plans)))
    held = {kind: batch.count(kind) > 0 for kind in LAYERS}
    for kind, has in {**held, "embedding": ~np.any(list(held.values()), axis=0)}.items():
        if has.any():
            found = np.maximum(found, has * batch.layer(kind, field))
    return found


def _buffers(batch: PlanBatch) -> Floats:
    """Buffers for communication.

    DDP has its buckets beside the gradients. Some programs keep the buffers in which sequence parallelism gathers the
    residual stream and its gradient. ZeRO-3 holds the gathered embedding, head and two layers. With a pipeline
    everything stays gathered, and gradients stay unsharded, until the last micro-batch. Either way one layer's
    gradients exist twice while they are sent.
    """
    software, zero = batch.job.software, _sharding(batch)
    found = np.full((len(batch.stages), len(batch.plans)), software.workspace_bytes)
    found += software.stream_buffers * batch.columns["sequence_parallel"] * _stream_bytes(batch)
    found += software.bucket_copy_bytes * batch.parameters * ((zero == 0) & (batch.replicas > 1))
    if not (zero == 3).any():
        return found
    reduced = reduced_bytes(software, batch.job.precision)
    gathered = gathered_bytes(software, batch.job.precision)
    outside = batch.total("parameters", OUTSIDE)
    layers = [(batch.count(kind) > 0) * batch.layer(kind, "parameters") for kind in LAYERS]
    largest = np.max(layers, axis=0)
    held = batch.parameters * (gathered + reduced) if batch.pp > 1 else (outside + 2 * largest) * gathered
    needed = held + np.maximum(largest, outside) * (gathered + reduced)
    return found + np.where(zero == 3, needed, 0.0)
