"""The sizes of a benchmark: nccl-tests' -b, -e, -f and -i."""

from __future__ import annotations

import math

from choreo.errors import UsageError

__all__ = ["sizes_between"]

MAX_SIZES = 1000


def sizes_between(first: int, last: int, *, factor: float | None = None, step: int | None = None) -> tuple[int, ...]:
    """Sizes in bytes from first to last, each a factor larger than the one before, or a step.

    >>> sizes_between(8, 128, factor=4)
    (8, 32, 128)
    """
    if not 0 <= first <= last:
        raise UsageError(f"the smallest size, {first}, must be at least 0 and at most the largest, {last}")
    if factor is not None and not (factor > 1 and math.isfinite(factor)):
        raise UsageError(f"the factor between sizes must be more than 1, not {factor:g}")
    if step is not None and step < 1:
        raise UsageError(f"the step between sizes must be at least 1 byte, not {step}")
    found, size = [], first
    while size <= last:
        found.append(size)
        if len(found) > MAX_SIZES:
            raise UsageError(f"more than {MAX_SIZES} sizes from {first} to {last}; take a larger factor or step")
        size = max(size + 1, math.floor(size * factor)) if factor is not None else size + (step or 1)
        if factor is None and step is None:
            break
    return tuple(found)
