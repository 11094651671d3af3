"""Gemma and its successors."""

from __future__ import annotations

from dataclasses import replace

from choreo.workload.huggingface.fields import Config
from choreo.workload.huggingface.llama import llama, rope_fields, windowed
from choreo.workload.model import Model

__all__ = ["gemma", "gemma2", "gemma3"]


# What Gemma 3's files leave out, as it is the same in transformers' configuration class.
GEMMA3 = {
    "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "max_position_embeddings": 131072,
}  # fmt: skip


def gemma(config: Config, name: str) -> Model:
    """Gemma: heads of their own width, and tied embeddings, which are scaled."""
    model = llama(config, name, tied=True)
    return replace(model, scaled_embeddings=True, activation="gelu-tanh")


def gemma2(config: Config, name: str) -> Model:
    """Gemma 2: norms after attention and MLP as well, and capped scores and logits."""
    model = replace(
        gemma(config, name),
        norms_per_layer=4,
        score_dim=config.real("query_pre_attn_scalar", default=256.0),
        score_cap=_cap(config, "attn_logit_softcapping", 50.0),
        logit_cap=_cap(config, "final_logit_softcapping", 30.0),
    )
    return windowed(model, config, 4096, 2)


def _cap(config: Config, name: str, default: float) -> float:
    """A cap; a file that has null for it has none."""
    return config.real(name, default=0.0 if name in config.data else default)


def gemma3(config: Config, name: str) -> Model:
    """Gemma 3: norms on queries and keys in place of Gemma 2's caps, and windows with positions of their own."""
    config = config.with_defaults(GEMMA3)
    model = replace(
        gemma2(config, name),
        qk_norm=True,
        score_cap=_cap(config, "attn_logit_softcapping", 0.0),
        logit_cap=_cap(config, "final_logit_softcapping", 0.0),
        rope_base=rope_fields(config).real("rope_theta", default=config.real("rope_theta", default=1e6)),
        rope_base_windowed=config.inside("rope_parameters")
        .inside("sliding_attention")
        .real("rope_theta", default=config.real("rope_local_base_freq", default=10000.0)),
    )
    return windowed(model, config, 4096, 6)
