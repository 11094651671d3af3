"""Causal attention: multi-head, grouped-query or multi-query, or through a latent space (DeepSeek-V2)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from choreo.train.models.layers import Linear, Norm, WholeNorm, enter, leave
from choreo.train.models.parameters import STD, Builder
from choreo.train.models.rotary import Turns, turned
from choreo.train.models.scores import scores_of
from choreo.train.parallel.context import attention
from choreo.workload import Model

__all__ = ["make_attention"]


def make_attention(make: Builder, model: Model, layer: int, recompute: str) -> _Attention:
    """The attention of one layer."""
    kind = LatentAttention if model.latent else Attention
    return kind(make, model, layer, recompute)


class _Attention(nn.Module):
    """Attention whose heads are cut over tensor ranks, and whose sequence is cut over context ranks."""

    def __init__(self, make: Builder, model: Model, layer: int, recompute: str) -> None:
        super().__init__()
        self.make, self.name = make, f"layers.{layer}.attention"
        self.again = recompute == "selective"
        self.scores = scores_of(model, layer, make.mesh)
        number = min(layer, model.layers - 1) + 1  # layers that predict further tokens are like the last
        self.turns = not (model.rope_skips and number % model.rope_skips == 0)
        wide, std = model.heads * model.value_dim, STD / math.sqrt(2 * model.layers)
        sinks = model.attention_sinks
        self.sinks = make.make(f"{self.name}.sinks", (model.heads,), std=STD, cut=0) if sinks else None
        self.out = Linear(make, f"{self.name}.out", wide, model.hidden, bias=model.bias, cut=1, std=std)

    def forward(self, x: Tensor, turns: Turns | None) -> Tensor:
        """Attention over the whole sequence."""
        qkv = self.heads(enter(self.make, x), turns if self.turns else None)
        mesh = self.make.mesh
        how = (self.scores, self.sinks, mesh.group("cp"), mesh.index["cp"])
        found = checkpoint(attention, qkv, *how, use_reentrant=False) if self.again else attention(qkv, *how)
        return leave(self.make, self.out(found.transpose(1, 2).flatten(2)), self.out.bias)

    def heads(self, x: Tensor, turns: Turns | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of this rank's heads, (batch, heads, sequence, features)."""
        raise NotImplementedError

    def linear(self, what: str, ins: int, outs: int, *, bias: bool = False, cut: int = 0) -> Linear:
        """A projection of the attention."""
        return Linear(self.make, f"{self.name}.{what}", ins, outs, bias=bias, cut=cut, std=STD)


class Attention(_Attention):
    """Queries, keys and values straight from the hidden state; several queries may share a key."""

    def __init__(self, make: Builder, model: Model, layer: int, recompute: str) -> None:
        super().__init__(make, model, layer, recompute)
        self.dim, self.l2_norm, self.whole = model.head_dim, model.qk_l2_norm, model.qk_norm_whole
        self.eps = model.norm_eps
        bias = model.bias or model.qkv_bias
        wide, narrow = model.heads * model.head_dim, model.kv_heads * model.head_dim
        self.query = self.linear("query", model.hidden, wide, bias=bias)
        self.key = self.linear("key", model.hidden, narrow, bias=bias)
        self.value = self.linear("value", model.hidden, narrow, bias=bias)
        self.query_norm, self.key_norm = (
            self._norm(model, *arguments) for arguments in (("query", wide), ("key", narrow))
        )

    def _norm(self, model: Model, what: str, width: int) -> nn.Module:
        name = f"{self.name}.{what}_norm"
        if not model.qk_norm:
            return nn.Identity()
        if model.qk_norm_whole:
            return WholeNorm(self.make, name, width, model.norm_eps)
        return Norm(self.make, name, model.norm, model.head_dim, model.norm_eps, partial=True)

    def heads(self, x: Tensor, turns: Turns | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values; norms are over each head, or over all heads together."""
        query, key, value = self.query(x), self.key(x), self._cut(self.value(x))
        if self.whole:
            query, key = self._cut(self.query_norm(query)), self._cut(self.key_norm(key))
        else:
            query, key = self.query_norm(self._cut(query)), self.key_norm(self._cut(key))
        if turns is not None:
            query, key = turned(query, turns), turned(key, turns)
            if self.l2_norm:
                query, key = (F.rms_norm(tensor, (self.dim,), eps=self.eps) for tensor in (query, key))
        return query, key, value

    def _cut(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.dim)).transpose(1, 2)


class LatentAttention(_Attention):
    """Keys and values from a narrow vector of each token, and a part of the key that has the position for all heads.

    The narrow matrices are whole at every tensor rank, which sees only what its own heads make of them.
    """

    def __init__(self, make: Builder, model: Model, layer: int, recompute: str) -> None:
        super().__init__(make, model, layer, recompute)
        latent, heads = model.latent, model.heads
        assert latent is not None
        self.latent, narrow = latent, model.hidden
        if latent.q_rank:
            self.query_down, self.query_norm = self._narrow(model, "query", latent.q_rank, latent.q_rank)
            narrow = latent.q_rank
        self.query = self.linear("query", narrow, heads * latent.query_dim)
        self.down, self.norm = self._narrow(model, "latent", latent.kv_rank + latent.rope_dim, latent.kv_rank)
        self.up = self.linear("up", latent.kv_rank, heads * (latent.nope_dim + latent.value_dim))

    def _narrow(self, model: Model, what: str, width: int, normed: int) -> tuple[Linear, Norm]:
        down = self.linear(f"{what}_down", model.hidden, width, cut=-1)
        down.weight.summed = self.make.tp
        norm = Norm(self.make, f"{self.name}.{what}_norm", model.norm, normed, model.norm_eps, partial=True)
        return down, norm

    def heads(self, x: Tensor, turns: Turns | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values; the last features of a query or key have its position."""
        latent = self.latent
        narrow = self.query_norm(self.query_down(x)) if latent.q_rank else x
        query = self.query(narrow).unflatten(-1, (-1, latent.query_dim)).transpose(1, 2)
        kept, place = self.down(x).split((latent.kv_rank, latent.rope_dim), dim=-1)
        both = self.up(self.norm(kept)).unflatten(-1, (-1, latent.nope_dim + latent.value_dim)).transpose(1, 2)
        key, value = both.split((latent.nope_dim, latent.value_dim), dim=-1)
        content, position = query.split((latent.nope_dim, latent.rope_dim), dim=-1)
        place = place[:, None]
        if turns is not None:
            position, place = turned(position, turns), turned(place, turns)
        query = torch.cat((content, position), dim=-1)
        return query, torch.cat((key, place.expand(-1, key.shape[1], -1, -1)), dim=-1), value
