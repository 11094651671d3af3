"""Choose the algorithm that suits a topology: for each dimension the one that suits its building block."""

from __future__ import annotations

from pathlib import Path

from choreo.algorithms import axes_of, build, list_algorithms
from choreo.schedule import Schedule
from choreo.topology import Topology, get_topology

__all__ = ["suggested_schedule"]

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


def suggested_schedule(
    collective: str,
    topology: str | Path | Topology,
    ranks: int,
    *,
    root: int | None = None,
    segments: int | None = None,
    along_dimensions: bool = True,
) -> Schedule:
    """Build a hierarchical schedule along the topology's dimensions if the ranks fill it in order, otherwise a flat
    one.

    >>> suggested_schedule("all_reduce", "hgx-h100:2", 16).algorithm
    'hierarchical'
    """
    topology = get_topology(topology)
    axes = axes_of(topology)
    does = {algorithm.name for algorithm in list_algorithms(collective)}
    if along_dimensions and ranks == topology.num_devices:
        if len(axes.sizes) > 1 and "hierarchical" in does:
            return build(collective, "hierarchical", ranks, root=root, segments=segments, axes=axes)
        if len(axes.sizes) == 1 and axes.algorithms[0] in does:
            return build(collective, axes.algorithms[0], ranks, root=root, segments=segments)
    return build(collective, FLAT[collective], ranks, root=root, segments=segments)
