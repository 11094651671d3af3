"""Networks that no text describes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from choreo.topology import Topology, compose
from choreo.topology.blocks import graph
from choreo.topology.graph import Links


def two_levels(leaf: Sequence[int] = (0, 1) * 3, ports: Sequence[float] = (25, 100, 50, 50, 25, 100)) -> Topology:
    """Devices with ports of so many GB/s at leaf switches, which have 100 GB/s to a spine for several messages."""
    devices, leaves = len(leaf), max(leaf) + 1
    below = np.arange(devices + leaves)
    above = devices + np.concatenate((leaf, np.full(leaves, leaves)))
    src, dst = np.concatenate((below, above)), np.concatenate((above, below))
    width = 1e9 * np.concatenate((ports, np.full(leaves, 100.0)))
    links = Links(src, dst, np.tile(width, 2), np.full(len(src), 5e-7))
    return compose("two levels", [graph(devices, links, leaves + 1)])
