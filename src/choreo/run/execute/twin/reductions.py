"""The reductions of `core/reductions.h` in NumPy: the same bits, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ITEM_BYTES", "Reduction", "reduction_of"]

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
# The bytes of two arrays of the same length to those of the result.
Reduction = Callable[[Bytes, Bytes], Bytes]

# By the number of the type, as in `dtypes`.
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOAT32, FLOAT64, FLOAT16, BFLOAT16, COMPLEX64, COMPLEX128, BOOL = range(8, 15)
ITEM_BYTES = (1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 2, 2, 8, 16, 1)
SUM, PRODUCT, MINIMUM, MAXIMUM, AND, OR, XOR = range(7)


def reduction_of(dtype: int, operation: int) -> Reduction | None:  # noqa: PLR0911 - one for each family of types
    """The function that reduces two arrays of this type; None if the type does not have this operation."""
    if not (0 <= dtype < len(ITEM_BYTES) and 0 <= operation <= XOR):
        return None
    if dtype < len(INTEGERS):
        return _on(
            INTEGERS[dtype],
            (np.add, np.multiply, _least, _most, np.bitwise_and, np.bitwise_or, np.bitwise_xor)[operation],
        )
    if dtype == BOOL:
        return _on("bool", _BOOL[operation])
    if operation > MAXIMUM:
        return None
    if dtype == BFLOAT16:
        return _bfloat16(operation)
    if dtype in (COMPLEX64, COMPLEX128):
        part = "float32" if dtype == COMPLEX64 else "float64"
        return {SUM: _on(part, np.add), PRODUCT: _on(part, _complex_product)}.get(operation)
    name = {FLOAT32: "float32", FLOAT64: "float64", FLOAT16: "float16"}[dtype]
    return _on(name, (np.add, np.multiply, _least, _most)[operation])


def _on(name: str, function: Callable[[Array, Array], Array]) -> Reduction:
    kind = np.dtype(name)

    def reduced(left: Bytes, right: Bytes) -> Bytes:
        with np.errstate(all="ignore"):
            result = function(left.view(kind), right.view(kind))
        found: Bytes = np.ascontiguousarray(result).view(np.uint8)
        return found

    return reduced


def _least(left: Array, right: Array) -> Array:
    """The minimum. NaN on either side gives NaN. Of 0 and -0 the left one is kept; np.minimum does not promise that."""
    return np.where(~np.isnan(left) & ((right < left) | np.isnan(right)), right, left)


def _most(left: Array, right: Array) -> Array:
    return np.where(~np.isnan(left) & ((right > left) | np.isnan(right)), right, left)


_BOOL: dict[int, Callable[[Array, Array], Array]] = {
    SUM: np.logical_or,
    PRODUCT: np.logical_and,
    MINIMUM: np.logical_and,
    MAXIMUM: np.logical_or,
    AND: np.logical_and,
    OR: np.logical_or,
    XOR: np.not_equal,
}


def _complex_product(left: Array, right: Array) -> Array:
    """The product by parts, each rounded. NumPy's own product may fuse them."""
    a, b, c, d = left[0::2], left[1::2], right[0::2], right[1::2]
    result = np.empty_like(left)
    result[0::2] = a * c - b * d
    result[1::2] = a * d + b * c
    return result


def _bfloat16(operation: int) -> Reduction:
    def wide(column: Array) -> Array:
        return (column.astype(np.uint32) << np.uint32(16)).view(np.float32)

    def narrow(column: Array) -> Array:
        bits = column.view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return np.where(np.isnan(column), bits >> np.uint32(16) | np.uint32(0x40), rounded).astype(np.uint16)

    def function(left: Array, right: Array) -> Array:
        a, b = wide(left), wide(right)
        if operation == SUM:
            return narrow(a + b)
        if operation == PRODUCT:
            return narrow(a * b)
        better = (b < a) if operation == MINIMUM else (b > a)
        return np.where(~np.isnan(a) & (better | np.isnan(b)), right, left)

    return _on("uint16", function)
