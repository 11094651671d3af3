"""The backward pass, derived from the forward graph.

A product by weights becomes two: one for the gradient of its input (dgrad) and one for that of its weights (wgrad). A
memory-bound operator reads its saved tensors and the gradients of its outputs. Collectives are found by the same rule
as forward: a gradient leaves an operator in the dual of the sharding its input was used in, and must arrive in the dual
of the sharding it was made in. What was kept in parts is gathered again.
"""

from __future__ import annotations

import math
from functools import lru_cache

from choreo.workload.graph.graph import CollectiveOp, Graph, Operator
from choreo.workload.graph.sharding import Sharding, Tensor, dual, reshard

__all__ = ["backward_graph"]

# Ratio of matrix products in the fused kernel, backward to forward: the scores again and four gradients, to two.
ATTENTION_BACKWARD = 2.5
NO_GRADIENT = frozenset({"data", "mask", "state"})


@lru_cache(maxsize=256)
def backward_graph(graph: Graph) -> Graph:
    """The backward pass of a forward graph, for one micro-batch, at one rank.

    >>> from choreo.workload import Plan, get_model, layer_graph
    >>> forward = layer_graph(get_model("llama3-8b"), Plan(tp=8), seq=4096)
    >>> [(node.kind, node.axes) for node in backward_graph(forward).collectives]
    [('all_reduce', ('tp',)), ('all_reduce', ('tp',))]
    """
    tape = _Tape(graph)
    for name in graph.outputs:
        sharding = dual(graph.tensors[name].sharding)
        tape.give(tape.root(name), sharding, tape.add(f"d({name})", graph.tensors[name], sharding))
    entering = tuple(tape.tensors)
    for node in reversed(graph.nodes):
        if isinstance(node, CollectiveOp) or node.kind == "slice":
            continue
        gradients = [tape.collect(name) for name in node.outputs if name in tape.waiting]
        tape.flush()
        if gradients:
            _differentiate(tape, node, gradients)
    leaving = tuple(tape.collect(name) for name in graph.inputs if name in tape.waiting)
    tape.flush()
    tensors = {**graph.tensors, **tape.tensors}
    return Graph(f"{graph.name}_backward", tuple(tape.nodes), tensors, graph.mesh, entering, leaving)


