"""The building blocks of transformers: linear layers cut by columns or rows, norms, and the MLP."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial as bind

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor, nn

from choreo.train.models.parameters import STD, Builder
from choreo.train.parallel.tensor import copy, gather, reduce, scatter
from choreo.workload import Model

__all__ = ["Linear", "Mlp", "Norm", "WholeNorm", "enter", "leave"]

CLAMP, SHARPNESS = 7.0, 1.702  # of GPT-OSS's gate


def enter(make: Builder, x: Tensor) -> Tensor:
    """An activation as column-parallel layers need it: all tokens, at every rank."""
    return gather(x, make.tp) if make.sequence_parallel else copy(x, make.tp)


def leave(make: Builder, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """The sum of what row-parallel layers give, and their bias, added once."""
    x = scatter(x, make.tp) if make.sequence_parallel else reduce(x, make.tp)
    return x if bias is None else x + bias


class Linear(nn.Module):
    """A linear layer, cut by columns (`cut` 0: outputs) or by rows (`cut` 1: inputs), or whole (`cut` -1).

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
    """RMS or layer norm over the last features.

    `partial`: each tensor rank sees only what its own heads make of it, so that its gradient is a part of the sum.
    """

    def __init__(self, make: Builder, name: str, kind: str, size: int, eps: float, *, partial: bool = False) -> None:
        super().__init__()
        self.kind, self.size, self.eps = kind, size, eps
        affine = kind != "layer-no-affine"
        self.weight = make.make(name, (size,), fill=1.0, alike=partial) if affine else None
        self.bias = make.make(f"{name}.bias", (size,), alike=partial) if kind == "layer" else None
        if partial and make.tp is not None:
            for parameter in self.parameters():
                parameter.summed = make.tp

    def forward(self, x: Tensor) -> Tensor:
        """The normalised features."""
        if self.kind == "rms":
            return F.rms_norm(x, (self.size,), self.weight, self.eps)
        return F.layer_norm(x, (self.size,), self.weight, self.bias, self.eps)


class WholeNorm(nn.Module):
    """RMS norm over features that are cut over tensor ranks, such as all heads of the queries (OLMo 2)."""

    def __init__(self, make: Builder, name: str, size: int, eps: float) -> None:
        super().__init__()
        self.make, self.size, self.eps = make, size, eps
        self.weight = make.make(name, (size,), fill=1.0, cut=0)

    def forward(self, x: Tensor) -> Tensor:
        """The normalised features of this rank."""
        squares = x.float().square().sum(-1, keepdim=True)
        squares = copy(reduce(squares, self.make.tp), self.make.tp)  # its gradient is a sum over the ranks as well
        return x * (squares / self.size + self.eps).rsqrt().to(x.dtype) * self.weight


def _squared_relu(x: Tensor) -> Tensor:
    return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu-tanh": bind(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "squared-relu": _squared_relu,
}


def _clipped_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """GPT-OSS's gate: both sides bounded, and one more than what comes up."""
    gate, up = gate.clamp(max=CLAMP), up.clamp(-CLAMP, CLAMP)
    return gate * torch.sigmoid(SHARPNESS * gate) * (up + 1)


class Mlp(nn.Module):
    """Two matrices with an activation between them, or three with a gate."""

    def __init__(self, make: Builder, model: Model, name: str, ffn: int) -> None:
        super().__init__()
        self.make, self.activation = make, model.activation
        bias, hidden = model.bias, model.hidden
        self.up = Linear(make, f"{name}.up", hidden, ffn, bias=bias, cut=0, std=STD)
        self.gate = Linear(make, f"{name}.gate", hidden, ffn, bias=bias, cut=0, std=STD) if model.gated else None
        self.down = Linear(make, f"{name}.down", ffn, hidden, bias=bias, cut=1, std=STD / math.sqrt(2 * model.layers))

    def inside(self, x: Tensor) -> Tensor:
        """This rank's share of the sum, without the bias of the last matrix."""
        up = self.up(x)
        if self.gate is None:
            return self.down(ACTIVATIONS[self.activation](up))
        gate = self.gate(x)
        if self.activation == "clipped-swiglu":
            return self.down(_clipped_swiglu(gate, up))
        return self.down(ACTIVATIONS[self.activation](gate) * up)

    def forward(self, x: Tensor) -> Tensor:
        """The MLP of each token."""
        return leave(self.make, self.inside(enter(self.make, x)), self.down.bias)
