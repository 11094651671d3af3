"""Predictions held against measurements: NCCL's times, and training steps."""

from choreo.validate import nccl, plan

__all__ = ["nccl", "plan"]
