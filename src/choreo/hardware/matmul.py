"""The time of a matrix product as a function of its shape.

A product of m x n x k, `batch` of them in one kernel, is cut into tiles of its output, and each SM computes one tile
at a time. The library takes the tile, and the split of k, that suit the shape best:

    t      = floor + (t_math^p + t_mem^p)^(1/p)
    t_math = min over tiles a x b and splits s of  waves · 2 a b (k/s + k_ramp) / (rate_sm · η_ab) + t_split
    waves  = w + q (ceil(w) - w),  w = batch · ceil(m/a) · ceil(n/b) · s / SMs, at least 1
    rate_sm = peak · c · η / SMs,  η_ab = (1 + κ (1/256 + 1/128)) / (1 + κ (1/a + 1/b))
    t_split = floor + 8 batch m n s / bandwidth   where s > 1: partial sums written and read, by one more kernel
    t_mem  = bytes / (bandwidth · η_mem)

η is what the tensor cores reach inside the main loop, and c the sustained clock (`power.py`). κ, in elements, is what a
tile loses by loading a + b elements for a b products. k_ramp is the tile's prologue and epilogue, as a length of k. q
is how much of the last wave's idle time is really lost: libraries have many tiles to choose from, not just these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "MatmulCurve"]

Array: TypeAlias = npt.NDArray[np.float64]
LARGEST = 1 / 256 + 1 / 128


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulCurve:
    """Constants of the matrix product, the same for every device of an architecture."""

    issue: float  # η
    k_ramp: float
    quantum: float  # q
    tile_loss: float  # κ
    memory: float  # η_mem
    smooth: float  # p
    split_k: float  # no part of k is shorter than this
    tiles: tuple[tuple[int, int], ...]

    def math_time(
        self,
        batch: Array,
        m: Array,
        n: Array,
        k: Array,
        *,
        sms: int,
        rate: float,
        bandwidth_bytes_per_s: float,
        floor_s: float,
    ) -> Array:
        """Seconds of the tensor cores' part at the datasheet's clock; `rate` is the whole device's FLOP/s."""
        rate_sm = rate * self.issue / sms
        best = np.full(np.broadcast_shapes(batch.shape, m.shape, n.shape, k.shape), np.inf)
        sums_s = 8 * batch * m * n / bandwidth_bytes_per_s
        for rows, columns in self.tiles:
            share = (1 + self.tile_loss * LARGEST) / (1 + self.tile_loss * (1 / rows + 1 / columns))
            step_s = 2 * rows * columns / (rate_sm * share)
            for a, b in {(rows, columns), (columns, rows)}:
                tiles = batch * np.ceil(m / a) * np.ceil(n / b)
                best = np.minimum(best, self._waves(tiles / sms) * step_s * (k + self.k_ramp))
                if tiles.min() >= sms:
                    continue  # k is split only where SMs would stay idle
                # Not a whole number: libraries also give an SM the end of one tile and the beginning of the next.
                split = np.maximum(np.minimum(sms / tiles, k / self.split_k), 1.0)
                split_s = self._waves(tiles * split / sms) * step_s * (k / split + self.k_ramp)
                best = np.where(split > 1, np.minimum(best, split_s + floor_s + sums_s * split), best)
        return best

    def memory_time(
        self,
        batch: Array,
        m: Array,
        n: Array,
        k: Array,
        *,
        bandwidth_bytes_per_s: float,
        element_bytes: tuple[float, float],
    ) -> Array:
        """Seconds to move the operands; `element_bytes` are the bytes of an element read and of one written."""
        read, written = element_bytes
        return batch * (read * (m * k + k * n) + written * m * n) / (bandwidth_bytes_per_s * self.memory)

    def together(self, math_s: Array, memory_s: Array) -> Array:
        """Both overlapped: the slower of the two, and somewhat more where they are close."""
        return np.asarray((math_s**self.smooth + memory_s**self.smooth) ** (1 / self.smooth))

    def _waves(self, work: Array) -> Array:
        work = np.maximum(work, 1.0)
        return work + self.quantum * (np.ceil(work) - work)
