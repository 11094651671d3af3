"""Attention masks: the keys that a query sees (all before it, a window or a chunk), and ALiBi's weights by distance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from choreo.train.models.parameters import share
from choreo.train.parallel.mesh import Mesh
from choreo.workload import Model

__all__ = ["Mask", "alibi_slopes", "mask_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """The mask of one layer: a `window` of 0 is none, and `slopes` has ALiBi's slope of each head of this rank."""

    window: int = 0
    chunked: bool = False
    slopes: tuple[float, ...] = ()

    def is_causal(self, seq: int) -> bool:
        """Whether queries of a sequence see all keys up to their own, without weights.

        >>> Mask().is_causal(64), Mask(window=64).is_causal(64), Mask(window=32).is_causal(64)
        (True, True, False)
        """
        return not self.slopes and (not self.window or self.window >= seq)

    def of(self, first: int, queries: int, like: Tensor) -> Tensor:
        """For queries at positions from `first` on and all keys up to the last: which are seen, or what is added.

        >>> Mask(window=2).of(1, 2, torch.zeros(1)).int().tolist()
        [[1, 1, 0], [0, 1, 1]]
        """
        query = torch.arange(first, first + queries, device=like.device)[:, None]
        key = torch.arange(first + queries, device=like.device)
        seen = key <= query
        if self.window:
            seen &= key // self.window == query // self.window if self.chunked else key > query - self.window
        if not self.slopes:
            return seen
        slopes = torch.tensor(self.slopes, device=like.device)[:, None, None]
        return (slopes * (key - query)).masked_fill(~seen, -math.inf).to(like.dtype)


def mask_of(model: Model, layer: int, mesh: Mesh) -> Mask:
    """The mask of a layer, for the heads that this tensor rank has."""
    slopes: tuple[float, ...] = ()
    if not model.rotary and not model.learned_positions:
        start, count = share(model.heads, mesh.size("tp"), mesh.index["tp"])
        slopes = alibi_slopes(model.heads)[start : start + count]
    return Mask(model.window if model.has_window(layer) else 0, model.chunked, slopes)


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """The slopes of ALiBi (Press et al., 2022): geometric, and for other counts every second of twice as many.

    >>> alibi_slopes(4), len(alibi_slopes(6))
    ((0.25, 0.0625, 0.015625, 0.00390625), 6)
    """
    whole = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * (number + 1) / whole) for number in range(whole)]
    between = [2 ** (-4 * (number + 1) / whole) for number in range(0, 2 * whole, 2)]
    return (*slopes, *between[: heads - whole])
