"""The experts of a published row whose model the catalogue lacks: from its name, its notes and its sizes."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from choreo.validate.plan.measured import MeasuredRow
from choreo.workload import Model

__all__ = ["is_mixture", "named_size", "size_without_experts", "with_experts"]

ACTIVE = 8  # experts per token, if only the name mentions experts, or there are many
MANY_EXPERTS = 64
NAMED = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)\s*([bmt])\b", re.IGNORECASE)


def with_experts(row: MeasuredRow, model: Model) -> Model:
    """A mixture that is not in the catalogue: "8x7B" has eight experts, two for a token. If only ep implies experts,
    their number follows from the number of parameters."""
    if active := active_size(row):
        # Eight narrow experts for a token make up what is active.
        narrow = max(256, model.ffn // ACTIVE // 128 * 128)
        each = model.layers * model.mlp_parameters(narrow)
        rest = model.parameters - model.layers * model.mlp_parameters(model.ffn)
        shared = math.lcm(16, row.ep or 1)
        count = shared * max(1, round(((row.params or active[0]) - rest) / each / shared))
        return replace(model, experts=min(count, 4096), experts_per_token=ACTIVE, expert_ffn=narrow)
    experts, active_experts, every = _told_experts(row)
    if not experts and (row.ep or 1) > 1:
        ep = row.ep or 1
        each = model.layers * model.mlp_parameters(model.ffn)
        rest = model.parameters - each
        experts = max(1, round((row.params - rest) / each / ep)) * ep if row.params else max(8, ep)
    if not 2 <= experts <= 4096:
        return model
    active_experts = active_experts or (2 if experts < MANY_EXPERTS else ACTIVE)
    return replace(model, experts=experts, experts_per_token=active_experts, expert_ffn=model.ffn, moe_every=every)


def size_without_experts(row: MeasuredRow) -> float | None:
    """The parameters of a dense model of the same shape; an expert is an MLP, which has two thirds of a layer's."""
    if active := active_size(row):
        return active[1]
    size = named_size(row)
    # Of "64x1.3B" and "1.3B+MoE-128" the size of the model without experts.
    if row.params is None or (size and is_mixture(row) and size < row.params):
        return size
    experts, _, every = _told_experts(row)
    experts = experts or (max(ACTIVE, row.ep or 1) if (row.ep or 1) > 1 else 1)
    return row.params / (1 / 3 + 2 / 3 * (1 + (experts - 1) / every))


def is_mixture(row: MeasuredRow) -> bool:
    """Whether the row tells of experts."""
    return _told_experts(row)[0] > 0 or (row.ep or 1) > 1 or active_size(row) is not None


def named_size(row: MeasuredRow) -> float | None:
    """The first size in the name."""
    named = NAMED.search(row.model)
    return float(named[1]) * {"b": 1e9, "m": 1e6, "t": 1e12}[named[2].lower()] if named else None


def _told_experts(row: MeasuredRow) -> tuple[int, int, int]:
    """Experts, those for a token, and each how many-th layer has them; 0, 0, 1 where name and notes do not tell."""
    text = f"{row.model}; {row.notes}"
    found = re.search(r"(\d+)\s*x\s*\d+(?:\.\d+)?\s*[bm]\b", row.model, re.IGNORECASE)
    found = found or re.search(r"\b(\d+)\s*(?:routed\s+)?experts\b|\bMoE-(\d{2,3})\b", text, re.IGNORECASE)
    each = re.search(r"\btop[\s-]?(\d+)\b", text, re.IGNORECASE)
    every = 2 if re.search(r"\b(?:every (?:other|second)|alternat\w+) (?:layer|block)", text, re.IGNORECASE) else 1
    experts = int(next(filter(None, found.groups()))) if found else 0
    return experts, min(int(each[1]), experts) if each else 0, every


def active_size(row: MeasuredRow) -> tuple[float, float] | None:
    """All parameters and the active ones, of a mixture whose name has both: "80B-A3B"."""
    found = re.search(r"(\d+(?:\.\d+)?)B[\s_-]*A(\d+(?:\.\d+)?)B", row.model, re.IGNORECASE)
    return (float(found[1]) * 1e9, float(found[2]) * 1e9) if found else None
