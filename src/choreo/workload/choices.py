"""The names that fields of a plan may have."""

from __future__ import annotations

__all__ = ["PRECISIONS", "RECOMPUTE", "SCHEDULES"]

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
RECOMPUTE = ("none", "selective", "full")
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
