"""What a program keeps of a layer for the backward pass, and what it recomputes.

"full" keeps the layer's input and recomputes everything, or as much as the backward pass needs. Megatron's "selective"
recomputes core attention: with fused attention that is one kernel, whose result is small and is kept anyway.
torchtitan's goes by operation: fused attention and every other matmul are kept, everything between is recomputed.
Megatron can also be told which modules to recompute: their outputs are dropped, their inputs are kept. A compiler also
recomputes what only memory-bound operators need, if it can be recomputed from tensors that are kept anyway.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from choreo.plan.software import Style
from choreo.workload import Graph, Operator
from choreo.workload.graph.graph import CollectiveOp
from choreo.workload.plan import WIDE

__all__ = ["Recomputed", "recomputed"]

CHEAP = ("norm", "elementwise")
EIGHT_BITS = ("fp8", "fp4")


@dataclass(frozen=True, slots=True)
class Recomputed:
    """Bytes kept, and the nodes that run again; a matmul may run again in part."""

    saved_bytes: float
    nodes: tuple[Operator | CollectiveOp, ...]


def recomputed(
    graph: Graph, recompute: str, style: Style, precision: str = "bf16", modules: tuple[str, ...] = ()
) -> Recomputed:
    """What one layer keeps and recomputes; `modules` are those of Megatron's selective recomputation."""
    if recompute == "selective" and style.selective == "op":
        return _by_operation(graph, style)
    if recompute == "full":
        again = graph.nodes if style.recomputes_all else _needed(graph)
        return Recomputed(_bytes(graph, set(graph.saved("full")), style), again)
    nodes: tuple[Operator | CollectiveOp, ...] = ()
    names = set(graph.saved("none" if modules else recompute))
    if modules:
        nodes = tuple(node for node in graph.nodes if _modules(node, graph) & set(modules))
        names = _without(graph, names, nodes)
    elif recompute == "selective":
        nodes = graph.core_attention or tuple(op for op in graph.operators if op.kind == "attention")
    if style.fusion == "compiler":
        names = _without_cheap(graph, names)
    saved = _bytes(graph, names, style)
    if precision in EIGHT_BITS and style.fusion == "hand":
        # A linear layer keeps what it quantised, one byte per element, where no other operator needs the original.
        wanted = {name for op in graph.operators if not (op.kind == "matmul" and op.weights) for name in op.saves}
        linear = {name for op in graph.operators if op.kind == "matmul" and op.weights for name in op.saves}
        saved -= graph.bytes_of((linear & names) - wanted) / 2
    if style.stored_bytes == 1 and precision not in WIDE:
        stored = {name for op in graph.operators if "_activation" in op.name for name in op.saves}
        saved -= graph.bytes_of(stored & names) / 2
    return Recomputed(saved, nodes)


def _modules(node: Operator | CollectiveOp, graph: Graph) -> frozenset[str]:
    """The Megatron modules that a node belongs to.

    A norm before a linear layer is part of that layer's kernel; only those before latent attention and before experts
    are modules.
    """
    name = node.tensor if isinstance(node, CollectiveOp) else node.name
    latent, moe = "kv_down" in graph.tensors, "dispatched" in graph.tensors
    found = {
        "core_attn": name == "attention" or name.startswith("core_"),
        "layernorm": (latent and name.startswith("attention_norm")) or (moe and name.startswith("mlp_norm")),
        "mla_up_proj": latent and (name in ("query", "kv", "rotary") or name.endswith("_down_norm")),
        "moe_act": name.startswith("expert_activation"),
        "shared_experts": name.startswith("shared_"),
        "moe": name.startswith(("router", "routes", "dispatch", "expert_", "combine", "shared_")),
        "mlp": name.startswith(("mlp_up", "mlp_activation", "mlp_down")),
    }
    return frozenset(module for module, inside in found.items() if inside)


def _without(graph: Graph, names: set[str], nodes: tuple[Operator | CollectiveOp, ...]) -> set[str]:
    """Drop the outputs of some nodes, and keep their inputs."""
    made = {name for node in nodes for name in node.outputs}
    made |= {name for node in nodes if isinstance(node, Operator) for name in node.saves if name not in node.inputs}
    given = {
        name for node in nodes for name in node.inputs if name not in made and graph.tensors[name].role == "activation"
    }
    return (names - made) | given


def _needed(graph: Graph) -> tuple[Operator | CollectiveOp, ...]:
    """The nodes up to the last one that keeps something for the backward pass; a matmul keeps only its inputs."""
    last = max((at for at, node in enumerate(graph.nodes) if isinstance(node, Operator) and node.saves), default=-1)
    node = graph.nodes[last]
    return graph.nodes[: last + (isinstance(node, Operator) and node.kind != "matmul")]


def _bytes(graph: Graph, names: set[str], style: Style) -> float:
    total = 0.0
    for name in names:
        stream = name == graph.inputs[0] or name.endswith("_residual")
        wide = stream and graph.tensors[name].role == "activation"
        total += graph.bytes_of([name]) * (
            max(1.0, style.stream_bytes / graph.tensors[name].item_bytes) if wide else 1.0
        )
    return total


def _without_cheap(graph: Graph, names: set[str]) -> set[str]:
    """Drop tensors that only memory-bound operators need and that can be recomputed from the others."""
    made_by = {name: op for op in graph.operators for name in op.outputs}
    wanted = {name for op in graph.operators if op.kind not in CHEAP for name in op.saves}
    kept = set(names)
    for name in names - wanted:
        op = made_by.get(name)
        if op is not None and op.kind in CHEAP and _remade(op, kept, made_by):
            kept.discard(name)
    return kept


def _remade(op: Operator, kept: set[str], made_by: dict[str, Operator]) -> bool:
    """Whether all its inputs are kept or can be recomputed."""
    for given in op.inputs:
        maker = made_by.get(given)
        if given in kept:
            continue
        if maker is None or maker.kind not in CHEAP or not _remade(maker, kept, made_by):
            return False
    return True


def _by_operation(graph: Graph, style: Style) -> Recomputed:
    names = {graph.inputs[0]}
    saved, count = 0.0, 0
    nodes: list[Operator | CollectiveOp] = []
    # A compiler keeps nothing that the backward pass does not need, such as the output of the last matmul.
    for node in _needed(graph) if style.fusion == "compiler" else graph.nodes:
        if isinstance(node, CollectiveOp):
            nodes.append(node)
            continue
        if node.kind == "attention":
            names |= {*node.outputs, *(name for name in node.saves if graph.tensors[name].role == "state")}
            continue
        if node.kind != "matmul" or not node.weights:
            nodes.append(node)
            continue
        # One matmul for each weight, as the program has them; every other one is kept.
        sizes = [graph.tensors[name].elements(graph.mesh) for name in node.weights if not name.endswith(".bias")]
        again = 0.0
        for size in sizes:
            count += 1
            again += size if count % 2 == 0 else 0.0
        share = again / sum(sizes)
        saved += (1 - share) * graph.bytes_of(node.outputs)
        if share:
            nodes.append(replace(node, n=node.n * share, flops=node.flops * share))
    return Recomputed(saved + _bytes(graph, names, style), tuple(nodes))