class _Tape:
    """The backward pass so far, and the gradients that wait to be summed: by tensor, then by sharding."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Operator | CollectiveOp] = []
        self.tensors: dict[str, Tensor] = {}
        self.waiting: dict[str, dict[Sharding, list[str]]] = {}
        self.late: list[Operator] = []  # wgrads: nothing waits for them, so they are deferred
        self._roots: dict[str, str] = {}
        self._how = {node.tensor: node.how for node in graph.collectives if node.how}
        for node in graph.nodes:
            if isinstance(node, CollectiveOp) or node.kind == "slice":
                self._roots[node.outputs[0]] = self.root(node.inputs[0])

    def root(self, name: str) -> str:
        """The tensor as an operator made it, before it was resharded."""
        return self._roots.get(name, name)

    def tensor(self, name: str) -> Tensor:
        """A tensor of either pass."""
        return self.tensors[name] if name in self.tensors else self.graph.tensors[name]

    def bytes(self, *names: str) -> float:
        """Bytes of tensors of either pass."""
        return sum(self.tensor(name).bytes(self.graph.mesh) for name in names)

    def add(self, name: str, like: Tensor, sharding: Sharding) -> str:
        """A new tensor of the same dims."""
        while name in self.tensors:
            name += "'"
        self.tensors[name] = Tensor(name, like.dims, sharding, like.item_bytes)
        return name

    def moved(self, at: str, after: Sharding, name: str) -> str:
        """A tensor brought to another sharding."""
        mesh, tensor = self.graph.mesh, self.tensor(at)
        root = self.root(name)
        for move in reshard(tensor.sharding, after):
            resharded = self.add(f"{at if at in self.tensors else name}:{move.kind}", tensor, move.after)
            size = tensor.bytes(mesh, move.after if move.kind == "all_gather" else move.before)
            ranks = math.prod(mesh[axis] for axis in move.axes)
            how = self._how.get(root, "")
            self.nodes.append(
                CollectiveOp(resharded, move.kind, move.axes, ranks, size, root, (at,), (resharded,), "backward", how)
            )
            at = resharded
        return at

    def kept(self, node: Operator, index: int) -> str:
        """An input as an operator used it, gathered again if only a part was kept."""
        used = node.inputs[index]
        if used in node.saves:
            return used
        root = self.root(used)
        part = next((name for name in node.saves if self.root(name) == root), used)
        return self.moved(part, node.needs[index], part)

    def give(self, root: str, sharding: Sharding, gradient: str) -> None:
        """Add a gradient of a tensor, to be summed with the others."""
        self.waiting.setdefault(root, {}).setdefault(sharding, []).append(gradient)

    def collect(self, name: str) -> str:
        """The gradient of a tensor, summed over its uses, in the sharding of the operator that made it."""
        wanted = dual(self.graph.tensors[name].sharding)
        parts = [
            self.moved(self._sum(name, sharding, gradients), wanted, name)
            for sharding, gradients in self.waiting.pop(name).items()
        ]
        return self._sum(name, wanted, parts)

    def _sum(self, name: str, sharding: Sharding, gradients: list[str]) -> str:
        if len(gradients) == 1:
            return gradients[0]
        total = self.add(f"d({name}):sum", self.graph.tensors[name], sharding)
        read, written = self.bytes(*gradients), self.bytes(total)
        self.nodes.append(
            Operator(
                total,
                "elementwise",
                tuple(gradients),
                (total,),
                phase="dgrad",
                bytes_read=read,
                bytes_written=written,
                sums=True,
            )
        )
        return total

    def flush(self) -> None:
        """Append the deferred wgrads."""
        self.nodes += self.late
        self.late.clear()

    def gradient_of(self, node: Operator, index: int) -> str | None:
        """A tensor for the gradient of an input; None if the input needs no gradient."""
        used = node.inputs[index]
        tensor = self.graph.tensors[used]
        if tensor.role in NO_GRADIENT:
            return None
        sharding = dual(node.needs[index], node.divided)
        root = self.root(used)
        gradient = self.add(f"d({root})", tensor, sharding)
        self.give(root, sharding, gradient)
        return gradient

    def weight_gradients(self, node: Operator) -> tuple[str, ...]:
        """Tensors for the gradients of its weights: terms of a sum over every axis that divides the work."""
        weights = (self.graph.tensors[name] for name in node.weights)
        return tuple(self.add(f"d({weight.name})", weight, dual(weight.sharding, node.divided)) for weight in weights)


def _differentiate(tape: _Tape, node: Operator, gradients: list[str]) -> None:
    if node.kind == "matmul" and node.weights:
        _product_by_weights(tape, node, gradients)
    elif node.kind == "matmul":
        _product(tape, node, gradients)
    elif node.kind == "embedding":
        weights = tape.weight_gradients(node)
        moved = tape.bytes(*gradients)
        tape.late.append(_like(node, "wgrad", gradients, weights, bytes_read=2 * moved, bytes_written=moved))
    elif node.sums:
        _pass_through(tape, node, gradients)
    else:
        _other(tape, node, gradients)


def _like(
    node: Operator,
    phase: str,
    inputs: list[str],
    outputs: tuple[str, ...],
    shape: tuple[float, float, float] = (0, 0, 0),
    *,
    flops: float = 0.0,
    bytes_read: float,
    bytes_written: float,
) -> Operator:
    """An operator of the backward pass: name and kind are those of the forward one."""
    m, n, k = shape
    return Operator(
        f"{node.name}.{phase}",
        node.kind,
        tuple(inputs),
        outputs,
        node.weights if phase == "wgrad" or node.kind != "matmul" else (),
        phase,
        flops,
        bytes_read,
        bytes_written,
        m,
        n,
        k,
        node.count,
        node.batch,
        node.heads,
        node.kv_heads,
        node.causal,
        parts=node.parts,
    )


def _product_by_weights(tape: _Tape, node: Operator, gradients: list[str]) -> None:
    used = tape.kept(node, 0)
    coming = tape.bytes(*gradients)
    weighing = tape.bytes(*node.weights)
    if output := tape.gradient_of(node, 0):
        shape = (node.m, node.k, node.n)
        tape.nodes.append(
            _like(
                node,
                "dgrad",
                gradients,
                (output,),
                shape,
                flops=node.flops,
                bytes_read=coming + weighing,
                bytes_written=tape.bytes(output),
            )
        )
    tape.late.append(
        _like(
            node,
            "wgrad",
            [used, *gradients],
            tape.weight_gradients(node),
            (node.k, node.n, node.m),
            flops=node.flops,
            bytes_read=tape.bytes(used) + coming,
            bytes_written=weighing,
        )
    )


def _product(tape: _Tape, node: Operator, gradients: list[str]) -> None:
    """A product of two activations: the gradient of each is a product with the other."""
    used = [tape.kept(node, 0), tape.kept(node, 1)]
    coming = tape.bytes(*gradients)
    for index, shape in ((0, (node.m, node.k, node.n)), (1, (node.k, node.n, node.m))):
        if output := tape.gradient_of(node, index):
            other = used[1 - index]
            tape.nodes.append(
                _like(
                    node,
                    "dgrad",
                    [*gradients, other],
                    (output,),
                    shape,
                    flops=node.flops,
                    bytes_read=coming + tape.bytes(other),
                    bytes_written=tape.bytes(output),
                )
            )


def _pass_through(tape: _Tape, node: Operator, gradients: list[str]) -> None:
    """The gradient of a sum is that of each term; that of a bias is a sum over tokens."""
    (gradient,) = gradients
    sharding = tape.tensor(gradient).sharding
    for used in node.inputs:
        if tape.graph.tensors[used].role not in NO_GRADIENT:
            tape.give(tape.root(used), sharding, gradient)
    if node.weights:
        outputs = tape.weight_gradients(node)
        tape.late.append(
            _like(
                node,
                "wgrad",
                gradients,
                outputs,
                bytes_read=tape.bytes(gradient),
                bytes_written=tape.bytes(*node.weights),
            )
        )


def _other(tape: _Tape, node: Operator, gradients: list[str]) -> None:
    """Memory-bound operators and fused attention read saved tensors and gradients, and write gradients."""
    kept = []
    for save in node.saves:
        index = next((i for i, used in enumerate(node.inputs) if tape.root(used) == tape.root(save)), None)
        kept.append(save if index is None else tape.kept(node, index))
    outputs = tuple(name for index in range(len(node.inputs)) if (name := tape.gradient_of(node, index)) is not None)
    weights = tape.weight_gradients(node)
    attention = node.kind == "attention"
    tape.nodes.append(
        _like(
            node,
            "dgrad",
            [*gradients, *kept],
            (*outputs, *weights),
            (node.m, node.n, node.k) if attention else (0, 0, 0),
            flops=ATTENTION_BACKWARD * node.flops if attention else 0.0,
            bytes_read=tape.bytes(*gradients, *kept),
            bytes_written=tape.bytes(*outputs, *weights),
        )
    )
