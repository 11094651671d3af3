"""Fusion: neighbouring memory-bound operators become one, which neither writes nor reads the tensors between them.

Those tensors are not kept for the backward pass either: they are computed again from the inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

from choreo.errors import UsageError
from choreo.workload.graph.graph import CollectiveOp, Graph, Operator

__all__ = ["FUSABLE", "fuse"]

FUSABLE = ("norm", "softmax", "dropout", "elementwise")  # a merged operator has the first of these kinds that is in it


@dataclass(slots=True)
class _Group:
    """Nodes that become one, and their place in the order."""

    members: list[Operator | CollectiveOp]
    at: int
    made: set[str] = field(default_factory=set)


@lru_cache(maxsize=256)
def fuse(graph: Graph, kinds: tuple[str, ...] = FUSABLE) -> Graph:
    """The same graph with neighbouring memory-bound operators of some kinds merged.

    >>> from choreo.workload import Plan, get_model, layer_graph
    >>> graph = layer_graph(get_model("llama3-8b"), Plan(), seq=4096)
    >>> [node.name for node in fuse(graph).operators if node.parts]
    ['attention_residual+mlp_norm', 'mlp_activation+mlp_multiply']
    """
    if unknown := [kind for kind in kinds if kind not in FUSABLE]:
        raise UsageError(f"operators of kind {unknown[0]!r} cannot be fused; those of kind {', '.join(FUSABLE)} can")
    groups: list[_Group] = []
    home: dict[str, _Group] = {}  # the group that makes a tensor
    for index, node in enumerate(graph.nodes):
        group = _partner(graph, node, kinds, home, index)
        if group is None:
            group = _Group([], index)
            groups.append(group)
        group.members.append(node)
        group.at = index
        for name in node.outputs:
            group.made.add(name)
            home[name] = group
    groups.sort(key=lambda group: group.at)
    users: dict[str, set[int]] = {}
    for number, group in enumerate(groups):
        for node in group.members:
            for name in (*node.inputs, *(node.saves if isinstance(node, Operator) else ())):
                users.setdefault(name, set()).add(number)
    nodes = tuple(
        group.members[0] if len(group.members) == 1 else _merged(graph, group, number, users)
        for number, group in enumerate(groups)
    )
    return Graph(graph.name, nodes, graph.tensors, graph.mesh, graph.inputs, graph.outputs)


def _partner(
    graph: Graph, node: Operator | CollectiveOp, kinds: tuple[str, ...], home: dict[str, _Group], index: int
) -> _Group | None:
    """A group that makes one of its inputs, and whose outputs nothing in between reads."""
    if isinstance(node, CollectiveOp) or node.kind not in kinds:
        return None
    size = graph.tensors[node.outputs[0]].elements(graph.mesh)
    for name in node.inputs:
        group = home.get(name)
        if group is None or not _fusable(group, kinds) or graph.tensors[name].elements(graph.mesh) != size:
            continue
        between = graph.nodes[group.at + 1 : index]
        if not any(name in group.made for other in between for name in other.inputs):
            return group
    return None


def _fusable(group: _Group, kinds: tuple[str, ...]) -> bool:
    return all(isinstance(member, Operator) and member.kind in kinds for member in group.members)


def _merged(graph: Graph, group: _Group, number: int, users: dict[str, set[int]]) -> Operator:
    members = [member for member in group.members if isinstance(member, Operator)]
    inside = group.made
    needs = {name: need for member in members for name, need in zip(member.inputs, member.needs, strict=False)}
    inputs = tuple(dict.fromkeys(name for member in members for name in member.inputs if name not in inside))
    outputs = tuple(
        name
        for member in members
        for name in member.outputs
        if name in graph.outputs or users.get(name, set()) - {number} or name not in users
    )
    hidden = inside - set(outputs)
    sources = {name: member for member in members for name in member.outputs}
    saves: dict[str, None] = {}
    for member in members:
        for name in member.saves:
            saves |= dict.fromkeys(_basis(name, hidden, sources))
    states = [name for name in saves if name not in inputs and name not in inside]
    weights = tuple(dict.fromkeys(name for member in members for name in member.weights))
    first = members[0]
    return replace(
        first,
        name="+".join(member.name for member in members),
        kind=next(kind for kind in FUSABLE if any(member.kind == kind for member in members)),
        inputs=inputs,
        outputs=outputs,
        weights=weights,
        bytes_read=graph.bytes_of((*inputs, *weights)),
        bytes_written=graph.bytes_of((*outputs, *states)),
        saves=tuple(saves),
        needs=tuple(needs[name] for name in inputs) if all(member.needs for member in members) else (),
        divided=frozenset().union(*(member.divided for member in members)),
        sums=all(member.sums for member in members),
        parts=tuple(part for member in members for part in member.parts or (member.name,)),
    )


def _basis(name: str, hidden: set[str], sources: dict[str, Operator]) -> list[str]:
    """The tensors that must be kept to recompute a tensor: itself, or its inputs if it is hidden in the group."""
    if name not in hidden:
        return [name]
    return [basis for given in sources[name].inputs for basis in _basis(given, hidden, sources)]
