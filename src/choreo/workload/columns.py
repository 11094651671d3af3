"""A graph as columns, for all micro-batches at once.

Every size in a graph is affine in the micro-batch: a part that does not change (weights) and one that grows with it
(tokens). Two graphs, of one and of two sequences, therefore hold all of them, and a searcher needs no other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choreo.errors import UsageError
from choreo.workload.graph.graph import Collective, Graph

__all__ = ["FIELDS", "Columns", "columns"]

FIELDS = ("flops", "bytes_read", "bytes_written", "m", "n", "k", "count", "batch", "heads", "size_bytes")
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The nodes of a graph, a row each: what they are, and their sizes at micro-batch b as `base + b * slope`."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    phases: tuple[str, ...]
    axes: tuple[tuple[str, ...], ...]  # of collectives; empty for operators
    base: Floats  # nodes × FIELDS
    slope: Floats

    def at(self, field: str, micro_batch: npt.ArrayLike) -> Floats:
        """A column at each of some micro-batches: their shape, then nodes."""
        if field not in FIELDS:
            raise UsageError(f"there is no column {field!r}; known: {', '.join(FIELDS)}")
        column = FIELDS.index(field)
        sizes = np.asarray(micro_batch, dtype=np.float64)[..., np.newaxis]
        found: Floats = self.base[:, column] + sizes * self.slope[:, column]
        return found


def columns(build: Callable[[int], Graph]) -> Columns:
    """The columns of the graphs that a function gives for a micro-batch."""
    first, second = build(1), build(2)
    one, two = _rows(first), _rows(second)
    return Columns(
        tuple(node.name for node in first.nodes),
        tuple(node.kind for node in first.nodes),
        tuple(node.phase for node in first.nodes),
        tuple(node.axes if isinstance(node, Collective) else () for node in first.nodes),
        2 * one - two,
        two - one,
    )


def _rows(graph: Graph) -> Floats:
    rows = [[float(getattr(node, field, 0.0)) for field in FIELDS] for node in graph.nodes]
    return np.asarray(rows, dtype=np.float64).reshape(-1, len(FIELDS))
