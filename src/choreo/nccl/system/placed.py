"""A topology as NCCL sees it: which of its dimensions are inside an NVLink domain, and which are the network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from choreo.nccl.system.gpus import find_gpu
from choreo.nccl.system.system import NcclSystem
from choreo.topology import Block, Topology

__all__ = ["inner_blocks", "system_of"]

NETWORK = "network"
Ints: TypeAlias = npt.NDArray[np.int64]


def system_of(topology: Topology, devices: Sequence[int]) -> NcclSystem:
    """The system that a topology describes, with a rank on each of these devices.

    Blocks whose medium is "network", and all blocks outside the first of them, join nodes. If no block has that medium,
    the outermost of several is taken to be the network. The slowest device sets the bandwidth, as in a ring.
    """
    inner, outer = _split(topology)
    taken = np.asarray(devices, np.int64)
    a_node = math.prod(block.size for block in inner)
    nodes, per_node = np.unique(taken // a_node, return_counts=True)
    dimension = topology.dimension_of_links()
    inside = _least(topology, taken, dimension < len(inner))
    between = _least(topology, taken, dimension >= len(inner))
    return NcclSystem.from_figures(
        topology.device if find_gpu(topology.device) is not None else None,
        int(per_node.max()),
        len(nodes),
        ranks=len(taken),
        intra_bandwidth_bytes_per_s=inside or None,
        medium=_medium(inner),
        network_bandwidth_bytes_per_gpu=between or None,
        nvls=any(block.reduces.any() for block in inner),
        sharp=any(block.reduces.any() for block in outer),
        multi_node_nvlink=False,
    )


def inner_blocks(topology: Topology) -> tuple[Block, ...]:
    """The dimensions inside an NVLink domain; the others are the network."""
    return _split(topology)[0]


def _least(topology: Topology, devices: Ints, chosen: npt.NDArray[np.bool_]) -> float:
    """The bandwidth of the slowest device, out or in, over the chosen links."""
    links = topology.links
    sums = [
        np.bincount(ends[chosen], weights=links.bandwidth_bytes_per_s[chosen], minlength=topology.num_nodes)[devices]
        for ends in (links.src, links.dst)
    ]
    return float(np.minimum(*sums).min(initial=np.inf)) if chosen.any() else 0.0


def _split(topology: Topology) -> tuple[tuple[Block, ...], tuple[Block, ...]]:
    marked = [number for number, block in enumerate(topology.blocks) if block.medium == NETWORK]
    at = marked[0] if marked else max(1, len(topology.blocks) - 1)
    return topology.blocks[:at], topology.blocks[at:]


def _medium(inner: tuple[Block, ...]) -> str | None:
    """The medium that joins the GPUs of a node; None if a node has one GPU."""
    long = [block for block in inner if block.size > 1]
    if not long:
        return None
    if any(block.medium == "pcie" for block in long):
        return "pcie"
    switched = long[0].kind in ("switch", "fat_tree") or bool(np.any(long[0].switches))
    return "nvswitch" if switched else "nvlink"
