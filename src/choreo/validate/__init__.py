"""Predictions compared with published measurements: NCCL's times (`nccl`) and training steps (`plan`)."""

from choreo.validate import nccl, plan
from choreo.validate.validate import validate

__all__ = ["nccl", "plan", "validate"]
