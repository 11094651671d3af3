"""Chunk sizes as whole numbers: the weights of blocks, and of the chunks in a block."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from choreo.errors import UsageError

__all__ = ["BLOCK_WEIGHT", "MAX_WEIGHT", "block_weight", "whole_amounts", "whole_weights"]

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]

# The most that a schedule's weights may add up to, so that sums over many ranks and steps stay exact.
MAX_WEIGHT = 1 << 31
# The total weight of uneven blocks.
TOTAL_WEIGHT = 1 << 26
# The accepted forms of amounts, and the name of one entry.
FORMS = {1: "one for each rank", 2: "a row and a column for each rank"}
PLACES = {1: ("for rank",), 2: ("from rank", "to rank")}
# The weight of a block, which its chunks divide into whole parts.
BLOCK_WEIGHT = 5040 << 8


def block_weight(blocks: int) -> int:
    """The weight of each of so many blocks, less than usual if they would be too heavy together.

    >>> block_weight(64), block_weight(64 * 64)
    (1290240, 322560)
    """
    weight = BLOCK_WEIGHT
    while weight > 1 and weight * blocks > MAX_WEIGHT:
        weight //= 2
    return weight


def whole_weights(parts: Floats, total: int = BLOCK_WEIGHT) -> Ints:
    """Integer weights in proportion to the parts that add up to the total; at least 1 each if the total allows.

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


def whole_amounts(name: str, given: object, shape: tuple[int, ...]) -> Ints:
    """Amounts in any unit as a flat array of integers; positive amounts stay positive.

    >>> whole_amounts("shares", [1, 3, 0], (3,)).tolist()
    [16777216, 50331648, 0]
    """
    try:
        sizes = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        sizes = np.zeros(())
    form = " x ".join(map(str, shape))
    if sizes.shape != shape:
        other = " x ".join(map(str, sizes.shape)) if sizes.shape else f"{given!r:.60}"
        raise UsageError(f"{name} must be {form} numbers, {FORMS[len(shape)]}, not {other}")
    wrong = np.argwhere(~(np.isfinite(sizes) & (sizes >= 0)))
    if len(wrong):
        at = " ".join(f"{end} {rank}" for end, rank in zip(PLACES[len(shape)], wrong[0].tolist(), strict=True))
        raise UsageError(f"{name} must be numbers of at least 0, not {sizes[tuple(wrong[0])]:g} {at}")
    if not sizes.any():
        raise UsageError(f"{name} must have a number above 0, but all {form} of them are 0")
    whole = np.round(sizes / sizes.sum() * TOTAL_WEIGHT).astype(np.int64)
    return np.where(sizes > 0, np.maximum(whole, 1), 0).reshape(-1)
