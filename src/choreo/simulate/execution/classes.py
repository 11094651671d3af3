"""Classes of identical items by colour refinement: hashes of each item, and sums of hashes for multisets."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Hashes", "apart", "classes_of", "hashed", "summed"]

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


def hashed(*columns: npt.NDArray[Any]) -> Hashes:
    """A hash of each row (splitmix64)."""
    found = np.zeros(len(columns[0]), np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            bits = (column + 0.0).view(np.uint64) if column.dtype.kind == "f" else column.astype(np.uint64)
            found = found + bits + np.uint64(0x9E3779B97F4A7C15)
            found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            found ^= found >> np.uint64(31)
    return found


def summed(values: Hashes, key: Ints, count: int) -> Hashes:
    """The sum of the values of each key: a hash of the multiset."""
    found = np.zeros(count, np.uint64)
    np.add.at(found, key, values)
    return found


def classes_of(labels: npt.NDArray[Any]) -> Ints:
    """For each rank, the first rank with the same label."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    found: Ints = first[np.ravel(inverse)]
    return found


def apart(stands_in: Ints, ranks: Ints, labels: Ints) -> Ints:
    """Refine classes: these ranks are separated where their labels differ."""
    of_rank = np.full(len(stands_in), -1, np.int64)
    of_rank[ranks] = labels
    return classes_of(hashed(stands_in, of_rank))
