"""Which algorithm a topology wants: one along each dimension, the one its building block is made for."""

from __future__ import annotations

from choreo.algorithms import BLOCK_ALGORITHM, Axes, build, list_algorithms
from choreo.schedule import Schedule
from choreo.topology import Topology

__all__ = ["suggested_axes", "suggested_schedule"]

# For collectives that have no multi-dimensional form, and for ranks that do not fill the topology.
FLAT = {
    "broadcast": "mst",
    "reduce": "mst",
    "scatter": "mst",
    "gather": "mst",
    "all_gather": "ring",
    "reduce_scatter": "ring",
    "all_reduce": "ring",
    "all_to_all": "pairwise",
    "barrier": "recursive_doubling",
    "send_recv": "direct",
}


def suggested_axes(topology: Topology) -> Axes:
    """The topology's dimensions as axes, each with the algorithm that its kind of block wants."""
    long = [block for block in topology.blocks if block.size > 1] or list(topology.blocks[:1])
    return Axes(tuple(block.size for block in long), tuple(BLOCK_ALGORITHM[block.kind] for block in long))


def suggested_schedule(
    collective: str,
    topology: Topology,
    ranks: int,
    *,
    root: int | None = None,
    segments: int | None = None,
    along_dimensions: bool = True,
) -> Schedule:
    """A schedule that fits the topology's dimensions, where the ranks fill it in order, and a plain one otherwise."""
    axes = suggested_axes(topology)
    does = {algorithm.name for algorithm in list_algorithms(collective)}
    if along_dimensions and ranks == topology.num_devices:
        if len(axes.sizes) > 1 and "hierarchical" in does:
            return build(collective, "hierarchical", ranks, root=root, segments=segments, axes=axes)
        if len(axes.sizes) == 1 and axes.algorithms[0] in does:
            return build(collective, axes.algorithms[0], ranks, root=root, segments=segments)
    return build(collective, FLAT[collective], ranks, root=root, segments=segments)
