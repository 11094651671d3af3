"""NCCL's model compared with published measurements, and with tables that it was not fitted to."""

from choreo.validate.nccl.fit import LeftOut, fit, leave_one_out
from choreo.validate.nccl.measured import MeasuredRow, read_measured
from choreo.validate.nccl.validate import PredictedRow, TableError, Validation, validate

__all__ = [
    "LeftOut",
    "MeasuredRow",
    "PredictedRow",
    "TableError",
    "Validation",
    "fit",
    "leave_one_out",
    "read_measured",
    "validate",
]
