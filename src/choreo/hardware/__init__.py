"""Devices: peak rates, memory and links, and measured efficiency as a function of a kernel's shape."""

from choreo.hardware.device import PRECISIONS, Curves, Device, Source
from choreo.hardware.files import list_devices, read_device, write_device
from choreo.hardware.names import get_device

__all__ = [
    "PRECISIONS",
    "Curves",
    "Device",
    "Source",
    "get_device",
    "list_devices",
    "read_device",
    "write_device",
]
