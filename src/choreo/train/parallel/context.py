"""Context parallelism: a sequence cut over ranks. Keys and values are gathered (as Llama 3 does), queries stay.

A causal sequence is cut into 2 cp chunks, and rank r has chunks r and 2 cp - 1 - r: early chunks are cheap and late
ones expensive, so every rank has the same work.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from choreo.train.models.scores import Scores
from choreo.train.parallel.tensor import gather

__all__ = ["attention", "positions_of"]


def positions_of(seq: int, index: int, cp: int) -> Tensor:
    """The positions in the sequence of the tokens that a rank has.

    >>> positions_of(8, 0, 2).tolist(), positions_of(8, 1, 2).tolist()
    ([0, 1, 6, 7], [2, 3, 4, 5])
    """
    if cp == 1:
        return torch.arange(seq)
    chunks = torch.arange(seq).view(2 * cp, -1)
    return torch.cat((chunks[index], chunks[2 * cp - 1 - index]))


def attention(
    qkv: tuple[Tensor, Tensor, Tensor], scores: Scores, sinks: Tensor | None, group: Any, index: int
) -> Tensor:
    """Causal attention of this rank's queries; tensors are (batch, heads, sequence, features)."""
    if group is None:
        return scores.attend(qkv, 0, sinks)
    query, key, value = qkv
    cp, wide = dist.get_world_size(group), key.shape[-1]
    both = gather(torch.cat((key, value), dim=-1), group, dim=2)
    chunk = query.shape[2] // 2
    place = {r if half == 0 else 2 * cp - 1 - r: 2 * r + half for r in range(cp) for half in (0, 1)}
    pieces = both.split(chunk, dim=2)
    found = []
    for half, number in enumerate((index, 2 * cp - 1 - index)):
        known = torch.cat([pieces[place[c]] for c in range(number + 1)], dim=2)
        keys, values = known.split((wide, value.shape[-1]), dim=-1)
        own = query[:, :, half * chunk : (half + 1) * chunk]
        found.append(scores.attend((own, keys, values), number * chunk, sinks))
    return torch.cat(found, dim=2)
