"""What a rank of each stage holds at the fullest moment of a step, part by part.

    parameters   as they are used, whole; with ZeRO-3 this rank's share, and a layer or two gathered (buffers)
    gradients    as they are kept from micro-batch to micro-batch; with ZeRO-2 and 3 a share
    optimizer    fp32 parameters (where those in use are not) and Adam's two moments; with ZeRO-1 to 3 a share
    activations  what the schedule keeps alive, times what a micro-batch keeps a layer, and the layer at work
    logits       of the last stage: in 16 bits, in fp32 for the loss, and their gradient
    buffers      what communication needs beside: gathered layers, buckets of gradients
    context      CUDA, libraries and NCCL; it is not PyTorch's, but it is not free either

Allocated memory is the sum without context, as torch.cuda.max_memory_allocated counts; reserved is what the allocator
took from the device for it, blocks and holes included.

Formulas are plain arithmetic, so that they also work on NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from choreo.plan.data_parallel.sharing import Unit
from choreo.plan.software import Software

__all__ = ["PARTS", "model_state_bytes"]

PARTS = ("parameters", "gradients", "optimizer", "activations", "logits", "buffers", "fragmentation", "context")
MASTER_BYTES, MOMENT_BYTES = 4, 8
Number = TypeVar("Number", float, npt.NDArray[np.float64])


def model_state_bytes(
    parameters: Number, replicas: Number, zero: int, software: Software, fp16: bool = False
) -> tuple[Number, Number, Number]:
    """Bytes of parameters, gradients and optimizer state at one rank, of which `replicas` have the same parameters."""
    share = 1 / replicas
    if software.pure:
        held, kept, state = 2, 2, 2 * 2
    elif software.parameter_bytes == 4:
        # Parameters are their own master copy, gradients have their type.
        held, kept, state = 4, 4, MOMENT_BYTES
    else:
        held, kept, state = 2, software.accumulate_bytes or 2, MASTER_BYTES + MOMENT_BYTES
        if fp16 and software.gradient_bytes == 2:
            kept = 2
    return (
        parameters * held * (share if zero >= 3 else 1),
        parameters * kept * (share if zero >= 2 else 1),
        parameters * state * (share if zero >= 1 else 1),
    )


def activation_bytes(saved: Number, layers: Number, passes: Number, working: Number) -> Number:
    """Kept by `passes` micro-batches of a chunk of `layers`, and the layer at work."""
    return passes * layers * saved + working


def logit_bytes(tokens: Number, vocab: Number, software: Software) -> Number:
    """Logits of one micro-batch at one rank: in 16 bits, in fp32 for the loss, and the gradient of either.

    Programs that compute the loss from 16-bit logits in one kernel keep those and their gradient alone.
    """
    return tokens * vocab * software.logit_bytes


def shard_buffers(units: Sequence[Unit], zero: int, reduced_bytes: int) -> float:
    """What ZeRO-3 needs beside: embedding and head gathered, two layers gathered, one layer's gradients as sent."""
    if zero < 3:
        return 0.0
    outside, layers = units[0].parameters, max((unit.parameters for unit in units[1:]), default=0.0)
    gathered = (outside + 2 * layers) * 2
    return gathered + max(layers, outside) * (2 + reduced_bytes)
