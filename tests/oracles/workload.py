"""Run a block's graph on arrays, every rank of the mesh: its own pieces, its own operators, real collectives.

Slow and obvious. Attention looks at all keys, not only earlier ones; nothing else is simplified.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from choreo.workload import CollectiveOp, Graph, Model, Operator, Tensor

Array = npt.NDArray[np.float64]
Rank = tuple[int, ...]


def mesh_of(graph: Graph) -> dict[str, int]:
    """The axes that cut a dense block, from the innermost."""
    return {axis: graph.mesh[axis] for axis in ("tp", "cp", "dp")}


def ranks_of(graph: Graph) -> list[Rank]:
    """Coordinates along them."""
    return list(itertools.product(*(range(size) for size in mesh_of(graph).values())))


def piece(whole: Array, tensor: Tensor, mesh: Mapping[str, int], rank: Rank) -> Array:
    """What a rank has of a tensor: a dim that several axes cut is cut by the outermost first."""
    names = [name for name, _ in tensor.dims]
    for axis, here in reversed(list(zip(mesh, rank, strict=True))):
        state = tensor.sharding.along(axis)
        if state is not None:
            whole = np.array_split(whole, mesh[axis], axis=names.index(state))[here]
    return whole


def run_block(graph: Graph, model: Model, given: Mapping[str, Array]) -> dict[Rank, Array]:
    """What leaves the block at each rank; `given` are the whole input and the whole weights by name."""
    mesh, ranks = mesh_of(graph), ranks_of(graph)
    held: dict[Rank, dict[str, Array]] = {
        rank: {name: piece(whole, graph.tensors[name], mesh, rank) for name, whole in given.items()} for rank in ranks
    }
    for node in graph.nodes:
        if isinstance(node, CollectiveOp):
            made = {rank: _sent(graph, node, held, rank) for rank in ranks}
            for rank in ranks:
                held[rank][node.outputs[0]] = made[rank]
        else:
            for rank in ranks:
                results = _computed(node, model, held[rank])
                held[rank] |= dict(zip(node.outputs, results, strict=True))
    return {rank: held[rank][graph.outputs[0]] for rank in ranks}


def _sent(graph: Graph, node: CollectiveOp, held: dict[Rank, dict[str, Array]], rank: Rank) -> Array:
    axes = [list(mesh_of(graph)).index(axis) for axis in node.axes]
    others = [other for other in held if all(other[i] == rank[i] for i in range(len(rank)) if i not in axes)]
    others.sort(key=lambda other: tuple(other[i] for i in reversed(axes)))
    parts = [held[other][node.inputs[0]] for other in others]
    mine = others.index(rank)
    before, after = _dim(graph, node.inputs[0], node), _dim(graph, node.outputs[0], node)
    total: Array = sum(parts[1:], start=parts[0]) if node.kind in ("all_reduce", "reduce_scatter") else np.zeros(0)
    if node.kind == "all_reduce":
        return total
    if node.kind == "reduce_scatter":
        return np.array_split(total, len(others), axis=after)[mine]
    if node.kind == "all_gather":
        return np.concatenate(parts, axis=before)
    assert node.kind == "all_to_all"
    return np.concatenate([np.array_split(part, len(others), axis=after)[mine] for part in parts], axis=before)


def _dim(graph: Graph, name: str, node: CollectiveOp) -> int:
    tensor = graph.tensors[name]
    state = tensor.sharding.along(node.axes[0])
    return next((i for i, (dim, _) in enumerate(tensor.dims) if dim == state), -1)


def _computed(node: Operator, model: Model, held: dict[str, Array]) -> list[Array]:
    inputs = [held[name] for name in node.inputs]
    weights = [held[name] for name in node.weights]
    if node.kind == "norm":
        scale = 1 / np.sqrt((inputs[0] ** 2).mean(axis=-1, keepdims=True))
        return [inputs[0] * scale * weights[0]]
    if node.kind == "matmul" and weights:
        matrices = [weight for weight in weights if weight.ndim == 2]
        biases = [weight for weight in weights if weight.ndim == 1] or [np.zeros(1)] * len(matrices)
        return [inputs[0] @ matrix + bias for matrix, bias in zip(matrices, biases, strict=True)]
    if node.kind == "attention":
        queries, keys, values = inputs
        return [_attention(queries, keys, values, model.head_dim)]
    if node.name.endswith("_activation"):
        return [inputs[0] / (1 + np.exp(-inputs[0]))]
    if node.name.endswith("_multiply"):
        return [inputs[0] * inputs[1]]
    assert node.sums, node.name
    return [sum((*inputs, *weights), start=np.zeros(1))]


def _attention(queries: Array, keys: Array, values: Array, width: int) -> Array:
    def by_head(x: Array) -> Array:
        return x.reshape(*x.shape[:2], -1, width).transpose(0, 2, 1, 3)

    q, k, v = by_head(queries), by_head(keys), by_head(values)
    each = q.shape[1] // k.shape[1]
    scores = np.exp(q @ np.repeat(k, each, axis=1).transpose(0, 1, 3, 2) / np.sqrt(width))
    mixed = scores / scores.sum(axis=-1, keepdims=True) @ np.repeat(v, each, axis=1)
    found: Array = mixed.transpose(0, 2, 1, 3).reshape(queries.shape)
    return found
