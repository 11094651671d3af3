"""DLRM (Naumov et al. 2019): embedding tables cut over the ranks, MLPs replicated.

A rank looks up every rank's samples in its own tables. An all_to_all gives each rank all tables for its own samples.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor, nn

from choreo.train.models.parameters import Builder
from choreo.train.parallel.expert import exchange
from choreo.workload import Recommender

__all__ = ["Dlrm", "tables_of"]


def tables_of(net: Recommender, ranks: int) -> list[list[int]]:
    """The tables of each rank: the largest first, each to the rank with the fewest rows so far.

    >>> tables_of(Recommender("small", (9, 1, 5, 4), 4, 2, (4,), (1,)), 2)
    [[0, 1], [2, 3]]
    """
    held: list[list[int]] = [[] for _ in range(ranks)]
    rows = [0] * ranks
    for table in sorted(range(net.tables), key=lambda table: -net.rows[table]):
        least = min(range(ranks), key=lambda rank: (rows[rank], rank))
        held[least].append(table)
        rows[least] += net.rows[table]
    return [sorted(tables) for tables in held]


class Dlrm(nn.Module):
    """Dense features and table rows in, one logit per sample out."""

    def __init__(self, make: Builder, net: Recommender) -> None:
        super().__init__()
        self.net, self.mesh = net, make.mesh
        self.held = tables_of(net, make.mesh.size("replicas"))
        self.own = self.held[make.mesh.index["replicas"]]
        self.tables = nn.ParameterDict(
            {
                str(table): make.make(f"tables.{table}", (net.rows[table], net.dim), std=1 / math.sqrt(net.rows[table]))
                for table in self.own
            }
        )
        for table in self.tables.values():
            table.alone = make.mesh.size("replicas") > 1
        self.weights = nn.ParameterDict()
        for name, ins, outs in net.layers:
            self.weights[name] = make.make(name, (outs, ins), std=math.sqrt(2 / (ins + outs)))
            self.weights[f"{name}_bias"] = make.make(f"{name}.bias", (outs,))

    def forward(self, dense: Tensor, picks: Tensor) -> Tensor:
        """`picks` are rows of this rank's tables, (sample, rank, table, lookup), for the samples of all ranks."""
        bottom = self._mlp("bottom", dense)
        vectors = torch.cat((bottom[:, None], self._embeddings(picks)), 1)
        products = vectors @ vectors.transpose(1, 2)
        low = torch.tril_indices(vectors.shape[1], vectors.shape[1], offset=-1, device=dense.device)
        return self._mlp("top", torch.cat((bottom, products[:, low[0], low[1]]), 1))[:, 0]

    def _embeddings(self, picks: Tensor) -> Tensor:
        """All tables' embeddings of this rank's samples: (sample, table, features)."""
        samples, ranks, own, _ = picks.shape
        found = [
            F.embedding(picks[:, :, number], self.tables[str(table)]).sum(2) for number, table in enumerate(self.own)
        ]
        shape = (samples, ranks, 0, self.net.dim)
        here = torch.stack(found, 2) if found else torch.zeros(shape, device=picks.device)
        rows = here.transpose(0, 1).reshape(-1, self.net.dim)
        received = [samples * len(tables) for tables in self.held]
        back = exchange(rows, [samples * own] * ranks, received, self.mesh.group("replicas")).split(received)
        order = torch.tensor([table for tables in self.held for table in tables], device=picks.device).argsort()
        by_rank = [part.view(samples, -1, self.net.dim) for part in back]
        return torch.cat(by_rank, 1)[:, order]

    def _mlp(self, part: str, x: Tensor) -> Tensor:
        names = [name for name, _, _ in self.net.layers if name.startswith(part)]
        for name in names:
            x = F.linear(x, self.weights[name], self.weights[f"{name}_bias"])
            if part == "bottom" or name != names[-1]:
                x = F.relu(x)
        return x
