"""A step of one plan, layer by layer and number by number: what the columns of `choreo.plan` are held to.

The kernels of a layer, the curves of the device, the times of the network and the simulated pipeline are the product's
own. Everything that is made of them is written out here, for one plan at a time and without arrays.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from choreo.plan.job import TrainingJob
from choreo.plan.layer.dispatch import dispatch_time
from choreo.plan.layer.kernels import LayerPass, MatmulKind, MemoryKind
from choreo.plan.layer.timing import ONE_QUEUE, clock_gain
from choreo.plan.layer.work import PASSES, LayerWork, layer_work
from choreo.plan.memory.offload import host_link_bytes_per_s
from choreo.plan.network import collective_time
from choreo.plan.pipeline import simulate_pipeline
from choreo.plan.pipeline.dual import DUAL
from choreo.workload import Plan, stage_layers
from tests.oracles.plan_memory import copies, gathered_bytes, held_parameters, reduced_bytes, stage_memory
from tests.oracles.plan_overlap import backward_exposed, forward_exposed

__all__ = ["OracleStep", "oracle_step"]


@dataclass(frozen=True)
class OracleStep:
    """What a step takes, what shows of its communication, and bytes by part of each stage."""

    step_time_s: float
    exposed_s: Mapping[str, float]
    stage_memory: list[dict[str, float]]


@dataclass(frozen=True)
class _Times:
    forward_s: float
    backward_s: float
    weight_s: float
    waiting_s: float
    matmul_s: float
    exposed_s: dict[str, float]


@dataclass(frozen=True)
class _Unit:
    """What is gathered and reduced together."""

    parameters: float
    expert_parameters: float
    tensors: int
    forward_s: float
    backward_s: float


@dataclass(frozen=True)
class _Added:
    forward_s: float = 0.0
    backward_s: float = 0.0
    gather_exposed_s: float = 0.0
    reduce_exposed_s: float = 0.0


def oracle_step(job: TrainingJob, plan: Plan) -> OracleStep:
    """One plan."""
    model, software = job.model, job.software
    chunks = plan.interleave if plan.pp > 1 else 1
    kinds = [_kind(job, layer) for layer in range(model.layers)]
    if software.stage_split != "even" and plan.pp > 1 and chunks == 1:
        held = _split_by_cost(job, plan.pp)
    else:
        held = [list(layers) for layers in stage_layers(model.layers, plan.pp, chunks)]
    virtual = [[kinds[layer] for layer in layers] for layers in held]
    virtual[0].insert(0, "embedding")
    virtual[-1].append("head")
    further = ["further token", kinds[-1], "further head"] * model.mtp_layers
    virtual[-1] += further
    stages = [[virtual[chunk * plan.pp + device] for chunk in range(chunks)] for device in range(plan.pp)]
    if plan.pp > 1 and plan.schedule in DUAL:
        stages, chunks = [[virtual[device], virtual[-1 - device]] for device in range(plan.pp)], 2
    micro_batches = plan.micro_batches(job.global_batch) // copies(plan)

    works = {kind: _work(job, plan, kind) for kind in {"embedding", "head", *kinds, *further}}
    counts = Counter(["embedding", "head", *kinds, *further])
    times = {kind: _layer_times(job, plan, work, 1.0) for kind, work in works.items()}
    products = sum(counts[kind] * found.matmul_s for kind, found in times.items())
    everything = sum(counts[kind] * (found.forward_s + found.backward_s) for kind, found in times.items())
    waiting = sum(counts[kind] * found.waiting_s for kind, found in times.items())
    gain = clock_gain(job.device, products, max(0.0, everything - products - waiting), waiting)
    times = {kind: _layer_times(job, plan, work, gain) for kind, work in works.items()}
    times = {kind: _offloaded(job, kind, works[kind], found) for kind, found in times.items()}

    often = plan.pp == 1 and plan.zero >= 2
    added = [_added(job, plan, _units(stage, works, times), often) for stage in stages]
    message = _message_s(job, plan)
    run = simulate_pipeline(
        "interleaved" if chunks > 1 and plan.schedule == "1f1b" else plan.schedule,
        micro_batches,
        [
            [sum(times[kind].forward_s for kind in chunk) + often * more.forward_s / chunks for chunk in stage]
            for stage, more in zip(stages, added, strict=True)
        ],
        [
            [sum(times[kind].backward_s for kind in chunk) + often * more.backward_s / chunks for chunk in stage]
            for stage, more in zip(stages, added, strict=True)
        ],
        weight_s=[[sum(times[kind].weight_s for kind in chunk) for chunk in stage] for stage in stages],
        message_s=0.0 if software.p2p_blocks else message,
        blocking_s=(message if software.p2p_blocks else 0.0) + (software.p2p_host_s if plan.pp > 1 else 0.0),
    )
    after = 0.0 if often else max(more.forward_s + more.backward_s for more in added)
    optimizer = max(_optimizer_s(job, plan, stage, works) for stage in stages)
    lone = run.time_s + after + optimizer + software.step_s
    nodes = max(1.0, plan.gpus / job.cluster.node_gpus)
    exposed: dict[str, float] = {}
    for kind in (kind for chunk in stages[run.busiest] for kind in chunk):
        for name, seconds in times[kind].exposed_s.items():
            exposed[name] = exposed.get(name, 0.0) + seconds * micro_batches
    if plan.dp * plan.cp > 1:
        name = "all_reduce" if plan.zero == 0 or (often and software.gather == "tensor") else "reduce_scatter"
        often_times = micro_batches if often else 1
        exposed[f"dp {name}"] = added[run.busiest].reduce_exposed_s * often_times
        if plan.zero:
            exposed["dp all_gather"] = added[run.busiest].gather_exposed_s * often_times
    return OracleStep(
        step_time_s=lone * (1 + software.jitter * math.sqrt(2 * math.log(nodes))),
        exposed_s=exposed,
        stage_memory=[stage_memory(job, plan, index, stage, works) for index, stage in enumerate(stages)],
    )


def _offloaded(job: TrainingJob, kind: str, work: LayerWork, times: _Times) -> _Times:
    """A pass takes at least as long as the copies of what goes to the host."""
    if not kind.startswith(("dense", "experts")):
        return times
    copies = job.software.activation_offload * work.saved_bytes / host_link_bytes_per_s(job.device)
    return replace(times, forward_s=max(times.forward_s, copies), backward_s=max(times.backward_s, copies))


def _kind(job: TrainingJob, layer: int) -> str:
    kind = "experts" if job.model.has_experts(layer) else "dense"
    return kind + " window" * job.model.has_window(layer)


def _work(job: TrainingJob, plan: Plan, kind: str) -> LayerWork:
    alone = kind.startswith("experts")
    seen = Plan(
        dp=plan.ep * plan.expert_tp // math.gcd(plan.expert_tp, plan.tp) if alone else 1,
        ep=plan.ep if alone else 1,
        etp=plan.etp if alone else 0,
        tp=plan.tp,
        cp=plan.cp,
        sequence_parallel=plan.sequence_parallel,
        micro_batch=plan.micro_batch,
        recompute=plan.recompute,
        recompute_modules=plan.recompute_modules,
        precision=plan.precision,
    )
    return layer_work(kind, job.model, seen, job.seq, job.software.style)


def _split_by_cost(job: TrainingJob, pp: int) -> list[list[int]]:
    """Layers until the sum is at the stage's share of all parameters, the head included, or past it."""
    least = 1 + 1e-3 if job.software.stage_split == "past cost" else 1 - 1e-3
    costs = [float(job.model.parameters_per_layer(layer)) for layer in range(job.model.layers)]
    share = (sum(costs) + job.model.vocab * job.model.hidden) / pp
    held: list[list[int]] = [[] for _ in range(pp)]
    stage, passed = 0, 0.0
    for layer, cost in enumerate(costs):
        held[stage].append(layer)
        passed += cost
        if stage < pp - 1 and passed > share * (stage + 1) * least:
            stage += 1
    return held


