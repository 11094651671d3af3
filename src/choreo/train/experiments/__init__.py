"""The classic ways of data parallelism, to be set beside each other."""

from choreo.train.experiments.kinds import ALL_REDUCE, ASYNC_PARAMETER_SERVER, KINDS

__all__ = ["ALL_REDUCE", "ASYNC_PARAMETER_SERVER", "KINDS"]
