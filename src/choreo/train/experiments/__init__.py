"""The classic kinds of data parallelism, for comparison."""

from choreo.train.experiments.kinds import ALL_REDUCE, ASYNC_PARAMETER_SERVER, KINDS

__all__ = ["ALL_REDUCE", "ASYNC_PARAMETER_SERVER", "KINDS"]
