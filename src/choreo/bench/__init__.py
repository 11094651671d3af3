"""Benchmark collectives between real processes, beside other libraries."""

from choreo.bench.bench import bench
from choreo.bench.result import Benchmark, Measurement, geometric_mean
from choreo.bench.sizes import sizes_between

__all__ = ["Benchmark", "Measurement", "bench", "geometric_mean", "sizes_between"]
