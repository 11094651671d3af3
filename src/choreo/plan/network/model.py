"""The interface of a network model: how long a collective takes on a strided group of devices.

A group is every `stride`-th device, `ranks` of them. Tensor-parallel ranks are neighbours, data-parallel ranks are tp ×
cp apart. All groups of a kind work at once, and share the network.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["ALL", "Floats", "NetworkModel"]

Floats: TypeAlias = npt.NDArray[np.float64]
ALL = 1 << 30  # devices of a node, where there are no nodes


class NetworkModel(Protocol):
    """A model of a network; one of NCCL, simulated, torus and this machine."""

    @property
    def name(self) -> str:
        """The name that plans show."""

    @property
    def node_gpus(self) -> int:
        """Devices of a node, or `ALL`."""

    def time_s(self, collective: str, sizes: Floats, ranks: int, stride: int) -> Floats:
        """Seconds for each size, as nccl-tests counts sizes; at least two ranks."""

    def link(self, ranks: int, stride: int) -> str:
        """The links that limit a group, in words."""

    def bandwidth_bytes_per_s(self, ranks: int, stride: int) -> float:
        """The bandwidth of one device of a group over those links."""
