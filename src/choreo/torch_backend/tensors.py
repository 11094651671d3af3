"""Tensors as flat NumPy arrays: of the same memory where it is contiguous CPU memory, else of a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from choreo.errors import UsageError
from choreo.run.execute.arrays import Array
from choreo.run.execute.dtypes import BFLOAT16_BITS, dtype_code

__all__ = ["CODES", "Finish", "flat", "flat_bytes", "into", "joined"]

# What is to be done when a call is over.
Finish = list[Callable[[], object]]

# The numbers of the real types that NumPy knows, and of bfloat16.
_NAMES = ("int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64", "bool")
CODES = {getattr(torch, name): dtype_code(np.dtype(name)) for name in _NAMES}
CODES[torch.bfloat16] = dtype_code(BFLOAT16_BITS)

_BFLOAT16, _INT16, _UINT8 = torch.bfloat16, torch.int16, torch.uint8


def flat(tensor: Any) -> Array:
    """The elements of a tensor, of its own memory if that is contiguous."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if not tensor.is_cpu or tensor.is_sparse:
        raise _refusal(tensor)
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    array: Array
    if tensor.dtype is _BFLOAT16:
        array = tensor.contiguous().view(-1).view(_INT16).numpy().view(BFLOAT16_BITS)
        return array
    try:
        array = tensor.contiguous().view(-1).numpy()
    except TypeError:
        raise _refusal(tensor) from None
    return array


def flat_bytes(tensor: Any) -> Array:
    """Likewise, for a call that only moves data: types that NumPy does not know are sent as bytes."""
    try:
        return flat(tensor)
    except UsageError:
        if not tensor.is_cpu or tensor.is_sparse:
            raise
    return flat(tensor.detach().contiguous().view(-1).view(_UINT8))


def into(tensor: Any, finish: Finish, view: Callable[[Any], Array] = flat) -> Array:
    """An array for a result: of the tensor's memory, or of a copy, which is copied back in the end."""
    if tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
        return view(tensor)
    copy = tensor.detach().resolve_conj().resolve_neg().contiguous()
    finish.append(lambda: tensor.detach().copy_(copy))
    return view(copy)


def joined(tensors: list[Any]) -> Any:
    """One tensor of the memory of all, if they lie one after another; else None."""
    first = tensors[0]
    at, item, total = first.data_ptr(), first.element_size(), 0
    for tensor in tensors:
        if tensor.data_ptr() != at + total * item or not tensor.is_contiguous() or tensor.dtype is not first.dtype:
            return None
        total += tensor.numel()
    storage = first.untyped_storage()
    if (first.storage_offset() + total) * item > storage.nbytes() or first.is_conj() or first.is_neg():
        return None  # neighbours by chance
    return first.detach().as_strided((total,), (1,))


def _refusal(tensor: Any) -> UsageError:
    if not tensor.is_cpu:
        return UsageError(
            f"the tensor is on {tensor.device}, and the others are in CPU memory; all tensors of a call must be on "
            "devices of one kind"
        )
    if tensor.is_sparse:
        return UsageError("the tensor is sparse; only all_reduce takes sparse tensors, so call to_dense() first")
    return UsageError(f"tensors of {tensor.dtype} cannot be reduced; convert them first")
