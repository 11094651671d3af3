"""DLRM (Naumov et al. 2019) as a graph: tables of embeddings cut over the devices, MLPs replicated.

Each device looks up the whole batch in its own tables; the interaction needs all tables for its own part of the batch.
The lookup is cut by table, the interaction by batch: the resharding rule turns that into DLRM's all_to_all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from choreo.errors import ModelError
from choreo.workload.graph.build import Builder, Dims
from choreo.workload.graph.graph import Graph
from choreo.workload.graph.sharding import Sharding, cut_along
from choreo.workload.mesh import mesh_of
from choreo.workload.plan import Plan

__all__ = ["Recommender", "recommender_graph"]


@dataclass(frozen=True, slots=True)
class Recommender:
    """A DLRM: rows of each table, the width of an embedding, and the layers of its two MLPs."""

    name: str
    rows: tuple[int, ...]
    dim: int
    dense_features: int
    bottom: tuple[int, ...]  # its last is `dim`
    top: tuple[int, ...]
    lookups: int = 1  # rows summed for each table and sample

    def __post_init__(self) -> None:
        if not self.rows or not self.bottom or not self.top:
            raise ModelError(f"{self.name}: a DLRM has tables, a bottom MLP and a top MLP; one of them is empty")
        if self.bottom[-1] != self.dim:
            raise ModelError(
                f"{self.name}: the bottom MLP ends in {self.bottom[-1]} features and an embedding has {self.dim}; both "
                f"must be the same"
            )

    @property
    def tables(self) -> int:
        """The number of tables."""
        return len(self.rows)

    @property
    def interactions(self) -> int:
        """Features the top MLP reads: the dense ones and a product for each pair of vectors."""
        return self.dim + (self.tables + 1) * self.tables // 2

    @property
    def layers(self) -> tuple[tuple[str, int, int], ...]:
        """Name, width in and width out of every layer of the MLPs."""
        found = []
        for name, first, widths in (("bottom", self.dense_features, self.bottom), ("top", self.interactions, self.top)):
            ins = (first, *widths[:-1])
            found += [(f"{name}{number}", a, b) for number, (a, b) in enumerate(zip(ins, widths, strict=True))]
        return tuple(found)

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the tables."""
        return sum(self.rows) * self.dim

    @property
    def dense_parameters(self) -> int:
        """Parameters of the MLPs."""
        return sum((a + 1) * b for _, a, b in self.layers)

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.embedding_parameters + self.dense_parameters

    @property
    def flops_per_sample(self) -> float:
        """Forward FLOPs of one sample."""
        return 2.0 * (sum(a * b for _, a, b in self.layers) + (self.tables + 1) ** 2 * self.dim)


def recommender_graph(net: Recommender, plan: Plan) -> Graph:
    """The forward graph of the whole model, for `micro_batch` samples a device, at one rank.

    >>> from choreo.workload import get_workload
    >>> graph = recommender_graph(get_workload("dlrm"), Plan(dp=16, micro_batch=2048))
    >>> [(node.kind, node.axes) for node in graph.collectives]
    [('all_to_all', ('dp',))]
    """
    return _graph(net, plan.data_parallel_only(net.name))


@lru_cache(maxsize=256)
def _graph(net: Recommender, plan: Plan) -> Graph:
    mesh = mesh_of(plan)
    build = Builder(net.name, mesh, plan.activation_bytes)
    cut = cut_along(mesh, dp="batch")
    by_table = cut_along(mesh, dp="tables")
    batch = ("batch", float(plan.micro_batch * plan.dp))
    tables, dim = ("tables", float(net.tables)), ("features", float(net.dim))
    picks: Dims = (batch, tables, ("lookups", net.lookups))
    indices = build.input("indices", picks, by_table, role="data", item_bytes=8)
    # All tables are one tensor whose rows are spread evenly, as by a good placement.
    weight = build.weight("tables", (tables, ("rows", sum(net.rows) / net.tables), dim), dp="tables")
    read = math.prod(size for _, size in picks) * net.dim / mesh["dp"] * build.item_bytes
    (pooled,) = build.operator(
        "lookup",
        "embedding",
        [indices],
        [("pooled", (batch, tables, dim))],
        want=by_table,
        weights=[weight],
        saves=[indices],
        bytes_read=read + build.bytes(indices),
    )
    at = build.input("dense", (batch, ("in", net.dense_features)), cut, role="data")
    at = _mlp(build, net, "bottom", at, cut)
    vectors = net.tables + 1
    rows = batch[1] / mesh["dp"]
    (crossed,) = build.operator(
        "interaction",
        "matmul",
        [at, pooled],
        [("crossed", (batch, ("in", net.interactions)))],
        want=cut,
        saves=[at, pooled],
        shape=(vectors, vectors, net.dim, rows),
    )
    at = _mlp(build, net, "top", crossed, cut)
    (loss,) = build.operator("loss", "cross_entropy", [at], [("loss", (batch,))], saves=[at], item_bytes=4)
    build.output(loss, cut)
    return build.graph()


def _mlp(build: Builder, net: Recommender, part: str, at: str, cut: Sharding) -> str:
    for name, width_in, width_out in net.layers:
        if not name.startswith(part):
            continue
        inner, outer = build.tensors[at].dims[-1][0], f"{name}_out"
        weight = build.weight(f"{name}.weight", ((inner, width_in), (outer, width_out)))
        bias = build.weight(f"{name}.bias", ((outer, width_out),))
        dims: Dims = (build.tensors[at].dims[0], (outer, width_out))
        (output,) = build.matmul(name, at, [weight], [(name, dims)], want=cut, bias=[bias])
        (at,) = build.operator(
            f"{name}.relu", "elementwise", [output], [(f"{name}.relu", dims)], saves=[f"{name}.relu"]
        )
    return at
