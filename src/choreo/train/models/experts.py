"""A mixture of experts: each token goes to a few of many MLPs, chosen by a router. No token is ever dropped."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor, nn

from choreo.train.models.layers import Mlp, leave
from choreo.train.models.parameters import STD, Builder, share
from choreo.train.models.router import route
from choreo.train.parallel.expert import exchange, exchange_counts
from choreo.train.parallel.tensor import copy, whole
from choreo.workload import Model

__all__ = ["Experts"]

# In bf16 on a CPU, oneDNN makes and keeps a kernel (a quarter of a megabyte) for every number of rows that it is given.
EVEN_ROWS = 16


class Experts(nn.Module):
    """The experts of one layer; a rank has experts / ep of them, each cut over tensor ranks."""

    def __init__(self, make: Builder, model: Model, name: str) -> None:
        super().__init__()
        self.make, self.model = make, model
        mesh = make.mesh
        self.router = make.make(f"{name}.router", (model.experts, model.hidden), std=STD, alike=True)
        # The bias of sigmoid routers balances experts and is not trained by gradients; it stays zero here.
        bias = model.router_bias and model.router_score == "softmax"
        self.router_bias = make.make(f"{name}.router.bias", (model.experts,), alike=True) if bias else None
        start, count = share(model.experts, mesh.size("ep"), mesh.index["ep"])
        numbers = range(start, start + count)
        self.experts = nn.ModuleList(Mlp(make, model, f"{name}.experts.{e}", model.expert_ffn) for e in numbers)
        for parameter in self.experts.parameters():
            parameter.alone = mesh.size("ep") > 1
        self.shared = Mlp(make, model, f"{name}.shared", model.shared_ffn) if model.shared_experts else None
        for mlp in (*self.experts, *((self.shared,) if self.shared is not None else ())):
            if mlp.down.bias is not None:
                mlp.down.bias.summed = make.tp  # of which each tensor rank adds its share
        gate = model.shared_gate and model.shared_experts
        self.shared_gate = make.make(f"{name}.shared_gate", (1, model.hidden), std=STD, alike=True) if gate else None

    def forward(self, x: Tensor) -> Tensor:
        """The weighted sum of each token's experts, and the shared ones."""
        make, shape = self.make, x.shape
        full = whole(x, make.tp) if make.sequence_parallel else x
        tokens = full.flatten(0, 1)
        gates, chosen = route(self.model, F.linear(tokens, self.router, self.router_bias).float())
        gates = copy(gates.to(tokens.dtype), make.tp)
        cut = copy(tokens, make.tp)
        found = self._routed(cut, gates, chosen)
        if self.shared is not None:
            own = self._with_bias(self.shared, cut)
            if self.shared_gate is not None:
                own = own * copy(torch.sigmoid(F.linear(tokens, self.shared_gate)), make.tp)
            found = found + own
        return leave(make, found.view(full.shape)).view(shape)

    def _routed(self, tokens: Tensor, gates: Tensor, chosen: Tensor) -> Tensor:
        """Send tokens to their experts, compute, send back, and add up."""
        mesh, model = self.make.mesh, self.model
        group, parts = mesh.group("ep"), mesh.size("ep")
        order = chosen.flatten().argsort(stable=True)
        source = order // model.experts_per_token
        counts = chosen.flatten().bincount(minlength=model.experts)
        arriving = exchange_counts(counts, group)  # (ranks, own experts)
        sent = counts.view(parts, -1).sum(1).tolist()
        received = arriving.sum(1).tolist()
        weights = gates.flatten()[order][:, None]
        rows = exchange(tokens[source] * weights if model.weighted_inputs else tokens[source], sent, received, group)
        # Rows are ordered by rank and then by expert; experts need theirs together.
        sizes = arriving.flatten().tolist()
        blocks, own = rows.split(sizes), len(self.experts)
        outs = [
            self._with_bias(expert, torch.cat(blocks[number::own])).split(sizes[number::own])
            for number, expert in enumerate(self.experts)
        ]
        back = torch.cat([outs[number][rank] for rank in range(parts) for number in range(own)])
        home = exchange(back, received, sent, group)
        home = home if model.weighted_inputs else home * weights
        return torch.zeros_like(tokens).index_add(0, source, home.to(tokens.dtype))

    def _with_bias(self, mlp: Mlp, x: Tensor) -> Tensor:
        """This rank's share of an MLP; every tensor rank adds its share of the bias."""
        rows = len(x)
        if x.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            x = F.pad(x, (0, 0, 0, -rows % EVEN_ROWS))
        found = mlp.inside(x)[:rows]
        return found if mlp.down.bias is None else found + mlp.down.bias / self.make.mesh.size("tp")
