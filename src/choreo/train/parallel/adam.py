"""AdamW and its state, the same under every plan, so that losses can be compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["MOMENTS", "adamw_options", "state_of"]

MOMENTS = ("exp_avg", "exp_avg_sq")  # as torch's Adam calls them


def adamw_options(lr: float) -> dict[str, Any]:
    """The same for every plan."""
    return {"lr": lr, "betas": (0.9, 0.95), "weight_decay": 0.0, "fused": True}


def state_of(adam: torch.optim.AdamW, parameter: Tensor, steps: int = 0) -> dict[str, Any]:
    """The state of a parameter, created if it does not exist yet; Adam counts `steps` from here on.

    Torch creates it in the first step, in memory that freed activations have left. So it is created before.
    """
    state: dict[str, Any] = adam.state[parameter]
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        state.update({name: torch.zeros_like(parameter) for name in MOMENTS})
    state["step"].fill_(steps)
    return state
