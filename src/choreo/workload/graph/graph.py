"""The dataflow graph: operators with FLOPs and bytes, tensors on edges, and the collectives between them.

All sizes are those of one rank. Nodes are in an order in which they can run. A node waits for the nodes that make its
inputs, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from choreo.workload.graph.sharding import Sharding, Tensor

__all__ = ["CollectiveOp", "Graph", "Operator"]


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator at one rank.

    A "matmul" is `count` products of m × k by k × n. "attention" is the fused kernel: `batch` × `heads` of m queries
    by n keys of k features. "embedding" reads rows of a table. Other kinds are memory-bound.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: tuple[str, ...] = ()
    phase: str = "forward"  # "forward", "recompute", "dgrad" or "wgrad"
    flops: float = 0.0  # of matrix products; causal attention is counted in full
    bytes_read: float = 0.0
    bytes_written: float = 0.0
    m: float = 0.0
    n: float = 0.0
    k: float = 0.0
    count: float = 1.0
    batch: float = 0.0
    heads: float = 0.0
    kv_heads: float = 0.0
    causal: bool = False
    saves: tuple[str, ...] = ()  # tensors kept for the backward pass
    needs: tuple[Sharding, ...] = ()  # the sharding each input is used in
    divided: frozenset[str] = frozenset()  # axes over which ranks do different parts of this work
    sums: bool = False  # it adds its inputs, so that gradients pass through as they are
    parts: tuple[str, ...] = ()  # what was fused into it

    @property
    def bytes_moved(self) -> float:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True, slots=True)
class CollectiveOp:
    """A collective between two shardings of a tensor; `size_bytes` as nccl-tests counts it.

    That is the whole vector for all_reduce, all_gather and reduce_scatter, and what one rank sends for all_to_all and
    send. `how` is "ring" if parts travel round a ring while attention works on those that have arrived.
    """

    name: str
    kind: str
    axes: tuple[str, ...]
    ranks: int
    size_bytes: float
    tensor: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    phase: str = "forward"
    how: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Nodes in order, their tensors by name, and the mesh of axes they are cut over."""

    name: str
    nodes: tuple[Operator | CollectiveOp, ...]
    tensors: Mapping[str, Tensor]
    mesh: Mapping[str, int]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    @property
    def operators(self) -> tuple[Operator, ...]:
        """Nodes that compute."""
        return tuple(node for node in self.nodes if isinstance(node, Operator))

    @property
    def collectives(self) -> tuple[CollectiveOp, ...]:
        """Nodes that communicate."""
        return tuple(node for node in self.nodes if isinstance(node, CollectiveOp))

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """Its parameters, without tied ones, which another graph has."""
        return tuple(tensor for tensor in self.tensors.values() if tensor.role == "weight")

    @property
    def flops(self) -> float:
        """FLOPs of matrix products at one rank; causal attention in full."""
        return sum(node.flops for node in self.operators)

    @property
    def bytes_moved(self) -> float:
        """Bytes that its operators read and write."""
        return sum(node.bytes_moved for node in self.operators)

    @property
    def parameters(self) -> float:
        """Parameters that one rank computes with, before ZeRO shards them over dp."""
        return sum(tensor.elements(self.mesh) for tensor in self.weights)

    @property
    def expert_parameters(self) -> float:
        """Parameters of experts, which have replicas along "edp" only."""
        return sum(tensor.elements(self.mesh) for tensor in self.weights if tensor.has("experts"))

    def bytes_of(self, names: Iterable[str]) -> float:
        """Bytes of some tensors at one rank."""
        return sum(self.tensors[name].bytes(self.mesh) for name in names)

    def saved(self, recompute: str = "none") -> tuple[str, ...]:
        """Tensors kept from the forward pass for the backward pass, each once."""
        if recompute == "full":
            return self.inputs
        core = self.core_attention if recompute == "selective" else ()
        inner = {name for node in core for name in node.outputs}
        kept: dict[str, None] = {}
        for node in self.operators:
            if node in core:  # it is recomputed from its inputs
                kept |= dict.fromkeys(name for name in node.saves if name in node.inputs and name not in inner)
            else:
                kept |= dict.fromkeys(node.saves)
        return tuple(kept)

    def saved_bytes(self, recompute: str = "none") -> float:
        """Bytes kept for the backward pass of one micro-batch."""
        return self.bytes_of(self.saved(recompute))

    @property
    def core_attention(self) -> tuple[Operator, ...]:
        """The operators of attention between queries, keys and values and its output, if no kernel fuses them."""
        return tuple(node for node in self.operators if node.name.startswith("core_"))
