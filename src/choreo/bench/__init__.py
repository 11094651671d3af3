"""Measure collectives between real processes, beside other libraries."""

from choreo.bench.bench import Measured, Options, Report, bench, geometric_mean, sizes_between

__all__ = ["Measured", "Options", "Report", "bench", "geometric_mean", "sizes_between"]
