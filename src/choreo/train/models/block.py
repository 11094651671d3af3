"""One layer of a decoder."""

from __future__ import annotations

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from choreo.train.models.attention import make_attention
from choreo.train.models.experts import Experts
from choreo.train.models.layers import Mlp, Norm
from choreo.train.models.parameters import Builder
from choreo.train.models.rotary import Turns
from choreo.workload import Model

__all__ = ["Block"]


class Block(nn.Module):
    """One layer: attention and an MLP beside the residual stream, each after a norm, or before one, or both."""

    def __init__(self, make: Builder, model: Model, layer: int, recompute: str) -> None:
        super().__init__()
        name = f"layers.{layer}"
        self.parallel, self.windowed = model.parallel_block, model.has_window(layer)
        self.again = recompute == "full"
        self.attention = make_attention(make, model, layer, recompute)
        if model.has_experts(layer):
            self.mlp: nn.Module = Experts(make, model, f"{name}.mlp")
        else:
            self.mlp = Mlp(make, model, f"{name}.mlp", model.ffn)
        before, after = ("before_attention", "before_mlp"), ("after_attention", "after_mlp")
        names = after if model.norm_after else (before + after)[: model.norms_per_layer]
        self.norms = nn.ModuleDict(
            {one: Norm(make, f"{name}.{one}", model.norm, model.hidden, model.norm_eps) for one in names}
        )

    def forward(self, x: Tensor, turns: Turns | None) -> Tensor:
        """The residual stream, one layer further."""
        return checkpoint(self._forward, x, turns, use_reentrant=False) if self.again else self._forward(x, turns)

    def _forward(self, x: Tensor, turns: Turns | None) -> Tensor:
        before = self._norm("before_attention", x)
        attended = self._norm("after_attention", self.attention(before, turns))
        if self.parallel:
            ready = self.norms["before_mlp"](x) if "before_mlp" in self.norms else before
            return x + attended + self._norm("after_mlp", self.mlp(ready))
        x = x + attended
        return x + self._norm("after_mlp", self.mlp(self._norm("before_mlp", x)))

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return self.norms[name](x) if name in self.norms else x
