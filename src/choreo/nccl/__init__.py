"""A model of NCCL: its choice of algorithm, protocol and channels on a system, and the time of the call.

`nccl_choice` answers for one collective. A system comes from figures (`NcclSystem.from_figures`) or from the text of a
table (`read_system`). `choreo.validate.nccl` compares the model with published measurements.
"""

from choreo.nccl.constants import Constants
from choreo.nccl.library import nccl_choice
from choreo.nccl.model import Prediction, predict
from choreo.nccl.names import Forced, read_collective, read_forced
from choreo.nccl.system.gpus import GPUS, Gpu, find_gpu
from choreo.nccl.system.reading import read_system
from choreo.nccl.system.system import NETWORKS, NcclSystem, NetworkKind
from choreo.nccl.tuning import estimates

__all__ = [
    "GPUS",
    "NETWORKS",
    "Constants",
    "Forced",
    "Gpu",
    "NcclSystem",
    "NetworkKind",
    "Prediction",
    "estimates",
    "find_gpu",
    "nccl_choice",
    "predict",
    "read_collective",
    "read_forced",
    "read_system",
]
