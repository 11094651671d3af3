"""Scaled-down models: the same architecture with fewer and narrower layers, so that it trains on any machine.

"tiny" has 4 layers of 64 features, for tests and first looks. A factor scales layers, heads, experts and vocabulary;
the features per head, and the ratio of the MLP's width to the hidden size, stay the same.
"""

from __future__ import annotations

import math
from dataclasses import replace

from choreo.errors import UsageError
from choreo.train.config import TrainConfig
from choreo.train.data.text import SYNTHETIC
from choreo.workload import ConvNet, Model, Recommender, Workload

__all__ = ["LAYERS_BETWEEN", "TINY", "scaled", "shallow"]

TINY = "tiny"
BYTES = 256
LAYERS, HEADS, HEAD_DIM, EXPERTS = 4, 4, 16, 8
FEW_LAYERS, LAYERS_BETWEEN = 2, 4


def scaled(workload: Workload, scale: str | float) -> Workload:
    """A workload scaled down by "tiny", or by a factor above 0 and at most 1.

    >>> from choreo.workload import get_model
    >>> small = scaled(get_model("llama3-8b"), "tiny")
    >>> (small.layers, small.hidden, small.kv_heads, small.vocab), small.name
    ((4, 64, 4, 256), 'llama3-8b (tiny)')
    """
    if scale == TINY:
        factor = 0.0
    else:
        try:
            factor = float(scale)
        except (TypeError, ValueError):
            factor = math.nan
        if not 0 < factor <= 1:
            raise UsageError(f"--scale is {TINY}, or a factor above 0 and up to 1, like 0.1, not {scale!r}")
    if factor == 1:
        return workload
    name = f"{workload.name} ({TINY if scale == TINY else f'x{factor:g}'})"
    if isinstance(workload, Model):
        return replace(_transformer(workload, factor), name=name)
    if isinstance(workload, ConvNet):
        blocks = tuple(_number(count, factor, 1) for count in workload.blocks)
        image = max(32, 32 * round(workload.image * factor / 32))
        classes = _number(workload.classes, factor, 10)
        return replace(workload, name=name, blocks=blocks, width=_number(workload.width, factor, 8), classes=classes,
                       image=image)  # fmt: skip
    assert isinstance(workload, Recommender)
    dim = _number(workload.dim, factor, 8)
    return replace(
        workload,
        name=name,
        rows=tuple(_number(count, factor, 16) for count in workload.rows),
        dim=dim,
        bottom=(*(_number(width, factor, 16) for width in workload.bottom[:-1]), dim),
        top=(*(_number(width, factor, 16) for width in workload.top[:-1]), workload.top[-1]),
    )


def shallow(config: TrainConfig) -> tuple[TrainConfig, TrainConfig]:
    """Two tiny models of a kind, with few layers and with more: their steps differ by the host's cost of a layer.

    >>> from choreo.workload import get_model
    >>> [one.model.layers for one in shallow(TrainConfig(get_model("gpt2-124m")))]
    [2, 6]
    """
    tiny = scaled(config.model, TINY)
    assert isinstance(tiny, Model)
    tiny = replace(tiny, dense_layers=min(tiny.dense_layers, 1))
    plan = replace(config.plan, micro_batch=1)
    small = replace(config, plan=plan, global_batch=1, seq=64, data=SYNTHETIC, compile=False, checkpoint="")
    few = replace(tiny, layers=FEW_LAYERS)
    return replace(small, model=few), replace(small, model=replace(few, layers=FEW_LAYERS + LAYERS_BETWEEN))


def _transformer(model: Model, factor: float) -> Model:
    heads = _number(model.heads, factor, HEADS, even=True)
    dim = model.head_dim if factor else HEAD_DIM
    groups = model.heads // model.kv_heads
    kv_heads = max(1, heads // groups) if factor else min(HEADS, model.kv_heads)
    kv_heads = next(count for count in range(kv_heads, 0, -1) if heads % count == 0)
    hidden = heads * dim
    ratio = hidden / model.hidden
    layers = _number(model.layers, factor, LAYERS, even=True)
    experts = model.experts and max(model.experts_per_token, _number(model.experts, factor, EXPERTS, even=True))
    per_token = min(model.experts_per_token, experts if factor else 2)
    latent, groups = model.latent, model.router_groups
    if groups and (experts % groups or experts // groups * model.router_groups_per_token < per_token):
        groups = 0
    return replace(
        model,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        ffn=max(16, 16 * round(model.ffn * ratio / 16)),
        vocab=max(BYTES, round(model.vocab * factor)),
        experts=experts,
        experts_per_token=per_token,
        expert_ffn=max(16, 16 * round(model.expert_ffn * ratio / 16)) if experts else model.expert_ffn,
        dense_layers=min(model.dense_layers, layers - 1),
        router_groups=groups,
        score_dim=model.score_dim * dim / model.head_dim,
        latent=latent and replace(
            latent,
            kv_rank=max(8, 8 * round(latent.kv_rank * ratio / 8)),
            q_rank=latent.q_rank and max(8, 8 * round(latent.q_rank * ratio / 8)),
        ),
    )  # fmt: skip


def _number(count: int, factor: float, least: int, *, even: bool = False) -> int:
    """A count made smaller, but not below `least` (or itself); multiples of `least` where plans have to divide it."""
    least = min(least, count)
    found = max(least, round(count * factor))
    return found // least * least if even else found