def _kernels(job: TrainingJob, found: LayerPass) -> tuple[float, float, float]:
    """Seconds of matrix products, of attention, and of what is bound by memory."""
    matmul = attention = 0.0
    memory = found.extra_launches * job.device.launch_s
    for kernel in found.kernels:
        seconds = float(kernel.kind.seconds(job.device, np.array(kernel.sizes))) * kernel.factor
        if isinstance(kernel.kind, MatmulKind):
            matmul += seconds
        elif isinstance(kernel.kind, MemoryKind):
            memory += seconds
        else:
            attention += seconds
    return matmul, attention, memory


def _layer_times(job: TrainingJob, plan: Plan, work: LayerWork, gain: float) -> _Times:
    software, cluster = job.software, job.cluster
    took, host, products = {}, {}, 0.0
    exposed: dict[str, float] = {}
    overlap = 0.0 if cluster.crosses(plan.tp, 1) else software.tp_overlap
    beside = software.ep_overlap
    if plan.pp > 1 and plan.schedule in DUAL and not (plan.tp * plan.cp > 1 and job.device.architecture in ONE_QUEUE):
        beside = 0.9
    for name, found in zip(PASSES, work.passes, strict=True):
        matmul, attention, memory = _kernels(job, found)
        sent: list[tuple[str, float]] = []
        tensor = ring = others = 0.0
        slower = software.backward_host if name in ("dgrad", "wgrad") else 1.0
        host[name] = found.launches * software.host_s * slower
        for collective in found.collectives:
            ranks, stride = plan.group(collective.axes)
            if collective.kind == "all_to_all" and "ep" in collective.axes:
                size = np.array([collective.size_bytes])
                (told,) = dispatch_time(cluster, size, ranks, stride, found.choices, collective, software)
                seconds = float(told)
                others += beside * seconds
            else:
                nodes = max(1.0, ranks * stride / cluster.node_gpus)
                seconds = float(collective_time(cluster, collective.kind, collective.size_bytes, ranks, stride))
                seconds = max(seconds, software.network_collective_s * math.log2(nodes))
            sent.append((f"{'+'.join(collective.axes)} {collective.kind}", seconds))
            tensor += overlap * seconds if "tp" in collective.axes else 0.0
            ring += seconds if collective.how == "ring" else 0.0
            host[name] += software.host_collective_s
            if plan.pp > 1 and "tp" in collective.axes:
                host[name] += software.pipelined_hop_s * ranks
        total = sum(seconds for _, seconds in sent)
        kernels = ((matmul + attention) / gain + memory) / software.efficiency
        others = min(others, kernels)
        hidden = min(tensor, matmul / gain) + min(ring, attention / gain) + others
        kernels += others * 20 / 112  # the all_to_all has 20 of 132 SMs
        took[name] = kernels + total - hidden
        products += (matmul + attention) / gain / software.efficiency
        for label, seconds in sent:
            exposed[label] = exposed.get(label, 0.0) + seconds * (1 - hidden / total if total else 1.0)
    running = took["recompute"] + took["dgrad"] + took["wgrad"]
    host = {name: seconds * job.device.host_pace for name, seconds in host.items()}
    forward = max(took["forward"], host["forward"])
    backward = max(running, host["recompute"] + host["dgrad"] + host["wgrad"])
    idle = forward - took["forward"] + backward - running
    weight = took["wgrad"] * (backward / running if running else 1.0)
    waiting = idle + (0.0 if job.device.busy_sending else sum(exposed.values()))
    return _Times(forward, backward, weight, waiting, products, exposed)


