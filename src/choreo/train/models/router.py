"""Routers: the experts that a token goes to, and their weights."""

from __future__ import annotations

import math

from torch import Tensor

from choreo.workload import Model

__all__ = ["route"]

BEST_OF_A_GROUP = 2  # DeepSeek-V3 compares groups by the sum of their best two experts, V2 by the best one


def route(model: Model, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and numbers of each token's experts.

    The weights of several experts add up to one, unless the model says otherwise. Softmax over those experts alone
    gives the same as over all of them.

    >>> import torch
    >>> model = Model("m", 1, 8, 2, experts=4, experts_per_token=2)
    >>> gates, chosen = route(model, torch.tensor([[0.0, 3.0, 1.0, 3.0]]))
    >>> gates.tolist(), sorted(chosen.flatten().tolist())
    ([[0.5, 0.5]], [1, 3])
    """
    sigmoid, scale = model.router_score == "sigmoid", model.router_scale
    scores = logits.sigmoid() if sigmoid else logits.softmax(-1)
    chosen = _limited(model, scores.detach()).topk(model.experts_per_token, dim=-1).indices
    if not sigmoid and model.router_normalised:
        gates = logits.gather(-1, chosen).softmax(-1)
    else:
        gates = scores.gather(-1, chosen)
        if model.router_normalised and model.experts_per_token > 1:
            gates = gates / gates.sum(-1, keepdim=True)
    return gates * scale if scale else gates, chosen


def _limited(model: Model, scores: Tensor) -> Tensor:
    """The scores, with minus infinity for experts outside a token's groups."""
    if not model.router_groups:
        return scores
    groups = scores.unflatten(-1, (model.router_groups, -1))
    best = BEST_OF_A_GROUP if model.router_score == "sigmoid" else 1
    ranked = groups.topk(min(best, groups.shape[-1]), dim=-1).values.sum(-1)
    kept = ranked.topk(model.router_groups_per_token, dim=-1).indices
    left_out = ranked.new_ones(ranked.shape).scatter(-1, kept, 0.0).bool()
    return groups.masked_fill(left_out[..., None], -math.inf).flatten(-2)
