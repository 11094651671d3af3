"""Element types and reductions, with the numbers that identify them in the executors."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np

from choreo.errors import UsageError, excerpt

__all__ = ["BFLOAT16_BITS", "ReduceOp", "dtype_code", "dtype_name", "operation_code"]

BFLOAT16 = "bfloat16"
# NumPy has no bfloat16. A record of its 16 bits stands for it where the package ml_dtypes is not used.
BFLOAT16_BITS = np.dtype([(BFLOAT16, np.uint16)])


class ReduceOp(enum.Enum):
    """The reductions, with the names of torch.distributed.

    >>> ReduceOp.SUM.value
    'sum'
    """

    SUM = "sum"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    AVG = "average"
    BAND = "bitwise and"
    BOR = "bitwise or"
    BXOR = "bitwise xor"

    # Every call looks an operation up, and Enum's own hash is a slow Python function.
    __hash__ = object.__hash__


# In the order of `core/reductions.h`.
_CODES = {
    "int8": 0,
    "int16": 1,
    "int32": 2,
    "int64": 3,
    "uint8": 4,
    "uint16": 5,
    "uint32": 6,
    "uint64": 7,
    "float32": 8,
    "float64": 9,
    "float16": 10,
    BFLOAT16: 11,
    "complex64": 12,
    "complex128": 13,
    "bool": 14,
}
_FOUND: dict[np.dtype[Any], int] = {}
_NAMES = {code: name for name, code in _CODES.items()}
_OPERATIONS = {
    ReduceOp.SUM: 0,
    ReduceOp.AVG: 0,  # a sum that is divided in the end
    ReduceOp.PRODUCT: 1,
    ReduceOp.MIN: 2,
    ReduceOp.MAX: 3,
    ReduceOp.BAND: 4,
    ReduceOp.BOR: 5,
    ReduceOp.BXOR: 6,
}
_BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
_ORDERED = (ReduceOp.MIN, ReduceOp.MAX)


def dtype_code(dtype: np.dtype[Any]) -> int:
    """The number of an element type; an error lists those there are.

    >>> dtype_code(np.dtype("float32"))
    8
    """
    if dtype is BFLOAT16_BITS:
        return _CODES[BFLOAT16]
    code = _FOUND.get(dtype)  # a type's name takes long to ask for
    if code is not None:
        return code
    code = _CODES.get(dtype.name)
    if code is None or not dtype.isnative:
        raise UsageError(
            f"arrays of {dtype} cannot be sent; use one of {', '.join(_CODES)}, in the machine's byte order"
        )
    _FOUND[dtype] = code
    return code


def dtype_name(code: int) -> str:
    """The name of an element type. A peer may have sent a number that has none."""
    return _NAMES.get(code, f"type {code}")


def operation_code(operation: ReduceOp | None, dtype: np.dtype[Any]) -> int:
    """The number of a reduction; an error if it has no meaning for this type."""
    if not isinstance(operation, ReduceOp):
        raise UsageError(f"op must be a ReduceOp, like ReduceOp.SUM, not {excerpt(operation)}")
    kind = "f" if dtype.kind == "V" else dtype.kind  # bfloat16
    meaningless = (
        (operation in _BITWISE and kind not in "iub")
        or (operation in _ORDERED and kind == "c")
        or (operation is ReduceOp.AVG and kind not in "fc")
    )
    if meaningless:
        raise UsageError(f"{operation.value} has no meaning for {dtype}; use another operation, or another type")
    return _OPERATIONS[operation]
