"""The building blocks of transformers: linear layers cut by columns or rows, norms, and the MLP."""

from __future__ import annotations

import math

import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor, nn

from choreo.train.models.parameters import Builder
from choreo.train.parallel.tensor import copy, gather, reduce, scatter
from choreo.workload import Model

__all__ = ["Linear", "Mlp", "Norm", "enter", "leave"]

EPSILON = 1e-5


def enter(make: Builder, x: Tensor) -> Tensor:
    """An activation as column-parallel layers need it: all tokens, at every rank."""
    return gather(x, make.tp) if make.sequence_parallel else copy(x, make.tp)


def leave(make: Builder, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """The sum of what row-parallel layers give, and their bias, added once."""
    x = scatter(x, make.tp) if make.sequence_parallel else reduce(x, make.tp)
    return x if bias is None else x + bias


class Linear(nn.Module):
    """A linear layer, cut by columns (`cut` 0: outputs) or by rows (`cut` 1: inputs).

    A row-parallel layer does not add its bias: that is done after the sum.
    """

    def __init__(self, make: Builder, name: str, ins: int, outs: int, *, bias: bool, cut: int, std: float) -> None:
        super().__init__()
        self.cut = cut
        self.weight = make.make(name, (outs, ins), std=std, cut=cut)
        self.bias = make.make(f"{name}.bias", (outs,), cut=0 if cut == 0 else -1) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """The product."""
        return F.linear(x, self.weight, None if self.cut == 1 else self.bias)


class Norm(nn.Module):
    """RMS or layer norm, over the features of a token or (`per_head`) of a head."""

    def __init__(self, make: Builder, name: str, kind: str, size: int, *, per_head: bool = False) -> None:
        super().__init__()
        self.kind, self.size = kind, size
        affine = kind != "layer-no-affine"
        self.weight = make.make(name, (size,), fill=1.0, alike=per_head) if affine else None
        self.bias = make.make(f"{name}.bias", (size,), alike=per_head) if kind == "layer" else None
        if per_head and make.tp is not None:
            # Each tensor rank has only seen its own heads.
            for parameter in self.parameters():
                parameter.summed = make.tp

    def forward(self, x: Tensor) -> Tensor:
        """The normalised features."""
        if self.kind == "rms":
            return F.rms_norm(x, (self.size,), self.weight, EPSILON)
        return F.layer_norm(x, (self.size,), self.weight, self.bias, EPSILON)


class Mlp(nn.Module):
    """Two matrices with GELU between them, or three with a SiLU gate."""

    def __init__(self, make: Builder, model: Model, name: str, ffn: int) -> None:
        super().__init__()
        self.make = make
        std, bias = 0.02, model.bias
        self.up = Linear(make, f"{name}.up", model.hidden, ffn, bias=bias, cut=0, std=std)
        self.gate = Linear(make, f"{name}.gate", model.hidden, ffn, bias=bias, cut=0, std=std) if model.gated else None
        self.down = Linear(
            make, f"{name}.down", ffn, model.hidden, bias=bias, cut=1, std=std / math.sqrt(2 * model.layers)
        )

    def inside(self, x: Tensor) -> Tensor:
        """This rank's share of the sum, without the bias of the last matrix."""
        up = self.up(x)
        return self.down(F.gelu(up, approximate="tanh") if self.gate is None else F.silu(self.gate(x)) * up)

    def forward(self, x: Tensor) -> Tensor:
        """The MLP of each token."""
        return leave(self.make, self.inside(enter(self.make, x)), self.down.bias)
