"""Measure an accelerator's kernels, and fit the constants of its curves."""

from choreo.calibrate.device.calibrate import DeviceCalibration, calibrate_device
from choreo.calibrate.device.fit import Errors, cross_validate, errors, fit_device, predict
from choreo.calibrate.device.kernels import Kernel, read_kernels, write_kernels

__all__ = [
    "DeviceCalibration",
    "Errors",
    "Kernel",
    "calibrate_device",
    "cross_validate",
    "errors",
    "fit_device",
    "predict",
    "read_kernels",
    "write_kernels",
]
