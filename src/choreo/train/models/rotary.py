"""Rotary positions (Su et al., 2021): pairs of features are turned by an angle that grows with the position."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from choreo.workload import Model

__all__ = ["Turns", "rotary_dim", "turned", "turns_of"]

Turns = tuple[Tensor, Tensor]  # cosines and sines, (positions, pairs of features)

# Llama 3.1 slows down only what turns less than once in the length it was first trained with; "between" is a blend.
SCALED_BELOW, SCALED_NOT_ABOVE, FIRST_LENGTH = 1.0, 4.0, 8192


def rotary_dim(model: Model) -> int:
    """The number of features of a head that are turned.

    >>> from choreo.workload import get_model
    >>> [rotary_dim(get_model(name)) for name in ("llama3-8b", "gpt-neox-20b", "deepseek-v3", "gpt2-124m")]
    [128, 24, 64, 0]
    """
    if model.learned_positions or not model.rotary:
        return 0
    return model.latent.rope_dim if model.latent else 2 * int(model.head_dim * model.rotary_share / 2)


def turns_of(model: Model, positions: Tensor, dtype: torch.dtype, base: float = 0.0) -> Turns | None:
    """Cosines and sines of these positions, with another base than the model's; None if it has no rotary positions."""
    dim = rotary_dim(model)
    if not dim:
        return None
    steps = torch.arange(0, dim, 2, device=positions.device, dtype=torch.float32)
    speeds = torch.exp(steps * (-math.log(base or model.rope_base) / dim))
    if model.rope_scaling:
        rounds = FIRST_LENGTH * speeds / (2 * math.pi)
        kept = ((rounds - SCALED_BELOW) / (SCALED_NOT_ABOVE - SCALED_BELOW)).clamp(0, 1)
        speeds = speeds * (kept + (1 - kept) / model.rope_scaling)
    factor = 1.0
    if model.yarn:
        first, last = model.yarn.limits(dim, base or model.rope_base)
        kept = 1 - ((steps / 2 - first) / max(last - first, 1e-3)).clamp(0, 1)
        speeds, factor = speeds * (kept + (1 - kept) / model.yarn.factor), model.yarn.turn_factor
    angles = positions[:, None].float() * speeds
    return (factor * angles.cos()).to(dtype), (factor * angles.sin()).to(dtype)


def turned(x: Tensor, turns: Turns) -> Tensor:
    """Queries or keys (batch, heads, sequence, features) at their positions; features beyond the turned ones stay."""
    cos, sin = turns
    half = cos.shape[-1]
    a, b, rest = x.split((half, half, x.shape[-1] - 2 * half), dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1)
