"""Networks that no text describes."""

from __future__ import annotations

import numpy as np

from choreo.topology import Topology, compose
from choreo.topology.blocks import graph
from choreo.topology.graph import Links

PORTS = (25e9, 100e9, 50e9, 50e9, 25e9, 100e9)


def two_levels() -> Topology:
    """Devices with ports of different speed at two leaf switches, whose links to a spine carry several messages."""
    devices = np.arange(len(PORTS))
    leaf = 6 + devices % 2
    ends = np.concatenate((devices, [6, 7])), np.concatenate((leaf, [8, 8]))
    speed = np.concatenate((PORTS, [100e9, 100e9]))
    src, dst = (np.concatenate(both) for both in (ends, ends[::-1]))
    links = Links(src, dst, np.tile(speed, 2), np.full(16, 5e-7))
    return compose("two levels", [graph(6, links, 3)])
