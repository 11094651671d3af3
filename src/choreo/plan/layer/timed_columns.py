"""A block under a program for many micro-batches at once: `timing.timed` with arrays in place of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from choreo.plan.layer.kernels import Phase
from choreo.plan.layer.recorded import steps_from
from choreo.plan.layer.timing import host_seconds, overlap_share
from choreo.plan.network import collective_time
from choreo.plan.software import Software
from choreo.workload import Collective, Plan

if TYPE_CHECKING:
    from choreo.plan.job import TrainingJob

__all__ = ["Pass", "TimedColumns", "timed_columns"]

Floats = npt.NDArray[np.float64]
Link = tuple[Collective, float]  # for the first of `BUILT` sequences, and bytes that the second adds


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass over a block: how many kernels, what of their time does not depend on sizes, and its collectives."""

    phase: Phase
    attentions: int
    links: tuple[Link, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TimedColumns:
    """Seconds of one micro-batch through one block, at each micro-batch."""

    forward_s: Floats
    backward_s: Floats
    weight_s: Floats
    exposed_s: Floats
    host_s: Floats
    matmul_s: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Timing:
    """Kernels and communication of each pass, before the clock's gain is known."""

    products: Mapping[str, Floats]  # seconds of matrix products and attention
    matmul: Mapping[str, Floats]
    attention: Mapping[str, Floats]
    memory: Mapping[str, Floats]
    tensor: Mapping[str, Floats]  # communication over tp that can hide, that round a ring, and all of it
    ring: Mapping[str, Floats]
    sent: Mapping[str, Floats]
    host: Mapping[str, float]
    software: Software

    def at(self, gain: Floats | float) -> TimedColumns:
        """With matrix products so much faster."""
        efficiency = self.software.efficiency
        sums, waits = {}, {}
        for name in ("forward", "recompute", "dgrad", "wgrad"):
            sums[name] = (self.products[name] / gain + self.memory[name]) / efficiency
            hidden = np.minimum(self.tensor[name], self.matmul[name] / gain)
            hidden = hidden + np.minimum(self.ring[name], self.attention[name] / gain)
            waits[name] = self.sent[name] - hidden
        forward = np.maximum(sums["forward"] + waits["forward"], self.host["forward"])
        back = ("recompute", "dgrad", "wgrad")
        running = sum((sums[name] + waits[name] for name in back), np.zeros_like(forward))
        backward = np.maximum(running, sum(self.host[name] for name in back))
        idle = forward - sums["forward"] - waits["forward"] + backward - running
        stretch = np.divide(backward, running, out=np.ones_like(backward), where=running > 0)
        products = sum(self.products.values(), np.zeros_like(forward))
        return TimedColumns(
            forward_s=forward,
            backward_s=backward,
            weight_s=(sums["wgrad"] + waits["wgrad"]) * stretch,
            exposed_s=sum(waits.values(), np.zeros_like(forward)),
            host_s=idle,
            matmul_s=products / gain / efficiency,
        )


def timed_columns(  # noqa: PLR0917 -- all that the times depend on
    passes: Mapping[str, Pass],
    recompute: str,
    plan: Plan,
    job: TrainingJob,
    micro_batches: Floats,
    answers: Mapping[str, Mapping[str, Floats]],
) -> _Timing:
    """For one way to recompute; `answers` are the seconds of kernels by pass and by what binds them."""
    software = job.software
    names = {"forward": "forward", "recompute": recompute, "dgrad": "dgrad", "wgrad": "wgrad"}
    matmul: dict[str, Floats] = {}
    attention: dict[str, Floats] = {}
    memory: dict[str, Floats] = {}
    tensor: dict[str, Floats] = {}
    ring: dict[str, Floats] = {}
    sent: dict[str, Floats] = {}
    host: dict[str, float] = {}
    overlapped = overlap_share(plan, software, job.cluster)
    for name, of in names.items():
        found, seconds = passes[of], answers[of]
        matmul[name] = seconds["matmul"]
        # The stand-in answered a second for each attention kernel: more or fewer say that it counts so often.
        often = found.phase.attention_s / found.attentions if found.attentions else 1.0
        attention[name] = seconds["attention"] * often
        memory[name] = seconds["memory"] + found.phase.memory_s
        tensor[name] = ring[name] = sent[name] = np.zeros(len(micro_batches))
        host[name] = found.phase.kernels * software.host_s
        for link, more in found.links:
            ranks, stride = plan.group(link.axes)
            sizes = link.size_bytes + steps_from(micro_batches) * more
            took = collective_time(job.cluster, link.kind, sizes, ranks, stride)
            host[name] += host_seconds(link, ranks, stride, plan, software, job.cluster)
            sent[name] = sent[name] + took
            if "tp" in link.axes:
                tensor[name] = tensor[name] + overlapped * took
            if link.how == "ring":
                ring[name] = ring[name] + took
    products = {name: matmul[name] + attention[name] for name in names}
    return _Timing(products, matmul, attention, memory, tensor, ring, sent, host, software)
