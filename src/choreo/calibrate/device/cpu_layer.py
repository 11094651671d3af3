"""Small transformer layers, whose arithmetic is nothing: what is left is what operators cost amid a layer.

An operator that runs again and again finds its code in the caches and takes half as long as one among others. So the
host's pace is measured with layers as training has them, forward and backward. They can be "cut" over tensor ranks, of
which there is one: then they have collectives, without bytes to send. "hollow" layers have all but the calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["COLLECTIVES", "LAYERS", "OPERATORS", "layer_passes"]

LAYERS, FEATURES, HEADS, TOKENS, WIDER = 4, 32, 2, 4, 4
# Kernels of one layer as the planner counts them: 10 forward, 11 for gradients of activations, 8 for those of weights.
OPERATORS = 29
COLLECTIVES = 4  # of one layer that is cut over tensor ranks: two forward, two backward


def layer_passes(torch: Any, how: str) -> Callable[[], None]:
    """A call that runs `LAYERS` layers forward and backward: "whole", "cut" or "hollow"."""
    layers = [_layer(torch, how) for _ in range(LAYERS)]
    given = torch.randn(1, TOKENS, FEATURES)

    def call() -> None:
        x = given
        for layer in layers:
            x = layer(x)
        x.sum().backward()

    return call


def _layer(torch: Any, how: str) -> Callable[[Any], Any]:
    nn, functional = torch.nn, torch.nn.functional
    norms = [nn.LayerNorm(FEATURES) for _ in range(2)]
    query, key, value, out = (nn.Linear(FEATURES, FEATURES) for _ in range(4))
    up, down = nn.Linear(FEATURES, WIDER * FEATURES), nn.Linear(WIDER * FEATURES, FEATURES)
    copy, reduce = (_same, _same) if how == "whole" else _collectives(torch, how)

    def heads(x: Any) -> Any:
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def layer(x: Any) -> Any:
        ready = copy(norms[0](x))
        queries, keys, values = (heads(tensor(ready)) for tensor in (query, key, value))
        found = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + reduce(out(found.transpose(1, 2).flatten(2)))
        wide = functional.gelu(up(copy(norms[1](x))), approximate="tanh")
        return x + reduce(down(wide))

    return layer


def _same(x: Any) -> Any:
    return x


def _collectives(torch: Any, how: str) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Functions whose backward and whose forward pass is an all_reduce, as tensor parallelism has them."""
    from torch.distributed import all_reduce

    call = all_reduce if how == "cut" else _same

    class Copy(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            gradient = gradient.contiguous()
            call(gradient)
            return gradient

    class Reduce(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            x = x.contiguous()
            call(x)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient

    return Copy.apply, Reduce.apply
