"""A decoder, dense or with experts, as `Model` describes it: the layers of one stage, cut over tensor ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor, nn

from choreo.train.models.block import Block
from choreo.train.models.further_token import FURTHER_WEIGHT, FurtherToken
from choreo.train.models.layers import Norm
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
        self.model, self.make = model, make
        self.first, self.last = layers[0] == 0, layers[-1] == model.layers - 1
        mesh = make.mesh
        self.register_buffer(
            "positions", positions_of(seq, mesh.index["cp"], mesh.size("cp")).to(mesh.device), persistent=False
        )
        self.words = share(model.vocab, mesh.size("tp"), mesh.index["tp"])  # first and count of this rank's
        shape = (model.vocab, model.hidden)
        tied = model.tied_embeddings
        both_ends = tied or model.mtp_layers > 0
        if self.first or (self.last and both_ends):
            self.embedding = make.make("embedding", shape, std=STD, cut=0)
            if both_ends and mesh.plan.pp > 1:
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
        depths = range(model.mtp_layers if self.last else 0)
        self.further = nn.ModuleDict({str(k): FurtherToken(make, model, k, recompute) for k in depths})

    def forward(self, x: Tensor, further: Tensor | None = None) -> Tensor:
        """Tokens or activations in, activations or logits out.

        `further` has the tokens that multi-token prediction reads, (batch, modules, sequence). The logits of its
        modules follow those of the next tokens, along the sequence.
        """
        if self.first:
            x = self._positioned(self._embed(x))
        turns = self._turns(x)
        for block in self.blocks.values():
            x = block(x, turns[block.windowed])
        if not self.last:
            return x
        x = self.norm(x)
        found = [self._entering(x)]
        for number, module in enumerate(self.further.values()):
            assert further is not None
            x = module(x, self._embed(further[:, number]), turns[module.block.windowed])
            found.append(self._entering(x))
        return self._logits(torch.cat(found, dim=1) if len(found) > 1 else found[0])

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The summed loss of these tokens; with multi-token prediction targets are (batch, 1 + modules, sequence)."""
        logits = logits.flatten(0, 1)
        if not self.model.mtp_layers:
            return cross_entropy(logits, targets.flatten(), *self.words, self.make.tp)
        weights = (targets >= 0).to(torch.float32)
        weights[:, 1:] *= FURTHER_WEIGHT / self.model.mtp_layers
        return cross_entropy(logits, targets.clamp(min=0).flatten(), *self.words, self.make.tp, weights.flatten())

    def _turns(self, x: Tensor) -> dict[bool, Turns | None]:
        """Rotary positions of layers with a window and of others."""
        full = turns_of(self.model, self.positions, x.dtype)
        base = self.model.rope_base_windowed
        return {False: full, True: turns_of(self.model, self.positions, x.dtype, base) if base else full}

    def _entering(self, x: Tensor) -> Tensor:
        """All tokens at every rank, for the output layer."""
        return gather(x, self.make.tp) if self.make.sequence_parallel else copy(x, self.make.tp)

    def _logits(self, x: Tensor) -> Tensor:
        model = self.model
        weight = self.embedding if model.tied_embeddings else self.head
        bias, cap = getattr(self, "head_bias", None), model.logit_cap
        if model.logit_scale:
            x = x * model.logit_scale
        if not cap:
            return output_layer(x, weight, bias, COLUMNS.get(x.device.type, 1))
        # Without padding, whose minus infinity would become minus the cap.
        return torch.tanh(F.linear(x / cap, weight, bias if bias is None else bias / cap)) * cap

    def _embed(self, tokens: Tensor) -> Tensor:
        tp, rows = self.make.tp, self.embedding.shape[0]
        if tp is None:
            x = F.embedding(tokens, self.embedding)
        else:
            own = tokens - self.words[0]
            here = (own >= 0) & (own < rows)
            x = F.embedding(own.clamp(0, rows - 1), self.embedding) * here[..., None]
            x = scatter(x, tp) if self.make.sequence_parallel else reduce(x, tp)
        return x * math.sqrt(self.model.hidden) if self.model.scaled_embeddings else x

    def _positioned(self, x: Tensor) -> Tensor:
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
