"""Measure this machine: what a message costs, and what a device computes."""

from choreo.calibrate.calibrate import Calibration, calibrate

__all__ = ["Calibration", "calibrate"]
