"""A decoder, dense or with experts, as `Model` describes it: the layers of one stage, cut over tensor ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from choreo.train.models.experts import Experts
from choreo.train.models.layers import Linear, Mlp, Norm, enter, leave
from choreo.train.models.parameters import Builder, share
from choreo.train.parallel.context import attention, positions_of
from choreo.train.parallel.tensor import copy, cross_entropy, gather, reduce, scatter
from choreo.workload import Model

__all__ = ["Stage", "output_layer"]

STD = 0.02
ROTARY_BASE = 10000.0
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
            self.embedding_norm = Norm(make, "embedding_norm", model.norm, model.hidden)
        self.blocks = nn.ModuleDict({str(layer): Block(make, model, layer, recompute) for layer in layers})
        if self.last:
            self.norm = Norm(make, "norm", model.norm, model.hidden)
            if not tied:
                self.head = make.make("head", shape, std=STD, cut=0)
            if model.head_bias:
                self.head_bias = make.make("head.bias", (model.vocab,), cut=0)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens or activations in, activations or logits out."""
        tp = self.make.tp
        if self.first:
            x = self._embed(x)
        turns = self._turns(x.dtype)
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

    def _turns(self, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
        """Cosines and sines of rotary positions."""
        if self.model.learned_positions or not self.model.rotary:
            return None
        dim = self.model.head_dim
        steps = torch.arange(0, dim, 2, device=self.positions.device, dtype=torch.float32)
        angles = self.positions[:, None].float() * torch.exp(steps * (-math.log(ROTARY_BASE) / dim))
        return angles.cos().to(dtype), angles.sin().to(dtype)


def output_layer(x: Tensor, weight: Tensor, bias: Tensor | None, multiple: int) -> Tensor:
    """Logits of a vocabulary that is rounded up to a multiple; those beyond it are minus infinity, and cost no loss."""
    beyond = -weight.shape[0] % multiple
    if beyond:
        bias = x.new_zeros(weight.shape[0]) if bias is None else bias
        weight, bias = F.pad(weight, (0, 0, 0, beyond)), F.pad(bias, (0, beyond), value=-math.inf)
    return F.linear(x, weight, bias)


class Block(nn.Module):
    """One layer: attention and an MLP, each after a norm and beside the residual stream."""

    def __init__(self, make: Builder, model: Model, layer: int, recompute: str) -> None:
        super().__init__()
        name = f"layers.{layer}"
        self.parallel = model.parallel_block
        self.attention = Attention(make, model, f"{name}.attention", recompute)
        if model.has_experts(layer):
            self.mlp: nn.Module = Experts(make, model, f"{name}.mlp")
        else:
            self.mlp = Mlp(make, model, f"{name}.mlp", model.ffn)
        names = ("before_attention", "before_mlp", "after_attention", "after_mlp")[: model.norms_per_layer]
        self.norms = nn.ModuleDict({one: Norm(make, f"{name}.{one}", model.norm, model.hidden) for one in names})

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor] | None) -> Tensor:
        """The residual stream, one layer further."""
        before = self.norms["before_attention"](x)
        attended = self._after("after_attention", self.attention(before, turns))
        if self.parallel:
            ready = self.norms["before_mlp"](x) if "before_mlp" in self.norms else before
            return x + attended + self._after("after_mlp", self.mlp(ready))
        x = x + attended
        return x + self._after("after_mlp", self.mlp(self.norms["before_mlp"](x)))

    def _after(self, name: str, x: Tensor) -> Tensor:
        return self.norms[name](x) if name in self.norms else x


class Attention(nn.Module):
    """Causal attention whose heads are cut over tensor ranks, and whose sequence is cut over context ranks."""

    def __init__(self, make: Builder, model: Model, name: str, recompute: str) -> None:
        super().__init__()
        self.make, self.dim = make, model.head_dim
        self.again = recompute == "selective"
        bias = model.bias or model.qkv_bias
        wide, narrow, std = model.heads * model.head_dim, model.kv_heads * model.head_dim, STD
        self.query = Linear(make, f"{name}.query", model.hidden, wide, bias=bias, cut=0, std=std)
        self.key = Linear(make, f"{name}.key", model.hidden, narrow, bias=bias, cut=0, std=std)
        self.value = Linear(make, f"{name}.value", model.hidden, narrow, bias=bias, cut=0, std=std)
        self.out = Linear(
            make, f"{name}.out", wide, model.hidden, bias=model.bias, cut=1, std=std / math.sqrt(2 * model.layers)
        )
        if model.qk_norm:
            self.query_norm = Norm(make, f"{name}.query_norm", model.norm, model.head_dim, per_head=True)
            self.key_norm = Norm(make, f"{name}.key_norm", model.norm, model.head_dim, per_head=True)
        self.qk_norm = model.qk_norm

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor] | None) -> Tensor:
        """Attention over the whole sequence."""
        x = enter(self.make, x)
        query, key, value = (self._heads(layer(x)) for layer in (self.query, self.key, self.value))
        if self.qk_norm:
            query, key = self.query_norm(query), self.key_norm(key)
        if turns is not None:
            query, key = _turned(query, *turns), _turned(key, *turns)
        mesh = self.make.mesh
        place = (mesh.group("cp"), mesh.index["cp"])
        if self.again:
            found = checkpoint(attention, query, key, value, *place, use_reentrant=False)
        else:
            found = attention(query, key, value, *place)
        return leave(self.make, self.out(found.transpose(1, 2).flatten(2)), self.out.bias)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.dim)).transpose(1, 2)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: pairs of features, turned by an angle that grows with the position."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
