"""The costs of every kind of layer, for every plan of a space: what the estimate and the detailed evaluation look up.

A layer's cost depends on tp, cp, ep, sequence parallelism, recomputation and the micro-batch alone, so a few thousand
layers stand for millions of plans. Every size of a layer is affine in the micro-batch: built for two of them, a layer
is known for any. Where there is one micro-batch, as in a space of one plan, it is built for that.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from choreo.hardware import Device
from choreo.plan.job import TrainingJob
from choreo.plan.layer.kernels import KernelKind, LayerPass, time_kernels
from choreo.plan.layer.timing import LayerTimes, PassTimes, clock_gain, pass_times, time_layer
from choreo.plan.layer.work import (
    KINDS,
    LAYERS,
    OUTSIDE,
    PASSES,
    WITH_EXPERTS,
    LayerWork,
    further_kinds,
    layer_kind,
    layer_work,
)
from choreo.plan.offload import waiting_s
from choreo.plan.space import Space
from choreo.plan.space_axes import modules_of
from choreo.workload import Plan
from choreo.workload.plan import RECOMPUTE

__all__ = ["FIELDS", "LayerTable", "tabulate"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

TIMES = ("forward_s", "backward_s", "weight_s", "recompute_s", "host_s", "matmul_s", "attention_s", "memory_s")
SIZES = ("saved_bytes", "input_bytes", "working_bytes", "parameters", "expert_parameters", "tensors")
FIELDS = (*TIMES, *SIZES, "widest_bytes", "recomputed_flops")
KEY = ("tp", "cp", "ep", "etp", "sequence_parallel")
# Two primes, so that no two tensors have the same size by chance: equal sizes decide which operators are fused.
BUILT = (5, 7)
NONE = RECOMPUTE.index("none")


@dataclass(frozen=True, slots=True, eq=False)
class LayerTable:
    """Costs by layer, and which layer each plan of a space has."""

    row: Ints  # of each plan
    plain: Ints  # the same layer without recomputation, where some layers of a plan do without
    values: Floats  # FIELDS x KINDS x rows
    exposed_s: Sequence[Mapping[str, Mapping[str, Floats]]]  # by kind and by "axes collective": see `exposed`
    batches: int  # micro-batch sizes, neighbours in a row

    def get(self, kind: str, field: str, plans: Ints | slice = slice(None)) -> Floats:
        """One figure of one kind of layer, for each plan."""
        found: Floats = self.values[FIELDS.index(field), KINDS.index(kind), self.row[plans]]
        return found

    def without(self) -> LayerTable:
        """The table of the same plans without recomputation."""
        return replace(self, row=self.plain)

    def exposed(self, plan: int) -> dict[str, dict[str, float]]:
        """Seconds of exposed communication in each kind of layer of one plan, by "axes collective"."""
        layer, batch = divmod(int(self.row[plan]), self.batches)
        return {
            kind: {name: float(seconds[batch]) for name, seconds in found.items()}
            for kind, found in self.exposed_s[layer].items()
        }


def tabulate(job: TrainingJob, space: Space) -> LayerTable:
    """The table for a space."""
    piped = (space["pp"] > 1) & (job.software.pipelined_hop_s > 0)
    code = piped.astype(np.int64)
    for name in KEY:
        code = code * (int(space[name].max(initial=0)) + 1) + space[name]
    _, first, base = np.unique(code, return_index=True, return_inverse=True)
    batches, batch = np.unique(space["micro_batch"], return_inverse=True)
    ways, way = np.unique(space["recompute"] + len(RECOMPUTE) * space["recompute_modules"], return_inverse=True)
    if (space["recompute_layers"] > 0).any() and NONE not in ways:
        ways, way = np.array([NONE, *ways.tolist()]), way + 1
    plans = [
        Plan(
            tp=int(space["tp"][row]),
            cp=int(space["cp"][row]),
            ep=int(space["ep"][row]),
            etp=int(space["etp"][row]),
            dp=_replicas(*(int(space[name][row]) for name in ("tp", "ep", "etp"))),
            pp=2 if piped[row] else 1,
            sequence_parallel=bool(space["sequence_parallel"][row]),
            recompute=RECOMPUTE[number % len(RECOMPUTE)],
            recompute_modules=modules_of(number // len(RECOMPUTE)),
            precision=space.precision,
        )
        for row in first.tolist()
        for number in ways.tolist()
    ]
    row = (base * len(ways) + way) * len(batches) + batch
    plain = row - way * len(batches) if ways[0] == NONE else row
    values, exposed = _values(job, plans, batches)
    return LayerTable(
        row.astype(np.int64), plain.astype(np.int64), values.reshape(len(FIELDS), len(KINDS), -1), exposed, len(batches)
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Built:
    """A layer at two micro-batches, and where its passes stand among all of them."""

    less: LayerWork
    more: LayerWork
    passes: tuple[int, ...]


def _values(
    job: TrainingJob, plans: list[Plan], batches: Ints
) -> tuple[Floats, list[Mapping[str, Mapping[str, Floats]]]]:
    """Arrays of FIELDS x KINDS x plans x micro-batches, and the exposed communication of each plan."""
    model = job.model
    counts = Counter(layer_kind(model, layer) for layer in range(model.layers))
    counts.update(embedding=1, head=1)
    if model.mtp_layers:
        counts.update(dict.fromkeys(further_kinds(model), model.mtp_layers))
    low, high = BUILT if len(batches) > 1 else (int(batches[0]), int(batches[0]))
    steps = (batches - low) / max(1, high - low)
    # A pass is the same object for every way to recompute: it is timed once.
    numbers: dict[LayerPass, int] = {}
    less: list[LayerPass] = []
    more: list[LayerPass] = []
    layers: list[dict[str, _Built]] = []
    for plan in plans:
        layers.append({})
        for kind in counts:
            one, other = (
                layer_work(kind, model, _seen(kind, plan, size), job.seq, job.software.style) for size in (low, high)
            )
            for small, large in zip(one.passes, other.passes, strict=True):
                if numbers.setdefault(large, len(numbers)) == len(less):
                    less.append(small)
                    more.append(large)
            layers[-1][kind] = _Built(one, other, tuple(numbers[found] for found in other.passes))
    if len(batches) > 1:
        kernels = time_kernels(less, more, steps, job.device)
    else:
        kernels = _kernels_once(tuple(more), job.device)
    values = np.zeros((len(FIELDS), len(KINDS), len(plans), len(batches)))
    exposed: list[Mapping[str, Mapping[str, Floats]]] = []
    known: dict[tuple[int, Plan], PassTimes] = {}
    for number, (plan, built) in enumerate(zip(plans, layers, strict=True)):
        group = plan.without_recomputation()
        passes: dict[str, dict[str, PassTimes]] = {}
        for kind, layer in built.items():
            for at in layer.passes:
                if (at, group) not in known:
                    seconds = {curve: found[at] for curve, found in kernels.items()}
                    known[at, group] = pass_times(less[at], more[at], steps, seconds, group, job.software, job.cluster)
            passes[kind] = {name: known[at, group] for name, at in zip(PASSES, layer.passes, strict=True)}
        gain = _gain(job, counts, {kind: time_layer(found, job.software) for kind, found in passes.items()})
        times = {kind: time_layer(found, job.software, gain) for kind, found in passes.items()}
        exposed.append({kind: found.exposed_s for kind, found in times.items()})
        for kind, layer in built.items():
            here = values[:, KINDS.index(kind), number]
            here[: len(TIMES)] = [getattr(times[kind], name) for name in TIMES]
            here[len(TIMES) :] = _sizes(layer.less, layer.more, steps)
            _offload(here, job, kind)
    return values, exposed


def _offload(values: Floats, job: TrainingJob, kind: str) -> None:
    """Move a share of what a layer keeps to the host; passes wait for copies that take longer than they do."""
    if not job.software.activation_offload or kind not in LAYERS:
        return
    saved, host, share = FIELDS.index("saved_bytes"), FIELDS.index("host_s"), job.software.activation_offload
    for name in ("forward_s", "backward_s"):
        waits = waiting_s(values[FIELDS.index(name)], values[saved], share, job.device)
        values[FIELDS.index(name)] += waits
        values[host] += waits
    values[saved] *= 1 - share


@lru_cache(maxsize=4096)
def _seen(kind: str, plan: Plan, micro_batch: int) -> Plan:
    """The plan as a kind of layer sees it.

    None depends on the pipeline, only a layer with experts on expert parallelism, and neither the embedding nor the
    head is computed again.
    """
    if kind in OUTSIDE:
        plan = plan.without_recomputation()
    if kind not in WITH_EXPERTS:
        plan = replace(plan, ep=1, etp=0, dp=1)
    return replace(plan, pp=1, micro_batch=micro_batch)


def _replicas(tp: int, ep: int, etp: int) -> int:
    """The least dp whose ranks can share out the experts; no layer depends on more."""
    return ep * (etp or tp) // math.gcd(etp or tp, tp)


@lru_cache(maxsize=4096)
def _kernels_once(passes: tuple[LayerPass, ...], device: Device) -> dict[type[KernelKind], Floats]:
    """Kernel times at one micro-batch; cached, because a fit evaluates one plan with many constants."""
    return time_kernels(passes, passes, np.zeros(1), device)


def _sizes(less: LayerWork, more: LayerWork, steps: Floats) -> list[Floats]:
    """Everything about a layer that is not a time, at each step."""

    def at(one: float, other: float) -> Floats:
        return one + steps * (other - one)

    recompute = PASSES.index("recompute")
    widths = [at(*both) for both in zip(less.widths_bytes, more.widths_bytes, strict=True)]
    return [
        *(at(getattr(less, name), getattr(more, name)) for name in SIZES),
        np.max(widths, axis=0) if widths else np.zeros(len(steps)),
        at(less.passes[recompute].flops, more.passes[recompute].flops),
    ]


def _gain(job: TrainingJob, counts: Mapping[str, int], times: Mapping[str, LayerTimes]) -> Floats:
    """The gain in clock speed over all layers of the model, at each micro-batch."""
    products = sum(counts[kind] * found.matmul_s for kind, found in times.items())
    everything = sum(counts[kind] * (found.forward_s + found.backward_s) for kind, found in times.items())
    waiting = sum(counts[kind] * found.waiting_s(job.device) for kind, found in times.items())
    rest = np.maximum(0.0, np.asarray(everything) - products - waiting)
    mixtures = zip(np.asarray(products).tolist(), rest.tolist(), np.asarray(waiting).tolist(), strict=True)
    return np.array([clock_gain(job.device, *mixture) for mixture in mixtures])
