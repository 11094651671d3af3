"""A decoder, dense or with experts, as `Model` describes it: the layers of one stage, cut over tensor ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from choreo.train.models.attention import make_attention
from choreo.train.models.experts import Experts
from choreo.train.models.layers import Mlp, Norm
from choreo.train.models.parameters import STD, Builder, share
from choreo.train.models.rotary import Turns, turns_of
from choreo.train.parallel.context import positions_of
from choreo.train.parallel.tensor import copy, cross_entropy, gather, reduce, scatter
from choreo.workload import Model

__all__ = ["Stage", "output_layer"]

# Tensor cores multiply an odd number of columns, such as GPT-2's 50,257 words, at a quarter of their speed.
COLUMNS = {"cuda": 64}


class Stage(nn.Module):
    """Some layers of a model; the first stage has the embedding, the last the output layer."""

    def __init__(self, make: Builder, model: Model, seq: int, layers: Sequence[int], recompute: str) -> None:
        super().__init__()
        self.model, self.make, self.recompute = model, make, recompute
        self.first, self.last = layers[0] == 0, layers[-1] == model.layers - 1
        mesh = make.mesh
        self.register_buffer(
            "positions", positions_of(seq, mesh.index["cp"], mesh.size("cp")).to(mesh.device), persistent=False
        )
        self.words = share(model.vocab, mesh.size("tp"), mesh.index["tp"])  # first and count of this rank's
        shape = (model.vocab, model.hidden)
        tied = model.tied_embeddings
        if self.first or (self.last and tied):
            self.embedding = make.make("embedding", shape, std=STD, cut=0)
            if tied and mesh.plan.pp > 1:
                self.embedding.shared = mesh.group("ends")
        if self.first and model.learned_positions:
            self.position_table = make.make("positions", (model.learned_positions, model.hidden), std=STD)
        if self.first and model.embedding_norm:
            self.embedding_norm = Norm(make, "embedding_norm", model.norm, model.hidden, model.norm_eps)
        self.blocks = nn.ModuleDict({str(layer): Block(make, model, layer, recompute) for layer in layers})
        if self.last:
            self.norm = Norm(make, "norm", model.norm, model.hidden, model.norm_eps)
            if not tied:
                self.head = make.make("head", shape, std=STD, cut=0)
            if model.head_bias:
                self.head_bias = make.make("head.bias", (model.vocab,), cut=0)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens or activations in, activations or logits out."""
        tp = self.make.tp
        if self.first:
            x = self._embed(x)
        turns = turns_of(self.model, self.positions, x.dtype)
        for block in self.blocks.values():
            x = checkpoint(block, x, turns, use_reentrant=False) if self.recompute == "full" else block(x, turns)
        if not self.last:
            return x
        x = self.norm(x)
        x = gather(x, tp) if self.make.sequence_parallel else copy(x, tp)
        weight = self.embedding if self.model.tied_embeddings else self.head
        return output_layer(x, weight, getattr(self, "head_bias", None), COLUMNS.get(x.device.type, 1))

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The summed loss of these tokens."""
        return cross_entropy(logits.flatten(0, 1), targets.flatten(), *self.words, self.make.tp)

    def _embed(self, tokens: Tensor) -> Tensor:
        tp, rows = self.make.tp, self.embedding.shape[0]
        if tp is None:
            x = F.embedding(tokens, self.embedding)
        else:
            own = tokens - self.words[0]
            here = (own >= 0) & (own < rows)
            x = F.embedding(own.clamp(0, rows - 1), self.embedding) * here[..., None]
            x = scatter(x, tp) if self.make.sequence_parallel else reduce(x, tp)
        if self.model.learned_positions:
            at = self.positions
            if self.make.sequence_parallel:
                at = at.chunk(self.make.mesh.size("tp"))[self.make.mesh.index["tp"]]
            x = x + F.embedding(at, self.position_table)
        return self.embedding_norm(x) if self.model.embedding_norm else x


def output_layer(x: Tensor, weight: Tensor, bias: Tensor | None, multiple: int) -> Tensor:
    """Logits of a vocabulary that is rounded up to a multiple; those beyond it are minus infinity, and cost no loss."""
    beyond = -weight.shape[0] % multiple
    if beyond:
        bias = x.new_zeros(weight.shape[0]) if bias is None else bias
        weight, bias = F.pad(weight, (0, 0, 0, beyond)), F.pad(bias, (0, beyond), value=-math.inf)
    return F.linear(x, weight, bias)


class Block(nn.Module):
    """One layer: attention and an MLP beside the residual stream, each after a norm, or before one, or both."""

    def __init__(self, make: Builder, model: Model, layer: int, recompute: str) -> None:
        super().__init__()
        name = f"layers.{layer}"
        self.parallel = model.parallel_block
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
        before = self._norm("before_attention", x)
        attended = self._norm("after_attention", self.attention(before, turns))
        if self.parallel:
            ready = self.norms["before_mlp"](x) if "before_mlp" in self.norms else before
            return x + attended + self._norm("after_mlp", self.mlp(ready))
        x = x + attended
        return x + self._norm("after_mlp", self.mlp(self._norm("before_mlp", x)))

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return self.norms[name](x) if name in self.norms else x
