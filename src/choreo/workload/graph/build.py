"""Build a graph operator by operator, and insert the collectives that the shardings require.

An operator names the sharding of its inputs and how its weights are cut. From these follow the sharding of its outputs
and the sizes at one rank. Where an input was made in another sharding, collectives go in front of the operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from choreo.workload.graph.graph import CollectiveOp, Graph, Operator
from choreo.workload.graph.sharding import Sharding, Tensor, propagate, reshard

__all__ = ["Builder", "Dims"]

Dims = tuple[tuple[str, float], ...]


class Builder:
    """A graph that grows. With `regather` only a rank's part of a gathered tensor is kept for the backward pass."""

    def __init__(self, name: str, mesh: Mapping[str, int], item_bytes: float, *, regather: bool = True) -> None:
        self.name = name
        self.mesh = dict(mesh)
        self.item_bytes = item_bytes
        self.regather = regather
        self.nodes: list[Operator | CollectiveOp] = []
        self.tensors: dict[str, Tensor] = {}
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        # By tensor and sharding: the resharded tensor, and the tensor to keep for the backward pass.
        self._bytes: dict[str, float] = {}
        self._resharded: dict[tuple[str, Sharding], tuple[str, str]] = {}

    def input(
        self, name: str, dims: Dims, sharding: Sharding, *, role: str = "activation", item_bytes: float = 0
    ) -> str:
        """An input of the graph."""
        self.inputs.append(name)
        return self._add(Tensor(name, dims, sharding, item_bytes or self.item_bytes, role))

    def weight(self, name: str, dims: Dims, *, role: str = "weight", **cuts: str) -> str:
        """A parameter and its cuts: `tp="heads"`."""
        sharding = Sharding(tuple(sorted((axis, dim) for axis, dim in cuts.items() if self.mesh[axis] > 1)))
        return self._add(Tensor(name, dims, sharding, self.item_bytes, role))

    def state(self, name: str, dims: Dims, sharding: Sharding, item_bytes: float, role: str = "state") -> str:
        """A tensor for the operator's own backward pass: a mask, the statistics of a norm."""
        return self._add(Tensor(name, dims, sharding, item_bytes, role))

    def _add(self, tensor: Tensor) -> str:
        assert tensor.name not in self.tensors, tensor.name
        self.tensors[tensor.name] = tensor
        self._bytes[tensor.name] = tensor.bytes(self.mesh)
        return tensor.name

    def bytes(self, name: str) -> float:
        """Bytes of a tensor at one rank."""
        return self._bytes[name]

    def arrive(self, name: str, sharding: Sharding, how: str = "") -> tuple[str, str]:
        """A tensor in the wanted sharding, and the tensor to keep if it is needed backward."""
        tensor = self.tensors[name]
        if tensor.sharding == sharding:
            return name, name
        key = (name, sharding)
        if key in self._resharded:
            return self._resharded[key]
        at = kept = name
        gathered = False
        for move in reshard(tensor.sharding, sharding):
            resharded = f"{name}:{move.kind}" + (
                f"-{''.join(move.axes)}" if f"{name}:{move.kind}" in self.tensors else ""
            )
            before, after = tensor.bytes(self.mesh, move.before), tensor.bytes(self.mesh, move.after)
            self._add(Tensor(resharded, tensor.dims, move.after, tensor.item_bytes, tensor.role))
            ranks = 1
            for axis in move.axes:
                ranks *= self.mesh[axis]
            size = after if move.kind == "all_gather" else before
            self.nodes.append(
                CollectiveOp(resharded, move.kind, move.axes, ranks, size, name, (at,), (resharded,), how=how)
            )
            gathered = gathered or move.kind == "all_gather"
            at = resharded
            if not (gathered and self.regather):
                kept = resharded
        if at == name:  # only slices, which are no copies
            at = kept = self._add(Tensor(f"{name}:slice", tensor.dims, sharding, tensor.item_bytes, tensor.role))
            self.nodes.append(Operator(at, "slice", (name,), (at,), needs=(tensor.sharding,)))
        self._resharded[key] = (at, kept)
        return at, kept

    def operator(
        self,
        name: str,
        kind: str,
        inputs: Sequence[str],
        outputs: Sequence[tuple[str, Dims]],
        *,
        want: Sharding | Sequence[Sharding] | None = None,
        weights: Sequence[str] = (),
        output_sharding: Sharding | None = None,
        saves: Sequence[str] = (),
        states: Sequence[tuple[str, Dims, float]] = (),
        keep_partial: bool = False,
        sums: bool = False,
        item_bytes: float = 0,
        role: str = "activation",
        how: str = "",
        shape: tuple[float, float, float, float] | None = None,
        **more: float,
    ) -> list[str]:
        """Add an operator and the collectives that its inputs need; returns the names of its outputs.

        `want` is the sharding of the inputs unless weights determine it (default: as they are, partial sums reduced).
        `saves` are names of inputs, outputs or states. `output_sharding` overrides the sharding of the outputs.
        """
        weighing = [self.tensors[weight] for weight in weights]
        cut_weights = dict.fromkeys(weight.sharding for weight in weighing if weight.sharding.states)
        needs = self._needs(inputs, want, cut_weights, keep_partial)
        both = [self.arrive(given, need, how) for given, need in zip(inputs, needs, strict=True)]
        arrived = [at for at, _ in both]
        kept = {given: part for given, (_, part) in zip(inputs, both, strict=True)}
        sources = (*needs, *cut_weights)
        names = []
        for output, dims in outputs:
            sharding = output_sharding or propagate(sources, dims)
            names.append(self._add(Tensor(output, dims, sharding, item_bytes or self.item_bytes, role)))
        divided = frozenset(axis for source in sources for axis, _ in source.states)
        if output_sharding:  # rows got new names: every axis that cut the old ones cuts the new
            divided = frozenset(axis for need in needs for axis in need.partial)
        for state, dims, width in states:
            kept[state] = self.state(state, dims, propagate(sources, dims), width, "mask" if width == 1 else "state")
        read = sum(self._bytes[at] for at in arrived) + sum(self._bytes[weight] for weight in weights)
        written = sum(self._bytes[name] for name in names) + sum(self._bytes[state] for state, _, _ in states)
        m, n, k, count = shape or (0.0, 0.0, 0.0, 1.0)
        flops = more.pop("flops", 2 * m * n * k * count)
        self.nodes.append(
            Operator(
                name,
                kind,
                tuple(arrived),
                tuple(names),
                tuple(weights),
                flops=flops,
                bytes_read=more.pop("bytes_read", read),
                bytes_written=written,
                m=m,
                n=n,
                k=k,
                count=count,
                batch=more.pop("batch", 0.0),
                heads=more.pop("heads", 0.0),
                kv_heads=more.pop("kv_heads", 0.0),
                causal=bool(more.pop("causal", 0)),
                saves=tuple(dict.fromkeys(kept.get(save, save) for save in saves)),
                needs=tuple(needs),
                divided=divided,
                sums=sums,
            )
        )
        assert not more, more
        return names

    def _needs(
        self,
        inputs: Sequence[str],
        want: Sharding | Sequence[Sharding] | None,
        cut_weights: Iterable[Sharding],
        keep_partial: bool,
    ) -> list[Sharding]:
        """The sharding in which each input must arrive; the cuts of weights come before what was wanted."""
        needs = []
        for index, given in enumerate(inputs):
            tensor = self.tensors[given]
            if isinstance(want, Sharding):
                need = want
            elif want is not None:
                need = want[index]
            elif keep_partial:
                need = tensor.sharding
            else:
                need = tensor.sharding.but(dict.fromkeys(tensor.sharding.partial))
            for sharding in cut_weights:
                need = need.but({axis: dim if tensor.has(dim) else None for axis, dim in sharding.states})
            needs.append(need)
        return needs

    def matmul(
        self,
        name: str,
        given: str,
        weights: Sequence[str],
        outputs: Sequence[tuple[str, Dims]],
        *,
        want: Sharding,
        bias: Sequence[str] = (),
        count: float = 1.0,
    ) -> list[str]:
        """A product by weights of dims (..., in, out); several weights side by side are one product."""
        inside, mesh = self.tensors[weights[0]].dims[-2][0], self.mesh
        k = self.tensors[weights[0]].local(inside, mesh)
        n = sum(self.tensors[weight].local(self.tensors[weight].dims[-1][0], mesh) for weight in weights)
        tensor = self.tensors[given]
        need = want
        for sharding in dict.fromkeys(self.tensors[weight].sharding for weight in weights):
            need = need.but({axis: dim if tensor.has(dim) else None for axis, dim in sharding.states})
        rows = tensor.elements(mesh, need) / k
        return self.operator(
            name,
            "matmul",
            [given],
            outputs,
            want=want,
            weights=(*weights, *bias),
            saves=[given],
            shape=(rows / count, n, k, count),
        )

    def output(self, name: str, sharding: Sharding) -> str:
        """An output of the graph, in its sharding."""
        at, _ = self.arrive(name, sharding)
        self.outputs.append(at)
        return at

    def graph(self) -> Graph:
        """The graph that was built."""
        return Graph(self.name, tuple(self.nodes), self.tensors, self.mesh, tuple(self.inputs), tuple(self.outputs))
