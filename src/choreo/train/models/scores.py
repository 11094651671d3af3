"""Attention scores and their use: torch's fused kernel where it applies, separate products where scores are capped
(Gemma 2) or a sink takes a part of the attention (GPT-OSS)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from choreo.train.models.mask import Mask, mask_of
from choreo.train.parallel.mesh import Mesh
from choreo.workload import Model

__all__ = ["Scores", "scores_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """The scores of one layer: which keys are seen, what products are multiplied by, and the cap; 0 is none."""

    mask: Mask
    scale: float
    cap: float = 0.0

    def attend(self, qkv: tuple[Tensor, Tensor, Tensor], first: int, sinks: Tensor | None) -> Tensor:
        """Attention of queries at positions from `first` on to all keys up to the last of them.

        Tensors are (batch, heads, sequence, features), and `sinks` has a score for each head.
        """
        query, key, value = qkv
        grouped = query.shape[1] != key.shape[1]
        whole = not first and self.mask.is_causal(query.shape[2])
        if self.cap or sinks is not None:
            return self._by_products(qkv, self.mask.of(first, query.shape[2], query), sinks)
        seen = None if whole else self.mask.of(first, query.shape[2], query)
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=seen, is_causal=whole, scale=self.scale, enable_gqa=grouped
        )

    def _by_products(self, qkv: tuple[Tensor, Tensor, Tensor], seen: Tensor, sinks: Tensor | None) -> Tensor:
        query, key, value = qkv
        heads, queries, keys = query.shape[1], query.shape[2], key.shape[1]
        # The queries of a key-value head are rows of one product, so that keys and values need not be repeated.
        scale = self.scale / self.cap if self.cap else self.scale
        rows = (query * scale).unflatten(1, (keys, heads // keys)).flatten(2, 3)
        scores = (rows @ key.transpose(2, 3)).unflatten(2, (-1, queries)).flatten(1, 2)
        if self.cap:
            scores = torch.tanh(scores) * self.cap
        scores = scores.masked_fill(~seen, -math.inf) if seen.dtype == torch.bool else scores + seen
        if sinks is not None:
            sink = sinks.to(scores.dtype)[:, None, None].expand(len(scores), -1, queries, 1)
            scores = torch.cat((scores, sink), dim=-1)
        odds = scores.softmax(-1)[..., : key.shape[2]].to(value.dtype)
        found = odds.unflatten(1, (keys, heads // keys)).flatten(2, 3) @ value
        return found.unflatten(2, (-1, queries)).flatten(1, 2)


def scores_of(model: Model, layer: int, mesh: Mesh) -> Scores:
    """The scores of a layer, for the heads that this tensor rank has."""
    stretched = model.yarn.score_factor if model.latent and model.yarn else 1.0
    scale = stretched * (model.score_dim or model.query_dim) ** -0.5
    return Scores(mask_of(model, layer, mesh), scale, model.score_cap)
