"""Memory that peers read in place: arrays for the user, and buffers that calls reuse."""

from __future__ import annotations

import math
import operator
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from choreo.errors import UsageError, excerpt
from choreo.run.execute.arrays import Array
from choreo.run.execute.dtypes import dtype_code
from choreo.run.execute.segment import Segment

__all__ = ["Heap"]


class _Lease:
    """A part of the heap. Arrays and their views refer to it, and it is freed with the last of them."""

    def __init__(self, heap: Heap, at: int, length: int) -> None:
        self.heap, self.at, self.length = heap, at, length
        place = (heap.address + at, False)
        self.__array_interface__ = {"version": 3, "shape": (length,), "typestr": "|u1", "data": place}

    def __del__(self) -> None:
        # This may run at any time and in any thread, even while memory is being taken, so it is only noted.
        self.heap.returned.append((self.at, self.length))


class Heap:
    """The heap of a rank's own segment."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self.address = int(np.frombuffer(segment.map, np.uint8, 1).__array_interface__["data"][0])
        self.returned: deque[tuple[int, int]] = deque()
        self._taking = threading.Lock()  # messages take memory in any thread
        self._buffers: dict[str, Array] = {}

    def empty(self, shape: int | Sequence[int], dtype: Any) -> Array:
        """An array in the heap; its memory is reused when nothing refers to it any more."""
        kind = _dtype(dtype)
        sides = _shape(shape)
        length = math.prod(sides) * kind.itemsize
        return self._take(length)[:length].view(kind).reshape(sides)

    def buffer(self, use: str, length: int) -> Array:
        """A buffer for one call. It is kept for the next, and grows when more is asked for."""
        kept = self._buffers.get(use)
        if kept is None or len(kept) < length:
            self._buffers.pop(use, None)
            kept = None  # so that its memory is free for the larger one
            self._buffers[use] = kept = self._take(length)
        return kept[:length]

    def owns(self, array: Array) -> bool:
        """Whether peers can read an array in place."""
        base: object = array.base
        if base is None:
            return False
        if type(base) is _Lease:
            return base.heap is self
        if type(base) is np.ndarray and base.base is None:
            return False
        at = int(array.__array_interface__["data"][0])
        return self.address <= at and at + array.nbytes <= self.address + self._segment.bytes

    def forget(self) -> None:
        """Drop the buffers."""
        self._buffers.clear()

    def _take(self, length: int) -> Array:
        with self._taking:
            while self.returned:
                self._segment.give_back(*self.returned.popleft())
            lease = _Lease(self, self._segment.take(length), max(length, 1))
        return np.asarray(lease)


def _dtype(dtype: Any) -> np.dtype[Any]:
    try:
        kind: np.dtype[Any] = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):  # text that NumPy cannot parse
        raise UsageError(f"dtype must be one of NumPy's, like np.float32, not {excerpt(dtype)}") from None
    dtype_code(kind)
    return kind


def _shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    try:
        sides = tuple(operator.index(side) for side in (shape if isinstance(shape, Sequence) else (shape,)))
    except TypeError:
        raise UsageError(f"shape must be a number or several, not {excerpt(shape)}") from None
    if any(side < 0 for side in sides):
        raise UsageError(f"shape {excerpt(sides)} has a negative side")
    if any(side >= 2**63 for side in sides):
        raise UsageError(f"shape {excerpt(sides)} is larger than any array")
    return sides
