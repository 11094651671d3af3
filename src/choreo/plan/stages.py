"""The stages of a pipeline: which layers each has, and what one micro-batch costs in each of its chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from choreo.hardware import Device
from choreo.plan.data_parallel.sharing import Unit
from choreo.plan.layer.kernels import Block, block, layer_plan
from choreo.plan.layer.timing import Timed, clock_gain, timed
from choreo.plan.network import Cluster
from choreo.plan.software import Software
from choreo.workload import Model, Plan, stage_layers

__all__ = ["Parts", "Stage", "build_stages", "cost_split", "model_parts"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One plan for one job on one cluster: everything that a step depends on."""

    model: Model
    plan: Plan
    seq: int
    micro_batches: int
    software: Software
    device: Device
    cluster: Cluster


@dataclass(frozen=True, slots=True)
class Parts:
    """Every kind of block a model has, and its times; layers are "dense" or "experts"."""

    blocks: Mapping[str, Block]
    times: Mapping[str, Timed]


@dataclass(frozen=True, slots=True)
class Stage:
    """One rank's share of the model, and what a micro-batch costs there; lists are by chunk."""

    layers: tuple[tuple[int, ...], ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    weight_s: tuple[float, ...]
    recompute_s: float
    host_s: float
    exposed_s: Mapping[str, float]
    parameters: float
    expert_parameters: float
    units: tuple[Unit, ...]  # in order of the forward pass; the first is what stands outside layers
    recomputed_flops: float
    has_head: bool

    def replicated(self, plan: Plan) -> tuple[tuple[float, int], ...]:
        """Parameters, and over how many ranks there are copies of them."""
        dense = self.parameters - self.expert_parameters
        return ((dense, plan.dp * plan.cp), (self.expert_parameters, plan.axis_size("edp")))


def model_parts(setting: Setting) -> Parts:
    """The blocks of a model, timed at the clock that the mixture of all of them leaves."""
    model, plan, seq, device = setting.model, setting.plan, setting.seq, setting.device
    software, cluster = setting.software, setting.cluster
    key = layer_plan(plan)
    options = (device, software.style)
    blocks = {"embedding": block("embedding", model, key, seq, 0, *options)}
    layers = Counter("experts" if model.has_experts(layer) else "dense" for layer in range(model.layers))
    for kind in layers:
        index = next(i for i in range(model.layers) if model.has_experts(i) == (kind == "experts"))
        blocks[kind] = block("layer", model, key, seq, index, *options)
    blocks["head"] = block("head", model, key, seq, 0, *options)
    first = {name: timed(found, plan, software, cluster) for name, found in blocks.items()}
    counts = {**layers, "embedding": 1, "head": 1}
    products = sum(counts[name] * found.matmul_s for name, found in first.items())
    everything = sum(counts[name] * (found.forward_s + found.backward_s) for name, found in first.items())
    waiting = sum(counts[name] * (sum(found.exposed_s.values()) + found.host_s) for name, found in first.items())
    gain = clock_gain(device, products, max(0.0, everything - products - waiting), waiting)
    return Parts(blocks, {name: timed(found, plan, software, cluster, gain) for name, found in blocks.items()})


def build_stages(setting: Setting, parts: Parts) -> list[Stage]:
    """The stages in order; the first has the embedding, the last the head."""
    model, plan = setting.model, setting.plan
    split = setting.software.stage_split
    chunks = plan.interleave if plan.pp > 1 else 1
    by_cost = split == "cost" and plan.pp > 1 and chunks == 1
    held = cost_split(model, plan.pp) if by_cost else stage_layers(model.layers, plan.pp, chunks)
    last = len(held) - 1
    stages = []
    for device in range(plan.pp):
        virtual = [chunk * plan.pp + device for chunk in range(chunks)]
        names = [
            (["embedding"] if number == 0 else [])
            + ["experts" if model.has_experts(layer) else "dense" for layer in held[number]]
            + (["head"] if number == last else [])
            for number in virtual
        ]
        flat = [name for chunk in names for name in chunk]
        counts = Counter(flat)
        exposed: dict[str, float] = {}
        for name, count in counts.items():
            for collective, seconds in parts.times[name].exposed_s.items():
                exposed[collective] = exposed.get(collective, 0.0) + count * seconds

        def total(what: str, counts: Counter[str] = counts) -> float:
            return sum(count * float(getattr(parts.times[name], what)) for name, count in counts.items())

        def by_chunk(what: str, names: list[list[str]] = names) -> tuple[float, ...]:
            return tuple(sum(getattr(parts.times[name], what) for name in chunk) for chunk in names)

        blocks = parts.blocks
        tied = plan.pp > 1 and "head" in counts and "embedding" not in counts and model.tied_embeddings
        copy = model.vocab * model.hidden / plan.tp if tied else 0.0
        stages.append(
            Stage(
                layers=tuple(held[number] for number in virtual),
                forward_s=by_chunk("forward_s"),
                backward_s=by_chunk("backward_s"),
                weight_s=by_chunk("weight_s"),
                recompute_s=total("recompute_s"),
                host_s=total("host_s"),
                exposed_s=exposed,
                parameters=sum(count * blocks[name].parameters for name, count in counts.items()) + copy,
                expert_parameters=sum(count * blocks[name].expert_parameters for name, count in counts.items()),
                units=_units(flat, parts),
                has_head="head" in counts,
                recomputed_flops=sum(count * blocks[name].recompute.flops for name, count in counts.items()),
            )
        )
    return stages


def cost_split(model: Model, pp: int) -> tuple[tuple[int, ...], ...]:
    """Layers by stage where the head counts as much as its parameters do: a stage ends with the layer that takes the
    sum past its share, as nanotron has it; stages at the end may have none, and the last has the head."""
    costs = [float(model.parameters_per_layer(layer)) for layer in range(model.layers)]
    total = sum(costs) + model.vocab * model.hidden
    held: list[list[int]] = [[] for _ in range(pp)]
    stage, passed = 0, 0.0
    for layer, cost in enumerate(costs):
        held[stage].append(layer)
        passed += cost
        if stage < pp - 1 and passed > total * (stage + 1) / pp * (1 + 1e-3):
            stage += 1
    return tuple(tuple(layers) for layers in held)


def _units(names: list[str], parts: Parts) -> tuple[Unit, ...]:
    """Layers one by one; what stands outside of them is one unit, used first and last."""
    outside = [name for name in names if name in ("embedding", "head")]
    units = [
        Unit(
            sum(parts.blocks[name].parameters for name in outside),
            0.0,
            sum(parts.blocks[name].tensors for name in outside),
            sum(parts.times[name].forward_s for name in outside),
            sum(parts.times[name].backward_s for name in outside),
        )
    ]
    for name in names:
        if name in outside:
            continue
        found, times = parts.blocks[name], parts.times[name]
        units.append(Unit(found.parameters, found.expert_parameters, found.tensors, times.forward_s, times.backward_s))
    return tuple(units)
