"""The names that fields of a plan may have."""

from __future__ import annotations

__all__ = ["PRECISIONS", "RECOMPUTE", "SCHEDULES", "SPLITS"]

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
RECOMPUTE = ("none", "selective", "full")
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
SPLITS = ("even", "balanced")  # of layers over pipeline stages; a plan may list them instead
