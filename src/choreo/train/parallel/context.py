"""Context parallelism: a sequence cut over ranks. Keys and values are gathered (as Llama 3 does), queries stay.

A causal sequence is cut into 2 cp chunks, and rank r has chunks r and 2 cp - 1 - r: early chunks are cheap and late
ones expensive, so every rank has the same work.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

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


def attention(query: Tensor, key: Tensor, value: Tensor, group: Any, index: int) -> Tensor:
    """Causal attention of this rank's queries; tensors are (batch, heads, sequence, features)."""
    grouped = query.shape[1] != key.shape[1]
    if group is None:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
    cp = dist.get_world_size(group)
    both = gather(torch.stack((key, value)), group, dim=3)
    chunk = query.shape[2] // 2
    place = {r if half == 0 else 2 * cp - 1 - r: 2 * r + half for r in range(cp) for half in (0, 1)}
    pieces = both.split(chunk, dim=3)
    found = []
    for half, number in enumerate((index, 2 * cp - 1 - index)):
        keys, values = torch.cat([pieces[place[c]] for c in range(number + 1)], dim=3)
        ones = torch.ones(chunk, chunk, dtype=torch.bool, device=query.device).tril()
        mask = torch.cat((ones.new_ones(chunk, chunk * number), ones), 1)
        own = query[:, :, half * chunk : (half + 1) * chunk]
        found.append(F.scaled_dot_product_attention(own, keys, values, attn_mask=mask, enable_gqa=grouped))
    return torch.cat(found, dim=2)
