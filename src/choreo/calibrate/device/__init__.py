"""Calibrate an accelerator or a processor: measure its kernels, and fit the constants of its curves."""

from choreo.calibrate.device.calibrate import DeviceCalibration, calibrate_device
from choreo.calibrate.device.calibrate_cpu import CpuCalibration, calibrate_cpu
from choreo.calibrate.device.fit import FitErrors, cross_validate, errors, fit_device, predict
from choreo.calibrate.device.kernels import MeasuredKernel, read_kernels, write_kernels

__all__ = [
    "CpuCalibration",
    "DeviceCalibration",
    "FitErrors",
    "MeasuredKernel",
    "calibrate_cpu",
    "calibrate_device",
    "cross_validate",
    "errors",
    "fit_device",
    "predict",
    "read_kernels",
    "write_kernels",
]
