"""Predicted training steps compared with published ones."""

from choreo.validate.plan.fit import Fold, leave_one_out
from choreo.validate.plan.measured import DATA
from choreo.validate.plan.validate import FILES, GroupError, PredictedRow, Validation, validate

__all__ = ["DATA", "FILES", "Fold", "GroupError", "PredictedRow", "Validation", "leave_one_out", "validate"]
