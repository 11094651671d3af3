"""A block under a program: its kernels at the speed they have in a step, what communication shows, the host's pace.

    pass = max(kernels / efficiency + exposed communication, kernels x host + collectives x host_collective)

Tensor-parallel communication is waited for, but for the share that a program hides behind the matrix products of the
same layer; keys and values that go round a ring hide behind attention; tokens on their way to experts are waited for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from choreo.hardware import Device
from choreo.plan.layer.kernels import Block, Phase
from choreo.plan.network import Cluster, collective_time
from choreo.plan.software import Software
from choreo.workload import Collective, Plan

__all__ = ["Timed", "clock_gain", "host_seconds", "timed"]


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of one micro-batch through one block."""

    forward_s: float
    backward_s: float  # recomputation and both gradients
    weight_s: float  # of which weight gradients
    recompute_s: float
    exposed_s: Mapping[str, float]  # communication that shows, forward and backward, by "axes kind"
    host_s: float  # what waiting for the host adds
    matmul_s: float  # of matrix products, attention included: what draws power


def clock_gain(device: Device, matmul_s: float, memory_s: float, waiting_s: float) -> float:
    """By how much products run faster than where there is nothing else: waiting leaves power for the clock."""
    full = float(device.clock())
    gain = 1.0
    for _ in range(2):
        busy = matmul_s / gain
        total = max(busy + memory_s + waiting_s, 1e-12)
        # Steps of a hundredth, so that the devices are few.
        products = max(0.05, round(busy / total, 2))
        gain = _clock(device, products, min(1 - products, round(waiting_s / total, 2))) / full
    return gain


@lru_cache(maxsize=4096)
def _clock(device: Device, products: float, waiting: float) -> float:
    return float(device.at_duty(products, waiting).clock())


def timed(block: Block, plan: Plan, software: Software, cluster: Cluster, gain: float = 1.0) -> Timed:
    """The times of a block's passes; `gain` is the clock's, see `clock_gain`."""
    sums = {
        phase: _kernels(getattr(block, phase), software, gain) for phase in ("forward", "recompute", "dgrad", "wgrad")
    }
    shown: dict[str, float] = {}
    waits = dict.fromkeys(sums, 0.0)
    calls = dict.fromkeys(sums, 0.0)
    by_phase: dict[str, list[tuple[Collective, float]]] = {phase: [] for phase in sums}
    for collective in block.collectives:
        ranks, stride = plan.group(collective.axes)
        seconds = float(collective_time(cluster, collective.kind, collective.size_bytes, ranks, stride))
        phase = collective.phase if collective.phase in sums else "dgrad"
        by_phase[phase].append((collective, seconds))
        calls[phase] += host_seconds(collective, ranks, stride, plan, software, cluster)
    for phase, found in by_phase.items():
        apart = overlap_share(plan, software, cluster)
        hidden = _hidden(found, getattr(block, phase), apart, gain)
        total = sum(seconds for _, seconds in found)
        waits[phase] = total - hidden
        for collective, seconds in found:
            name = f"{'+'.join(collective.axes)} {collective.kind}"
            shown[name] = shown.get(name, 0.0) + seconds * (1 - hidden / total if total else 1.0)
    host = {phase: getattr(block, phase).kernels * software.host_s + calls[phase] for phase in sums}
    forward = max(sums["forward"] + waits["forward"], host["forward"])
    back = ("recompute", "dgrad", "wgrad")
    running = sum(sums[phase] + waits[phase] for phase in back)
    backward = max(running, sum(host[phase] for phase in back))
    idle = forward - sums["forward"] - waits["forward"] + backward - running
    stretch = backward / running if running else 1.0
    return Timed(
        forward_s=forward,
        backward_s=backward,
        weight_s=(sums["wgrad"] + waits["wgrad"]) * stretch,
        recompute_s=(sums["recompute"] + waits["recompute"]) * stretch,
        exposed_s=shown,
        host_s=idle,
        matmul_s=sum(
            (getattr(block, phase).matmul_s + getattr(block, phase).attention_s) / gain / software.efficiency
            for phase in sums
        ),
    )


def host_seconds(  # noqa: PLR0917 -- all that it depends on
    collective: Collective, ranks: int, stride: int, plan: Plan, software: Software, cluster: Cluster
) -> float:
    """What the hosts need for a collective: every one of them must have come to it."""
    nodes = max(1.0, ranks * stride / cluster.node_gpus)
    seconds = software.host_collective_s + software.host_network_s * math.log2(nodes)
    if plan.pp > 1 and "tp" in collective.axes:
        seconds += software.pipelined_hop_s * ranks
    return seconds


def _kernels(phase: Phase, software: Software, gain: float) -> float:
    products = (phase.matmul_s + phase.attention_s) / gain
    return (products + phase.memory_s) / software.efficiency


def overlap_share(plan: Plan, software: Software, cluster: Cluster) -> float:
    """How much of tensor parallelism's communication hides: user buffers are copies between devices of one node."""
    return 0.0 if cluster.crosses(*plan.group(("tp",))) else software.tp_overlap


def _hidden(found: list[tuple[Collective, float]], phase: Phase, tp_overlap: float, gain: float) -> float:
    """Seconds of communication behind the same layer's kernels."""
    tensor = sum(seconds for collective, seconds in found if "tp" in collective.axes)
    ring = sum(seconds for collective, seconds in found if collective.how == "ring")
    return min(tp_overlap * tensor, phase.matmul_s / gain) + min(ring, phase.attention_s / gain)
