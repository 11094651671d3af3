"""Parts of a block as whole numbers: the weights of its chunks."""

from __future__ import annotations

import numpy as np

from choreo.topology.graph import Floats, Ints

__all__ = ["BLOCK_WEIGHT", "whole_weights"]

# The relative size of a block: chunks are cut to whole parts of it.
BLOCK_WEIGHT = 5040 << 8


def whole_weights(parts: Floats, total: int = BLOCK_WEIGHT) -> Ints:
    """Whole weights in proportion to the parts that add up to the total; as far as it goes, at least 1 each.

    >>> whole_weights(np.array([1.0, 2.0])).tolist(), whole_weights(np.array([1.0, 2.0]), 1).tolist()
    ([430080, 860160], [0, 1])
    """
    exact = parts / parts.sum() * total
    weights: Ints = np.maximum(np.floor(exact + 1e-6).astype(np.int64), 1 if total >= len(parts) else 0)
    short = total - int(weights.sum())
    if short >= 0:
        weights[np.argsort(weights - exact, kind="stable")[:short]] += 1
    else:
        weights[np.argmax(weights)] += short
    return weights
