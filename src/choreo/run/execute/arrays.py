"""A user's array as a contiguous NumPy array, and the result as the user's kind of array.

NumPy arrays are used as they are; CPU tensors of torch through the memory they share with NumPy, without importing
torch here. Non-contiguous arrays are copied, and copied back if they were to be changed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from choreo.errors import UsageError
from choreo.run.execute.dtypes import BFLOAT16_BITS, ReduceOp, dtype_code

__all__ = ["Array", "Taken", "apart", "averaged", "check_out", "is_row", "like_given", "take"]

Array = npt.NDArray[Any]


@dataclass(slots=True, eq=False)
class Taken:
    """A user's array: `array` is contiguous, and is `original` itself or a copy of it."""

    array: Array
    original: Array
    tensor: Any = None

    def put_back(self) -> None:
        """Copy what was written back to the user's array."""
        if self.array is not self.original:
            np.copyto(self.original, self.array)


def take(given: Any, *, writable: bool, name: str = "x") -> Taken:
    """The array of what a user gave."""
    tensor = None
    if type(given) is not np.ndarray:
        tensor, given = _unwrapped(given, name, writable)
    flags = given.flags
    if writable and not flags.writeable:
        raise UsageError(f"{name} is read-only, and the result is written into it; give a copy, or out=")
    dtype_code(given.dtype)
    if flags.c_contiguous and flags.aligned:
        return Taken(given, given, tensor)
    return Taken(np.array(given, order="C"), given, tensor)


def like_given(result: Array, taken: Taken) -> Any:
    """A new result as the kind of array that the user gave."""
    if taken.tensor is None:
        return result
    torch = sys.modules["torch"]
    if result.dtype.kind == "V":
        return torch.from_numpy(result.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(result)


def check_out(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Taken:
    """The array of `out`, which must have this shape and type."""
    into = take(out, writable=True, name="out")
    if into.array.shape != shape or dtype_code(into.array.dtype) != dtype_code(dtype):
        raise UsageError(f"out is {into.array.dtype} of shape {into.array.shape}, and must be {dtype} of shape {shape}")
    if into.array.dtype != dtype:  # bfloat16 of a tensor and of ml_dtypes
        into = Taken(into.array.view(dtype), into.original.view(dtype), into.tensor)
    return into


def apart(given: Array, work: Array) -> Array:
    """The given array, or a copy if writing into `work` would change it."""
    return given.copy() if given is not work and np.may_share_memory(given, work) else given


def is_row(given: Array, work: Array, row: int) -> bool:
    """Whether the given array is this row of `work`; gathering then writes what is already there."""
    at, start = given.__array_interface__["data"][0], work.__array_interface__["data"][0]
    return bool(at == start + row * given.nbytes)


def averaged(array: Array, op: ReduceOp | None, world_size: int) -> None:
    """Divide the sum if the average was asked for."""
    if op is ReduceOp.AVG:
        if array.dtype.kind == "V":
            _divide_bfloat16(array.view(np.uint16), world_size)
        else:
            np.divide(array, world_size, out=array, casting="same_kind")


def _divide_bfloat16(bits: npt.NDArray[np.uint16], divisor: int) -> None:
    """Divide in place, as float32, and round to the nearest, halves to even."""
    wide = ((bits.astype(np.uint32) << 16).view(np.float32) / np.float32(divisor)).view(np.uint32)
    np.copyto(bits, (wide + 0x7FFF + (wide >> 16 & 1)) >> 16, casting="same_kind")


def _unwrapped(given: Any, name: str, writable: bool) -> tuple[Any, Array]:
    """The tensor, if it is one, and the plain array."""
    if isinstance(given, np.ma.MaskedArray):
        raise UsageError(f"{name} is a masked array, whose mask would not be sent; fill it first")
    if isinstance(given, np.ndarray):
        return None, given.view(np.ndarray)
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(given, torch.Tensor):
        raise UsageError(
            f"{name} must be a NumPy array or a CPU tensor, not {type(given).__name__}; np.asarray makes one"
        )
    return given, _of_tensor(given, torch, name, writable)


def _of_tensor(tensor: Any, torch: Any, name: str, writable: bool) -> Array:
    if tensor.device.type != "cpu":
        raise UsageError(f"{name} is on {tensor.device}; only CPU tensors can be sent, so move it there first")
    if tensor.layout is not torch.strided:
        raise UsageError(f"{name} is a sparse tensor; only dense ones can be sent, so call to_dense() first")
    if tensor.is_conj() or tensor.is_neg():
        if writable:
            raise UsageError(f"{name} is a conjugate or negative view, which cannot be written; resolve it first")
        tensor = tensor.resolve_conj().resolve_neg()
    plain = tensor.detach()
    array: Array
    if plain.dtype is torch.bfloat16:
        array = plain.view(torch.int16).numpy().view(BFLOAT16_BITS)
        return array
    try:
        array = plain.numpy()
    except TypeError:
        raise UsageError(f"{name} is {tensor.dtype}, which NumPy does not know; convert it first") from None
    return array
