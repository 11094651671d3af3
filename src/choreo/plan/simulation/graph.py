"""The execution graph of a plan's step: all ranks, with their pipeline, tensor, expert and data parallel communication.

Ranks are numbered as in Megatron: tensor parallel ranks are neighbours, then context, data, and pipeline. A pass is a
chain: a layer's computation, cut by the collectives that it waits for. Gradients are reduced a layer at a time, under
the last backward pass if the program overlaps, after it otherwise. Messages between stages leave at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from choreo.plan.layer.work import OUTSIDE, layer_kind
from choreo.plan.pipeline import Pipeline
from choreo.plan.simulation.folding import Axis, FoldedStep
from choreo.plan.stages import PlanBatch, message_bytes, optimizer_s
from choreo.workload import Plan, backward_graph, layer_graph
from choreo.workload.execution import COLLECTIVES, ExecutionGraph, GraphBuilder

__all__ = ["MOST_NODES", "folded_step"]

MOST_NODES = 3_000_000  # the ranks that stand for others
FORWARD, BACKWARD, WEIGHTS = "F", "B", "W"


@dataclass(frozen=True, slots=True)
class Talk:
    """A collective of a layer: its size, and the ranks and stride of its group."""

    collective: str
    size_bytes: float
    ranks: int
    stride: int


@dataclass(frozen=True, slots=True)
class LayerPasses:
    """What one kind of layer does in each pass: seconds of its own, and collectives."""

    compute_s: Mapping[str, float]
    talks: Mapping[str, tuple[Talk, ...]]
    parameters: float


def folded_step(batch: PlanBatch, plan: Plan, pipeline: Pipeline) -> FoldedStep:
    """The step of a plan whose pipeline has been laid out in time; its order of passes is that of the graph."""
    kinds = {kind for stage in batch.stages for kind in stage.layers}
    layers = {kind: _passes(batch, plan, kind) for kind in kinds}
    talks = {Axis(talk.ranks, talk.stride) for one in layers.values() for talk in itertools.chain(*one.talks.values())}
    axes = {*talks, Axis(*plan.group(("cp", "dp")))}
    stage_ranks = plan.gpus // plan.pp

    def build(ranks: list[int]) -> ExecutionGraph | None:
        if _length(batch, plan, pipeline, layers) * len(ranks) > MOST_NODES:
            return None
        builder = _StepBuilder(batch, plan, layers)
        for rank in ranks:
            stage = rank // stage_ranks
            order = sorted((task for task in pipeline.tasks if task.stage == stage), key=lambda task: task.start_s)
            builder.rank(stage, rank, [(task.kind, task.micro_batch, task.chunk) for task in order])
        return builder.graph.finish(match=False)

    return FoldedStep(plan.gpus, plan.pp, tuple(sorted(axis for axis in axes if axis.ranks > 1)), build)


def _passes(batch: PlanBatch, plan: Plan, kind: str) -> LayerPasses:
    """Split what the model of a layer says into its own time and its collectives."""
    seconds = {
        name: float(batch.layer(kind, field)[0])
        for name, field in ((FORWARD, "forward_s"), (BACKWARD, "backward_s"), (WEIGHTS, "weight_s"))
    }
    talks = _talks(batch, plan, kind)
    exposed = sum(batch.table.exposed(int(batch.plans[0])).get(kind, {}).values())
    moved = {name: sum(talk.size_bytes for talk in talks[name]) for name in (FORWARD, BACKWARD)}
    total = sum(moved.values())
    for name, size in moved.items():
        if total:
            seconds[name] = max(0.0, seconds[name] - exposed * size / total)
    return LayerPasses(seconds, talks, float(batch.layer(kind, "parameters")[0]))


def _talks(batch: PlanBatch, plan: Plan, kind: str) -> dict[str, tuple[Talk, ...]]:
    found: dict[str, tuple[Talk, ...]] = {FORWARD: (), BACKWARD: (), WEIGHTS: ()}
    model, seq = batch.job.model, batch.job.seq
    if kind in OUTSIDE:
        return found
    number = next((at for at in range(model.layers - 1, -1, -1) if _kind_of(batch, at) == kind), model.layers - 1)
    forward = layer_graph(model, plan, seq, number)
    for name, graph in ((FORWARD, forward), (BACKWARD, backward_graph(forward))):
        talks = []
        for node in graph.collectives:
            ranks, stride = plan.group(node.axes)
            if node.kind in COLLECTIVES and node.how != "ring" and ranks > 1:
                talks.append(Talk(node.kind, node.size_bytes, ranks, stride))
        found[name] = tuple(talks)
    return found


def _kind_of(batch: PlanBatch, layer: int) -> str:
    return layer_kind(batch.job.model, layer)


def _length(batch: PlanBatch, plan: Plan, pipeline: Pipeline, layers: Mapping[str, LayerPasses]) -> int:
    """The approximate number of nodes of a rank."""
    most = max(len(talks) for one in layers.values() for talks in one.talks.values()) if layers else 0
    held = max(len(stage.layers) for stage in batch.stages)
    return len(pipeline.tasks) // plan.pp * max(1, held // batch.chunks) * (1 + most)


class _StepBuilder:
    """Adds the nodes of one rank after another."""

    def __init__(self, batch: PlanBatch, plan: Plan, layers: Mapping[str, LayerPasses]) -> None:
        self.batch, self.plan, self.layers = batch, plan, layers
        self.graph = GraphBuilder(plan.gpus)
        self.last_batch = plan.micro_batches(batch.job.global_batch) - 1
        software = batch.job.software
        self.overlaps = plan.overlap and software.overlaps(plan.pp)
        self.message_bytes = float(message_bytes(batch.job, plan.micro_batch, plan.cp)) / plan.tp
        self.optimizer_s = optimizer_s(batch)[:, 0]
        self.replicas = plan.dp * plan.cp

    def rank(self, stage: int, rank: int, passes: Sequence[tuple[str, int, int]]) -> None:
        """The step of one rank."""
        previous: list[int] = []
        pending: list[tuple[float, int]] = []  # layers whose gradients wait: parameters, and the node that made them
        reduced: list[int] = []
        for kind, micro_batch, chunk in passes:
            previous = self._receive(kind, stage, chunk, rank, previous)
            held = self.batch.stages[stage].chunks[chunk]
            for layer in held if kind == FORWARD else reversed(held):
                previous = self._layer(kind, self.layers[layer], layer, rank, previous)
                last = micro_batch == self.last_batch and kind == (WEIGHTS if self._splits else BACKWARD)
                if last and self.replicas > 1 and self.layers[layer].parameters:
                    if self.overlaps:
                        reduced.append(self._reduce(rank, self.layers[layer].parameters, previous))
                    else:
                        pending.append((self.layers[layer].parameters, previous[0]))
            self._send(kind, stage, chunk, rank, previous)
        for parameters, node in pending:
            reduced.append(self._reduce(rank, parameters, [node, *previous]))
        after = [*previous, *reduced]
        updated = self.graph.compute(rank, "optimizer", float(self.optimizer_s[stage]), after=after)
        if self.plan.zero and self.replicas > 1:
            gathered = self.batch.job.software.gathered_bytes
            size = sum(self.layers[layer].parameters for layer in self.batch.stages[stage].layers) * gathered
            self._collective(rank, Talk("all_gather", size, *self._dp), "parameters", [updated])

    @property
    def _splits(self) -> bool:
        return self.plan.schedule == "zero-bubble"

    @property
    def _dp(self) -> tuple[int, int]:
        return self.plan.group(("cp", "dp"))

    def _layer(self, kind: str, layer: LayerPasses, name: str, rank: int, after: list[int]) -> list[int]:
        words = {FORWARD: "forward", BACKWARD: "backward", WEIGHTS: "weight gradients"}[kind]
        talks = layer.talks[kind]
        parts = max(1, len(talks))
        for part in range(parts):
            after = [self.graph.compute(rank, f"{name} {words}", layer.compute_s[kind] / parts, after=after)]
            if talks:
                after = [self._collective(rank, talks[part], f"{name} {words}", after)]
        return after

    def _collective(self, rank: int, talk: Talk, name: str, after: list[int]) -> int:
        first = rank - rank // talk.stride % talk.ranks * talk.stride
        group = tuple(range(first, first + talk.ranks * talk.stride, talk.stride))
        return self.graph.collective(rank, talk.collective, talk.size_bytes, group, name=name, after=after)

    def _reduce(self, rank: int, parameters: float, after: list[int]) -> int:
        size = parameters * self.batch.job.software.gradient_bytes
        collective = "reduce_scatter" if self.plan.zero else "all_reduce"
        return self._collective(rank, Talk(collective, size, *self._dp), "gradients", after)

    def _neighbour(self, kind: str, stage: int, chunk: int, step: int) -> tuple[int, int] | None:
        """The stage before (-1) or after (1) in a pass, and which cut of the model lies between."""
        virtual = chunk * self.plan.pp + stage
        other = virtual + (step if kind == FORWARD else -step)
        if self.plan.pp == 1 or kind == WEIGHTS or not 0 <= other < self.plan.pp * self.batch.chunks:
            return None
        return other % self.plan.pp, min(virtual, other)

    def _receive(self, kind: str, stage: int, chunk: int, rank: int, after: list[int]) -> list[int]:
        found = self._neighbour(kind, stage, chunk, -1)
        if found is None:
            return after
        other, cut = found
        peer = rank + (other - stage) * self.plan.tp * self.replicas
        return [self.graph.recv(rank, peer, self.message_bytes, tag=2 * cut + (kind == BACKWARD), after=after)]

    def _send(self, kind: str, stage: int, chunk: int, rank: int, after: list[int]) -> None:
        found = self._neighbour(kind, stage, chunk, 1)
        if found is not None:
            other, cut = found
            peer = rank + (other - stage) * self.plan.tp * self.replicas
            self.graph.send(rank, peer, self.message_bytes, tag=2 * cut + (kind == BACKWARD), after=after)
