"""Parameters whose initial values depend only on the seed and on their name: every plan starts from the same model."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from choreo.train.parallel.mesh import Mesh

__all__ = ["STD", "Builder", "Piece", "first_values", "share"]

STD = 0.02  # of initial weights


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a whole parameter that a rank holds: `size` rows of `dim` from `start`; dim -1 is all of it."""

    name: str
    shape: tuple[int, ...]
    dim: int = -1
    start: int = 0
    size: int = 0


def first_values(seed: int, name: str, shape: tuple[int, ...], std: float) -> Tensor:
    """The initial values of a whole parameter: normal with that standard deviation.

    >>> bool((first_values(0, "a", (2, 3), 1.0) == first_values(0, "a", (2, 3), 1.0)).all())
    True
    """
    key = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "little", signed=True)
    return torch.randn(shape, generator=torch.Generator().manual_seed(key)).mul_(std)


@dataclass(eq=False)
class Builder:
    """Makes the parameters of one rank. Each has a `piece`, and in `summed` the group to sum its gradient over."""

    seed: int
    mesh: Mesh
    sequence_parallel: bool = False

    @property
    def tp(self) -> Any:
        """The group of tensor-parallel ranks."""
        return self.mesh.group("tp")

    def make(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        std: float = 0.0,
        fill: float = 0.0,
        cut: int = -1,
        alike: bool = False,
        axis: str = "tp",
    ) -> nn.Parameter:
        """A parameter; `cut` is the dim that is cut over the axis, and `alike` says that every rank computes with all
        tokens, so that its gradient is whole even where the sequence is cut."""
        values = first_values(self.seed, name, shape, std) if std else torch.full(shape, fill)
        parts, piece = self.mesh.size(axis), Piece(name, shape)
        if cut >= 0 and parts > 1:
            start, size = share(shape[cut], parts, self.mesh.index[axis])
            values, piece = values.narrow(cut, start, size).clone(), Piece(name, shape, cut, start, size)
        parameter = nn.Parameter(values.to(self.mesh.device))
        parameter.piece = piece
        if self.sequence_parallel and cut < 0 and not alike:
            parameter.summed = self.tp
        return parameter


def share(size: int, parts: int, index: int) -> tuple[int, int]:
    """Start and length of a rank's part; where a size does not divide, the last parts are shorter.

    >>> [share(10, 4, index) for index in range(4)]
    [(0, 3), (3, 3), (6, 3), (9, 1)]
    """
    each = -(-size // parts)
    start = min(index * each, size)
    return start, min(each, size - start)
