"""The graph of a whole model: what stands at each pipeline stage, and what goes between stages.

Blocks that are the same are one graph, however many there are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from choreo.workload.graph.graph import Collective, Graph
from choreo.workload.graph.layout import Layout, reshard
from choreo.workload.model import Model
from choreo.workload.plan import Plan, stage_layers
from choreo.workload.graph.transformer import embedding_graph, head_graph, layer_graph

__all__ = ["ModelGraph", "model_graph"]


@dataclass(frozen=True, slots=True, eq=False)
class ModelGraph:
    """Forward graphs of one micro-batch, at one rank of each stage."""

    model: Model
    plan: Plan
    seq: int
    embedding: Graph  # in front of the first layer
    layers: tuple[Graph, ...]  # one a layer; those that are alike are the same object
    head: Graph  # behind the last layer
    stages: tuple[tuple[int, ...], ...]  # layers by virtual stage, in order of the data
    boundary: Collective | None  # activations from one stage to the next; backward their gradients go the other way
    ends: Collective | None  # gradients of a tied embedding, between the first stage and the last

    def graphs(self, stage: int) -> tuple[Graph, ...]:
        """What a virtual stage runs, in order."""
        found = [self.layers[layer] for layer in self.stages[stage]]
        if stage == 0:
            found.insert(0, self.embedding)
        if stage == len(self.stages) - 1:
            found.append(self.head)
        return tuple(found)

    def parameters(self, stage: int) -> float:
        """Parameters that a rank of a virtual stage has; the last has its own copy of a tied embedding."""
        total = sum(graph.parameters for graph in self.graphs(stage))
        if 0 < stage == len(self.stages) - 1:
            total += self.head.tied_parameters
        return total


def model_graph(
    model: Model,
    plan: Plan,
    seq: int,
    *,
    flash: bool = True,
    dropout: bool | None = None,
    context: str = "all_gather",
    regather: bool = True,
) -> ModelGraph:
    """The graphs of all parts of a model under a plan."""
    layers = tuple(
        layer_graph(model, plan, seq, layer, flash=flash, dropout=dropout, context=context, regather=regather)
        for layer in range(model.layers)
    )
    embedding = embedding_graph(model, plan, seq, dropout=dropout)
    head = head_graph(model, plan, seq, regather=regather)
    first = layers[0]
    return ModelGraph(
        model,
        plan,
        seq,
        embedding,
        layers,
        head,
        stage_layers(model.layers, plan.pp, plan.interleave),
        _boundary(first) if plan.pp > 1 else None,
        _ends(embedding) if plan.pp > 1 and model.tied_embeddings else None,
    )


def _boundary(layer: Graph) -> Collective:
    """What the rule says of a tensor that is made at one stage and used at the next."""
    tensor = layer.tensors[layer.inputs[0]]
    (move,) = reshard(tensor.layout, Layout(tensor.layout.states, tensor.layout.stage + 1))
    return Collective("boundary", move.kind, move.axes, 2, tensor.bytes(layer.mesh), tensor.name)


def _ends(embedding: Graph) -> Collective:
    """A table that is at two stages: each has a term of its gradient, and both want the sum."""
    table = embedding.tensors["token_embedding"]
    (move,) = reshard(table.layout.but({"pp": "+"}), table.layout)
    size = math.prod(size for _, size in table.dims) / embedding.mesh["tp"] * table.item_bytes
    return Collective("tied_embedding", move.kind, move.axes, 2, size, table.name, phase="gradient")
