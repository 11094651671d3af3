"""Which algorithm and protocol NCCL should use at which size on a network, and the file that tells it so."""

from choreo.tune.tune import TunedRange, Tuning, tune
from choreo.tune.tuner_file import tuner_text

__all__ = ["TunedRange", "Tuning", "tune", "tuner_text"]
