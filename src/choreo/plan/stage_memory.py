"""The memory of one stage at its fullest, part by part, from what its blocks keep; formulas are `memory`'s."""

from __future__ import annotations

from collections.abc import Mapping

from choreo.plan.memory import activation_bytes, logit_bytes, model_state_bytes, shard_buffers
from choreo.plan.pipeline import in_flight
from choreo.plan.stages import Parts, Setting, Stage

__all__ = ["stage_memory"]

CAST_BYTES = 2  # of a parameter's copy in 16 bits, kept from its use forward to its use backward


def stage_memory(
    setting: Setting, index: int, stages: list[Stage], parts: Parts, reduced_bytes: int
) -> Mapping[str, float]:
    """Bytes by part at one rank of a stage."""
    model, plan, seq, software = setting.model, setting.plan, setting.seq, setting.software
    micro_batches, stage = setting.micro_batches, stages[index]
    held = [0.0, 0.0, 0.0]
    for parameters, replicas in stage.replicated(plan):
        state = model_state_bytes(parameters, float(replicas), plan.zero, software, plan.precision == "fp16")
        held = [total + more for total, more in zip(held, state, strict=True)]
    chunks = len(stage.layers)
    schedule = "1f1b" if plan.schedule != "gpipe" else "gpipe"
    passes = in_flight(schedule, index, plan.pp, micro_batches, chunks)
    kinds = ["experts" if model.has_experts(layer) else "dense" for chunk in stage.layers for layer in chunk]
    saved = sum(parts.blocks[kind].saved_bytes for kind in kinds)
    activations = float(activation_bytes(saved / chunks, 1.0, float(passes), 0.0))
    if index == 0:
        activations += parts.blocks["embedding"].saved_bytes * passes / chunks
    logits = 0.0
    if stage.has_head:
        tokens = plan.micro_batch * seq / plan.cp
        logits = float(logit_bytes(tokens, model.vocab / plan.tp, software))
        activations += parts.blocks["head"].input_bytes
    # The layer at work: its activations made again, or the gradients between its operators.
    there = [parts.blocks[kind] for kind in sorted(set(kinds))] or [parts.blocks["embedding"]]
    block = max(there, key=lambda found: found.working_bytes)
    working = block.working_bytes if plan.recompute == "full" else block.widest_bytes
    buffers = float(shard_buffers(stage.units, plan.zero, reduced_bytes))
    if plan.zero == 3 and plan.pp > 1:
        # Under a pipeline everything stays gathered, and gradients whole, until the last micro-batch.
        buffers = stage.parameters * (CAST_BYTES + reduced_bytes)
    weights = 0.0
    if software.cast_weights:
        # Layers that are computed again cast their weights again; copies of those last no longer than the layer.
        weights = CAST_BYTES * (stage.units[0].parameters if plan.recompute == "full" else stage.parameters)
    buffers += software.workspace_bytes
    parameters, gradients, optimizer = held
    fresh = software.accumulate_bytes == 0 and plan.zero < 3 and micro_batches == 1
    # Two moments: the loss, when every activation is there, and gradients are not if the program frees them between
    # steps; and the end of the backward pass, when it is the other way round.
    at_loss = activations + max(logits, working) + (0.0 if fresh else gradients)
    at_end = activations / max(1, len(kinds)) + working + gradients
    if at_end > at_loss:
        activations, logits = activations / max(1, len(kinds)) + working, 0.0
    else:
        gradients = 0.0 if fresh else gradients
        if working > logits:
            activations, logits = activations + working, 0.0
    found = {
        "parameters": parameters + weights,
        "gradients": gradients,
        "optimizer": optimizer,
        "activations": activations,
        "logits": logits,
        "buffers": buffers,
    }
    found["fragmentation"] = software.fragmentation * (activations + logits + buffers)
    found["context"] = software.context_bytes
    return found
