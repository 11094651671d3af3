"""The inputs of a benchmark, for which the right result is known exactly, element by element.

Values are small whole numbers that depend on rank and index, so that sums are exact in every type and order. In a
product one rank's factor is 2 and the others' are 1. An average is one of multiples of p.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from choreo.collectives import get_collective
from choreo.errors import UsageError
from choreo.run.execute.arrays import Array

__all__ = ["TYPES", "Case", "dtype_of", "expected", "given", "shares"]

# The names of nccl-tests, then ours.
TYPES = {
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "float32": "float32",
    "float64": "float64",
}
OPERATIONS = ("sum", "prod", "min", "max", "avg")
# Collectives whose size is the total over the ranks.
SHARED_OUT = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")


def dtype_of(name: str) -> np.dtype[Any]:
    """The NumPy type of a name of nccl-tests.

    >>> dtype_of("half").name
    'float16'
    """
    if name not in TYPES:
        raise UsageError(f"there is no type {name!r}; use one of {', '.join(TYPES)}")
    if TYPES[name] == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            raise UsageError("bfloat16 needs the package ml_dtypes; pip install ml_dtypes") from None
        brain: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return brain
    return np.dtype(TYPES[name])


@dataclass(frozen=True, slots=True)
class Case:
    """One cell of a benchmark: a collective and its size. `count` is elements, of one rank where ranks have shares."""

    collective: str
    ranks: int
    count: int
    dtype: str = "float"
    op: str = "sum"
    root: int = 0

    @property
    def size_bytes(self) -> int:
        """The collective's size as nccl-tests has it."""
        return self.count * dtype_of(self.dtype).itemsize * (self.ranks if shares(self.collective) else 1)


def shares(collective: str) -> bool:
    """Whether the collective's size is the total of equal shares, one per rank."""
    return collective in SHARED_OUT


def case_of(
    collective: str, ranks: int, size_bytes: int, *, dtype: str = "float", op: str = "sum", root: int = 0
) -> Case:
    """The case of a size, rounded to whole elements and shares, of which there is at least one."""
    get_collective(collective)
    item = dtype_of(dtype).itemsize * (ranks if shares(collective) else 1)
    return Case(collective, ranks, 0 if collective == "barrier" else max(1, size_bytes // item), dtype, op, root)


def input_count(case: Case) -> int:
    """The elements of a rank's input."""
    return case.count * (case.ranks if case.collective in ("reduce_scatter", "all_to_all", "scatter") else 1)


def given(case: Case, rank: int) -> Array:
    """The input of a rank."""
    return _values(case, rank, 0, input_count(case))


def expected(case: Case, rank: int) -> Array | None:
    """The right result at a rank; None where it has none."""
    name, count = case.collective, case.count
    if name in ("reduce", "gather") and rank != case.root:
        return None
    if name in ("all_reduce", "reduce", "reduce_scatter"):
        return _reduced(case, rank * count if name == "reduce_scatter" else 0, count)
    if name in ("broadcast", "scatter"):
        return _values(case, case.root, rank * count if name == "scatter" else 0, count)
    if name in ("all_gather", "gather", "all_to_all"):
        first = rank * count if name == "all_to_all" else 0
        return np.concatenate([_values(case, other, first, count) for other in range(case.ranks)])
    return None


def _values(case: Case, rank: int, first: int, count: int) -> Array:
    index = np.arange(first, first + count, dtype=np.int64)
    kind = dtype_of(case.dtype)
    marked = (index + rank) % case.ranks == 0
    if case.op == "prod":
        return np.where(marked, 2, 1).astype(kind)
    if case.op == "avg":
        return np.where(marked, case.ranks * (1 + index % 2), 0).astype(kind)
    # At an index at most 3 ranks in 7 have more than 0, so that sums of bytes do not overflow early.
    value = (index + 3 * rank) % 7
    return np.where(value < 3, value, 0).astype(kind)


def _reduced(case: Case, first: int, count: int) -> Array:
    kind = dtype_of(case.dtype)
    index = np.arange(first, first + count, dtype=np.int64)
    if case.op == "prod":
        return np.full(count, 2, kind)
    if case.op == "avg":
        return (1 + index % 2).astype(kind)
    combine = {"sum": np.add, "min": np.minimum, "max": np.maximum}[case.op]
    total = _values(case, 0, first, count)
    for rank in range(1, case.ranks):
        total = combine(total, _values(case, rank, first, count))
    return total
