"""What NCCL would do: its choice of algorithm, protocol and channels on a system, and the time it would take.

`nccl_choice` answers for one collective, `validate` for a file of published measurements, and `leave_one_out` says how
well the model does on tables it was not fitted to. A system comes from figures (`NcclSystem.from_figures`) or from the
words of a table (`read_system`).
"""

from choreo.simulate.nccl.constants import Constants
from choreo.simulate.nccl.fit import LeftOut, fit, leave_one_out
from choreo.simulate.nccl.gpus import GPUS, Gpu, find_gpu
from choreo.simulate.nccl.library import nccl_choice
from choreo.simulate.nccl.measured import MeasuredRow, Skipped, read_measured
from choreo.simulate.nccl.model import Prediction, predict
from choreo.simulate.nccl.names import Forced, read_collective, read_forced
from choreo.simulate.nccl.reading import read_system
from choreo.simulate.nccl.system import NETWORKS, NcclSystem, Network
from choreo.simulate.nccl.tuning import estimates
from choreo.simulate.nccl.validate import PredictedRow, TableError, Validation, validate

__all__ = [
    "GPUS",
    "NETWORKS",
    "Constants",
    "Forced",
    "Gpu",
    "LeftOut",
    "MeasuredRow",
    "NcclSystem",
    "Network",
    "PredictedRow",
    "Prediction",
    "Skipped",
    "TableError",
    "Validation",
    "estimates",
    "find_gpu",
    "fit",
    "leave_one_out",
    "nccl_choice",
    "predict",
    "read_collective",
    "read_forced",
    "read_measured",
    "read_system",
    "validate",
]