def _units(stage: list[list[str]], works: Mapping[str, LayerWork], times: Mapping[str, _Times]) -> list[_Unit]:
    """What stands outside of layers as one, then layer by layer."""
    names = [kind for chunk in stage for kind in chunk]
    outside = [kind for kind in names if kind == "embedding" or "head" in kind or "token" in kind]
    return [
        _Unit(
            sum(works[kind].parameters for kind in kinds),
            sum(works[kind].expert_parameters for kind in kinds),
            sum(works[kind].tensors for kind in kinds),
            sum(times[kind].forward_s for kind in kinds),
            sum(times[kind].backward_s for kind in kinds),
        )
        for kinds in (outside, *([kind] for kind in names if kind not in outside))
    ]


def _sent(job: TrainingJob, plan: Plan, unit: _Unit, kind: str, *, bucketed: bool) -> float:
    """Seconds to send a unit over the replicas; experts have fewer."""
    width = gathered_bytes(job, plan) if kind == "all_gather" else reduced_bytes(job, plan)
    seconds = 0.0
    for parameters, (ranks, stride) in (
        (unit.parameters - unit.expert_parameters, plan.group(("cp", "dp"))),
        (unit.expert_parameters, plan.group(("edp",))),
    ):
        if parameters <= 0 or ranks == 1:
            continue
        if bucketed:
            bucket = max(40e6, 1e6 * ranks) * width
            seconds += _collective(job, plan, kind, bucket, ranks, stride) * parameters * width / bucket
        else:
            calls = unit.tensors if job.software.gather == "tensor" else 1
            seconds += calls * _collective(job, plan, kind, parameters * width / calls, ranks, stride)
    return seconds


