"""What a device can compute, hold and move: peaks, and measured efficiency as a function of shape."""

from choreo.hardware.calibrate import Calibration, calibrate_device
from choreo.hardware.device import PRECISIONS, Curves, Device, Source
from choreo.hardware.files import list_devices, read_device, write_device
from choreo.hardware.fit import Errors, cross_validate, errors, fit_device, predict
from choreo.hardware.kernels import Kernel, read_kernels, write_kernels
from choreo.hardware.names import get_device

__all__ = [
    "PRECISIONS",
    "Calibration",
    "Curves",
    "Device",
    "Errors",
    "Kernel",
    "Source",
    "calibrate_device",
    "cross_validate",
    "errors",
    "fit_device",
    "get_device",
    "list_devices",
    "predict",
    "read_device",
    "read_kernels",
    "write_device",
    "write_kernels",
]
