"""Calibrate this machine: the cost of a message, and the speed of a device's kernels."""

from choreo.calibrate.calibrate import Calibration, calibrate

__all__ = ["Calibration", "calibrate"]
