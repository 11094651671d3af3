"""A topology as NCCL sees it: which of its dimensions are inside an NVLink domain, and which are the network."""

from __future__ import annotations

import math

import numpy as np

from choreo.simulate.nccl.gpus import find_gpu
from choreo.simulate.nccl.system import NcclSystem
from choreo.topology import Block, Topology

__all__ = ["system_of"]

NETWORK = "network"


def system_of(topology: Topology, ranks: int | None = None) -> NcclSystem:
    """The system that a topology describes, with so many ranks on its first devices.

    Blocks whose medium is "network", and whatever lies outside the first of them, join nodes; where no block says so,
    the outermost of several is taken for the network.
    """
    inner, outer = _split(topology)
    ranks = topology.num_devices if ranks is None else ranks
    a_node = math.prod(block.size for block in inner)
    nodes = math.ceil(ranks / a_node)
    dimension = topology.dimension_of_links()
    leaving = topology.links.src == 0
    bandwidth = topology.links.bandwidth_bytes_per_s
    inside = float(bandwidth[leaving & (dimension < len(inner))].sum())
    between = float(bandwidth[leaving & (dimension >= len(inner))].sum())
    return NcclSystem.from_figures(
        topology.device if find_gpu(topology.device) is not None else None,
        min(a_node, ranks),
        nodes,
        ranks=ranks,
        intra_bandwidth_bytes_per_s=inside or None,
        medium=_medium(inner),
        network_bandwidth_bytes_per_gpu=between or None,
        nvls=any(block.reduces.any() for block in inner),
        sharp=any(block.reduces.any() for block in outer),
        multi_node_nvlink=False,
    )


def _split(topology: Topology) -> tuple[tuple[Block, ...], tuple[Block, ...]]:
    marked = [number for number, block in enumerate(topology.blocks) if block.medium == NETWORK]
    at = marked[0] if marked else max(1, len(topology.blocks) - 1)
    return topology.blocks[:at], topology.blocks[at:]


def _medium(inner: tuple[Block, ...]) -> str | None:
    """What joins the GPUs of a node; None where a node is one GPU."""
    long = [block for block in inner if block.size > 1]
    if not long:
        return None
    if any(block.medium == "pcie" for block in long):
        return "pcie"
    switched = long[0].kind in ("switch", "fat_tree") or bool(np.any(long[0].switches))
    return "nvswitch" if switched else "nvlink"
