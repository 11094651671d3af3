"""Multi-token prediction (DeepSeek-V3, section 2.2): modules after the last layer, each predicts one more token.

Module k joins what the module before it made of a token with the embedding of the token k places on, and has one layer.
Embedding and output layer are the model's own. The last tokens of a sequence have nothing to predict, and no loss.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from choreo.train.models.block import Block
from choreo.train.models.layers import Linear, Norm
from choreo.train.models.parameters import STD, Builder
from choreo.train.models.rotary import Turns
from choreo.workload import Model

__all__ = ["FURTHER_WEIGHT", "NO_TARGET", "FurtherToken", "further_tokens"]

FURTHER_WEIGHT = 0.3  # of the mean of these losses beside that of the next token; DeepSeek-V3 lowered it to 0.1 late
NO_TARGET = -1


class FurtherToken(nn.Module):
    """The module of one further token: two norms, a matrix that joins, a layer, and a norm before the output layer."""

    def __init__(self, make: Builder, model: Model, number: int, recompute: str) -> None:
        super().__init__()
        layer = model.layers + number
        name = f"layers.{layer}"
        self.stream_norm, self.token_norm, self.norm = (
            Norm(make, f"{name}.{part}", model.norm, model.hidden, model.norm_eps)
            for part in ("stream_norm", "token_norm", "norm")
        )
        self.join = Linear(make, f"{name}.join", 2 * model.hidden, model.hidden, bias=False, cut=-1, std=STD)
        self.block = Block(make, model, layer, recompute)

    def forward(self, x: Tensor, embedded: Tensor, turns: Turns | None) -> Tensor:
        """The output layer's input, from its input for the token before and the embedding of this one."""
        joined = torch.cat((self.stream_norm(x), self.token_norm(embedded)), dim=-1)
        return self.norm(self.block(self.join(joined), turns))


def further_tokens(rows: Tensor, positions: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Of rows of tokens, what modules 1 to `count` read at these positions, and the targets of the model and of each.

    >>> tokens, targets = further_tokens(torch.tensor([[5, 6, 7, 8]]), torch.arange(3), 1)
    >>> tokens.tolist(), targets.tolist()
    ([[[6, 7, 8]]], [[[6, 7, 8], [7, 8, -1]]])
    """
    last = rows.shape[1] - 1
    read = [rows[:, (positions + k).clamp(max=last)] for k in range(1, count + 1)]
    wanted = [
        rows[:, (positions + k).clamp(max=last)].masked_fill((positions + k > last).to(rows.device), NO_TARGET)
        for k in range(1, count + 2)
    ]
    return torch.stack(read, dim=1), torch.stack(wanted, dim=1)
