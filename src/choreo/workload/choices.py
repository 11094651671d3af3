"""The allowed values of a plan's fields that are names."""

from __future__ import annotations

__all__ = ["MODULES", "PRECISIONS", "RECOMPUTE", "SCHEDULES", "SPLITS"]

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble", "dualpipe", "dualpipev")
RECOMPUTE = ("none", "selective", "full")
# Parts of a layer that selective recomputation can repeat, by Megatron's names.
MODULES = ("core_attn", "mla_up_proj", "layernorm", "moe_act", "shared_experts", "mlp", "moe")
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
SPLITS = ("even", "balanced")  # of layers over pipeline stages; a plan may list them instead
