"""Offload to the host's memory, priced by the link to it.

optimizer     its state is with the host: gradients go there in fp32, parameters come back in 16 bits, and the host's
              memory moves what Adam reads and writes
activations   a share of what a layer keeps goes out under its forward pass and comes back under its backward pass;
              a pass takes at least as long as its copies
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from choreo.hardware import Device

__all__ = ["host_link_bytes_per_s", "offloaded_adam_s", "waiting_s"]

Floats = npt.NDArray[np.float64]
# What copies from pinned memory reach, estimated: about four fifths of PCIe 3.0, 4.0 and 5.0 with 16 lanes, and a GPU's
# share of NVLink-C2C on the superchips (450 GB/s per direction, by datasheet, for one GPU or two).
PCIE_3, PCIE_4, PCIE_5, C2C = 12e9, 24e9, 52e9, 180e9
LINKS = {"volta": PCIE_3, "ampere": PCIE_4, "ga10x": PCIE_4, "ada": PCIE_4, "tpu": PCIE_3}
SUPERCHIPS = ("GH200", "GB200", "GB300")
# One of eight devices' share of a server's memory bandwidth of about 400 GB/s; an estimate.
HOST_MEMORY = 40e9
GRADIENT_BYTES, PARAMETER_BYTES = 4, 2


def host_link_bytes_per_s(device: Device) -> float:
    """Bytes per second from a device to its host's memory, or back.

    >>> from choreo.hardware import get_device
    >>> host_link_bytes_per_s(get_device("H100")), host_link_bytes_per_s(get_device("A100"))
    (52000000000.0, 24000000000.0)
    """
    return C2C if device.chip in SUPERCHIPS else LINKS.get(device.architecture, PCIE_5)


def offloaded_adam_s(owned: Floats, adam_bytes: float, device: Device) -> Floats:
    """Seconds of the optimizer on the host for a rank's shard of the parameters: copies, then memory, one by one."""
    copied = owned * (GRADIENT_BYTES + PARAMETER_BYTES) / host_link_bytes_per_s(device)
    return np.asarray(copied + owned * adam_bytes / HOST_MEMORY)


def waiting_s(pass_s: Floats, saved_bytes: Floats, share: float, device: Device) -> Floats:
    """By how much a pass is shorter than the copies of a share of what its layer keeps."""
    return np.maximum(0.0, share * saved_bytes / host_link_bytes_per_s(device) - pass_s)
