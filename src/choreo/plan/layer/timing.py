"""A layer's passes under a program: kernels at the speed they reach in a step, exposed communication, the host's pace.

    pass = max(kernels / efficiency + exposed communication, launches x host + collectives x host_collective)

Tensor-parallel communication is exposed, except the share that a program hides behind the matrix products of the same
layer. Keys and values that go round a ring are hidden behind attention. Dispatching tokens to experts is exposed.
All times are arrays, one number for each micro-batch size, or rows of them for many layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from choreo.hardware import Device
from choreo.plan.layer.dispatch import dispatch_time
from choreo.plan.layer.kernels import AttentionKind, KernelKind, LayerPass, MatmulKind, MemoryKind
from choreo.plan.layer.work import PASSES
from choreo.plan.network import Cluster, collective_time
from choreo.plan.pipeline.dual import DUAL
from choreo.plan.software import Software
from choreo.workload import CollectiveOp, Plan

__all__ = ["LayerTimes", "PassTimes", "clock_gain", "pass_times", "stack_passes", "time_layer"]

Floats = npt.NDArray[np.float64]
# Kernels next to an all_to_all have 20 of 132 SMs less (DeepSeek-V3's report, 2024, section 3.2.2).
DISPATCH_SLOWS = 20 / (132 - 20)
# DualPipe runs a forward pass beside every backward pass, and hides as much as Megatron's overlap does.
DUAL_OVERLAP = 0.9
# Before Blackwell, tensor and context parallelism want all kernels in one queue (CUDA_DEVICE_MAX_CONNECTIONS=1), where
# no all_to_all gets past the kernels of another micro-batch (Megatron-LM's arguments.py warns of it). NVIDIA's recipes
# take several queues where they overlap the all_to_all, and do without hiding tensor-parallel communication.
ONE_QUEUE = ("volta", "ampere", "ga10x", "ada", "hopper")


@dataclass(frozen=True, slots=True, eq=False)
class PassTimes:
    """Seconds of each part of one pass."""

    matmul_s: Floats
    attention_s: Floats
    memory_s: Floats
    sent_s: Mapping[str, Floats]  # communication by "axes collective"
    behind_matmul_s: Floats  # communication that matmuls can hide
    behind_attention_s: Floats  # communication that attention can hide
    behind_others_s: Floats  # communication that the kernels of another micro-batch can hide
    host_s: Floats | float


@dataclass(frozen=True, slots=True, eq=False)
class LayerTimes:
    """Seconds of one micro-batch through one layer."""

    forward_s: Floats
    backward_s: Floats  # recomputation and both gradients
    weight_s: Floats  # the weight gradients' part of backward_s
    recompute_s: Floats  # kernels of the recomputation, part of backward_s
    exposed_s: Mapping[str, Floats]  # exposed communication, forward and backward, by "axes collective"
    host_s: Floats  # added by waiting for the host
    matmul_s: Floats  # in matrix products and attention, which draw the most power
    attention_s: Floats  # the attention part of that
    memory_s: Floats  # in memory-bound kernels

    def waiting_s(self, device: Device) -> Floats:
        """Seconds that the device waits for communication and for the host, drawing little power."""
        sent = () if device.busy_sending else self.exposed_s.values()
        return np.asarray(sum(sent, self.host_s))


def pass_times(  # noqa: PLR0917 -- all that the times depend on
    less: LayerPass,
    more: LayerPass,
    steps: Floats,
    kernels: Mapping[type[KernelKind], Floats],
    plan: Plan,
    software: Software,
    cluster: Cluster,
    device: Device,
    *,
    again: bool = False,
) -> PassTimes:
    """The times of one pass: sizes go from those of `less` at step 0 to those of `more` at step 1.

    With `again` it repeats a forward pass, which costs the host extra.
    """
    sent: dict[str, Floats] = {}
    tensor, ring, experts = np.zeros(len(steps)), np.zeros(len(steps)), np.zeros(len(steps))
    host = more.launches * software.host_s * (software.backward_host if more.backward else 1.0)
    cut = plan.tp * plan.cp > 1 and device.architecture in ONE_QUEUE
    overlap = max(software.ep_overlap, DUAL_OVERLAP if plan.schedule in DUAL else 0.0)
    beside = 0.0 if cut and not software.several_queues else overlap
    alone = cut and beside > 0
    hidden = 0.0 if alone or cluster.crosses(*plan.group(("tp",))) else software.tp_overlap
    for one, other in zip(less.collectives, more.collectives, strict=True):
        ranks, stride = plan.group(one.axes)
        sizes = one.size_bytes + steps * (other.size_bytes - one.size_bytes)
        if one.kind == "all_to_all" and "ep" in one.axes:
            seconds = dispatch_time(cluster, sizes, ranks, stride, more.choices, one, software)
            experts = experts + beside * seconds
        else:
            least = software.network_collective_s * math.log2(_nodes(ranks, stride, cluster))
            seconds = np.maximum(least, collective_time(cluster, one.kind, sizes, ranks, stride))
        host += _host_seconds(one, ranks, plan, software)
        name = f"{'+'.join(one.axes)} {one.kind}"
        sent[name] = sent.get(name, 0.0) + seconds
        if "tp" in one.axes:
            tensor = tensor + hidden * seconds
        if one.how == "ring":
            ring = ring + seconds
    operators = software.collective_operators * len(more.collectives)
    if again and more.launches:
        operators += software.checkpoint_operators + software.again_operators * more.launches
    curves = (kernels[MatmulKind], kernels[AttentionKind], kernels[MemoryKind] + operators * device.launch_s)
    return PassTimes(*curves, sent, tensor, ring, experts, host * device.host_pace)


def stack_passes(passes: Sequence[PassTimes], rows: npt.NDArray[np.int64]) -> PassTimes:
    """Many passes as one, whose times have a row for each of `rows`, numbers of passes."""
    nothing = np.zeros_like(passes[0].matmul_s)
    names = dict.fromkeys(name for one in passes for name in one.sent_s)

    def stacked(times: Iterable[Floats]) -> Floats:
        return np.array(list(times))[rows]

    return PassTimes(
        matmul_s=stacked(one.matmul_s for one in passes),
        attention_s=stacked(one.attention_s for one in passes),
        memory_s=stacked(one.memory_s for one in passes),
        sent_s={name: stacked(one.sent_s.get(name, nothing) for one in passes) for name in names},
        behind_matmul_s=stacked(one.behind_matmul_s for one in passes),
        behind_attention_s=stacked(one.behind_attention_s for one in passes),
        behind_others_s=stacked(one.behind_others_s for one in passes),
        host_s=stacked(np.atleast_1d(one.host_s) for one in passes),
    )


def _nodes(ranks: int, stride: int, cluster: Cluster) -> float:
    """How many nodes a group spans."""
    return max(1.0, ranks * stride / cluster.node_gpus)


def _host_seconds(collective: CollectiveOp, ranks: int, plan: Plan, software: Software) -> float:
    """Seconds that the host spends on a collective."""
    piped = plan.pp > 1 and "tp" in collective.axes
    return software.host_collective_s + (software.pipelined_hop_s * ranks if piped else 0.0)


def time_layer(passes: Mapping[str, PassTimes], software: Software, gain: Floats | float = 1.0) -> LayerTimes:
    """The times of a layer, `passes` by the names of `PASSES`; `gain` is the clock's, see `clock_gain`."""
    took, exposed = {}, {}
    shown: dict[str, Floats] = {}
    for name in PASSES:
        found = passes[name]
        kernels = ((found.matmul_s + found.attention_s) / gain + found.memory_s) / software.efficiency
        sent = sum(found.sent_s.values(), np.zeros_like(kernels))
        # User buffers and rings copy while the same layer's kernels run.
        hidden = np.minimum(found.behind_matmul_s, found.matmul_s / gain)
        hidden = hidden + np.minimum(found.behind_attention_s, found.attention_s / gain)
        beside = np.minimum(found.behind_others_s, kernels)
        hidden = hidden + beside
        kernels = kernels + DISPATCH_SLOWS * beside
        took[name], exposed[name] = kernels + sent - hidden, sent - hidden
        share = 1 - np.divide(hidden, sent, out=np.zeros_like(sent), where=sent > 0)
        for collective, seconds in found.sent_s.items():
            shown[collective] = shown.get(collective, 0.0) + seconds * share
    back = ("recompute", "dgrad", "wgrad")
    running = took["recompute"] + took["dgrad"] + took["wgrad"]
    forward = np.maximum(took["forward"], passes["forward"].host_s)
    backward = np.maximum(running, sum(passes[name].host_s for name in back))
    stretch = np.divide(backward, running, out=np.ones_like(running), where=running > 0)
    nothing = np.zeros_like(forward)
    products = sum((found.matmul_s + found.attention_s for found in passes.values()), nothing)
    attention = sum((found.attention_s for found in passes.values()), nothing)
    memory = sum((found.memory_s for found in passes.values()), nothing)
    return LayerTimes(
        forward_s=forward,
        backward_s=backward,
        weight_s=took["wgrad"] * stretch,
        recompute_s=took["recompute"] - exposed["recompute"],
        exposed_s=shown,
        host_s=forward - took["forward"] + backward - running,
        matmul_s=products / gain / software.efficiency,
        attention_s=attention / gain / software.efficiency,
        memory_s=memory / software.efficiency,
    )


def clock_gain(device: Device, matmul_s: float, memory_s: float, waiting_s: float) -> float:
    """How much faster matmuls run than in steady work without pauses: waiting leaves power for a higher clock."""
    full = float(device.clock())
    gain = 1.0
    for _ in range(2):
        busy = matmul_s / gain
        total = max(busy + memory_s + waiting_s, 1e-12)
        # Rounded to a hundredth, so that there are few devices.
        products = max(0.05, round(busy / total, 2))
        gain = _clock(device, products, min(1 - products, round(waiting_s / total, 2))) / full
    return gain


@lru_cache(maxsize=4096)
def _clock(device: Device, products: float, waiting: float) -> float:
    return float(device.at_duty(products, waiting).clock())