def _collective(job: TrainingJob, plan: Plan, kind: str, size: float, ranks: int, stride: int) -> float:
    """One collective over the replicas; hybrid sharding runs it in groups, and sums each share across them."""
    inside = plan.shard_size * plan.cp
    if not inside or kind == "all_reduce":
        return float(collective_time(job.cluster, kind, size, ranks, stride))
    seconds = float(collective_time(job.cluster, kind, size, inside, stride))
    if kind == "reduce_scatter" and ranks > inside:
        share = size / inside
        seconds += float(collective_time(job.cluster, "all_reduce", share, ranks // inside, stride * inside))
    return seconds


def _added(job: TrainingJob, plan: Plan, units: list[_Unit], often: bool) -> _Added:
    """What data parallelism adds at a stage."""
    software = job.software
    if plan.dp * plan.cp == 1:
        return _Added()
    summed = often and software.gather == "tensor"
    whole = plan.zero == 0 or summed or (plan.zero == 1 and software.zero1_reduces == "all_reduce")
    kind = "all_reduce" if whole else "reduce_scatter"
    reduce = [_sent(job, plan, unit, kind, bucketed=not often) for unit in units]
    gather = [_sent(job, plan, unit, "all_gather", bucketed=not often) if plan.zero else 0.0 for unit in units]
    # Megatron's ZeRO-2 reduces gradients with every micro-batch, but gathers parameters once a step.
    ahead_often = 1.0
    if often and plan.zero == 2 and software.accumulate_bytes:
        ahead_often = 1 / plan.micro_batches(job.global_batch)
        gather = [seconds * ahead_often for seconds in gather]
    if plan.zero and not often:
        copied = software.zero1_copy_s * plan.dp * plan.cp
        gather = [seconds + copied * unit.tensors for seconds, unit in zip(gather, units, strict=True)]
    hides = software.dp_overlap == "always" or (software.dp_overlap == "without-pipeline" and plan.pp == 1)
    if not often and not (plan.overlap and hides):
        return _Added(sum(gather), sum(reduce), sum(gather), sum(reduce))
    gather, reduce = ([seconds / software.dp_bandwidth for seconds in times] for times in (gather, reduce))
    forwards, backwards = [unit.forward_s for unit in units], [unit.backward_s for unit in units]
    if not often:
        front = forward_exposed(forwards, gather) if plan.zero else 0.0
        back = backward_exposed(backwards, reduce)
        slow = software.contention * min(sum(forwards), sum(gather))
        slower = software.contention * min(sum(backwards), sum(reduce))
        most = [software.dp_bandwidth * sum(times) for times in (gather, reduce)]
        waited = (front + slow, most[0]), (back + slower, most[1]), (front, most[0]), (back, most[1])
        return _Added(*(min(pair) for pair in waited))
    again = gather if plan.zero == 3 else [0.0] * len(units)
    if summed:
        behind = sum(again) * (2 if plan.recompute == "full" else 1)
        return _Added(sum(gather), behind + sum(reduce), sum(gather) + behind, sum(reduce))
    slow_forwards, slow_backwards = [], []
    for unit, ahead, once_more, sent in zip(units, gather, again, reduce, strict=True):
        forward = unit.forward_s + ahead_often * float(job.device.memory_time(unit.parameters * 4, "copy"))
        backward = unit.backward_s + float(job.device.memory_time(unit.parameters * 10, "copy"))
        slow_forwards.append(forward + software.contention * min(forward, ahead))
        slow_backwards.append(backward + software.contention * min(backward, once_more + sent))
    front = forward_exposed(slow_forwards, gather, ahead=2)
    back = backward_exposed(slow_backwards, reduce, [0.0, *again[1:]], ahead=2)
    share = sum(again) / (sum(again) + sum(reduce)) if sum(reduce) else 0.0
    return _Added(
        front + sum(slow_forwards) - sum(forwards),
        back + sum(slow_backwards) - sum(backwards),
        front + back * share,
        back * (1 - share),
    )


def _message_s(job: TrainingJob, plan: Plan) -> float:
    if plan.pp == 1:
        return 0.0
    size = plan.micro_batch * job.seq / plan.cp * job.model.hidden * plan.activation_bytes
    seconds = float(collective_time(job.cluster, "sendrecv", size / plan.tp, 2, plan.tp * plan.cp * plan.dp))
    if not plan.sequence_parallel and plan.tp > 1:
        seconds += float(collective_time(job.cluster, "all_gather", size, plan.tp, 1))
    return seconds


def _optimizer_s(job: TrainingJob, plan: Plan, stage: list[list[str]], works: Mapping[str, LayerWork]) -> float:
    held, experts = held_parameters(job, plan, stage, works)
    replicas = (plan.shard_size or plan.dp) * plan.cp * copies(plan)
    owned = (held - experts) / (replicas if plan.zero else 1)
    owned += experts / (plan.axis_size("edp") * copies(plan) if plan.zero else 1)
    if job.software.optimizer_offload:
        copied = owned * 6 / host_link_bytes_per_s(job.device)
        zeroed = 4 * held / (replicas if plan.zero >= 2 else 1)
        kept = float(job.device.memory_time(zeroed, "optimizer"))
        return copied + owned * (12 + 2 * job.software.moment_bytes) / 40e9 + kept
    moved = owned * (12 + 2 * job.software.moment_bytes + 4 + (2 if job.software.parameter_bytes == 2 else 0))
    moved += 4 * held / (replicas if plan.zero >= 2 else 1)
    return float(job.device.memory_time(moved, "optimizer"))
