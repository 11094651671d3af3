"""The costs of every kind of layer, for every plan of a space: a table for the estimate and the detailed evaluation.

A layer's cost depends only on tp, cp, ep, sequence parallelism, recomputation and the micro-batch, so a few thousand
layers serve millions of plans. Every size of a layer is affine in the micro-batch: a layer built for two of them is
known for any. If there is only one micro-batch, as in a space of one plan, it is built for that one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from choreo.hardware import Device
from choreo.plan.job import TrainingJob
from choreo.plan.layer.kernels import KernelKind, LayerPass, time_kernels
from choreo.plan.layer.timing import LayerTimes, PassTimes, clock_gain, pass_times, stack_passes, time_layer
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
from choreo.plan.memory.offload import waiting_s
from choreo.plan.pipeline.dual import DUAL
from choreo.plan.search.axes import modules_of
from choreo.plan.search.space import Space
from choreo.workload import Plan
from choreo.workload.plan import RECOMPUTE, SCHEDULES

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
DUAL_CODES = [SCHEDULES.index(name) for name in DUAL]


@dataclass(frozen=True, slots=True, eq=False)
class LayerTable:
    """Costs by layer, and which layer each plan of a space has."""

    row: Ints  # of each plan
    plain: Ints  # the same layer without recomputation, for plans that recompute only some layers
    values: Floats  # FIELDS x KINDS x rows
    exposed_s: Mapping[str, Mapping[str, Floats]]  # by kind and by "axes collective", for each row: see `exposed`

    def get(self, kind: str, field: str, plans: Ints | slice = slice(None)) -> Floats:
        """One figure of one kind of layer, for each plan."""
        found: Floats = self.values[FIELDS.index(field), KINDS.index(kind), self.row[plans]]
        return found

    def of_plan(self, plan: int) -> LayerTable:
        """The table of a single plan."""
        return replace(self, row=self.row[[plan]], plain=self.plain[[plan]])

    def without(self) -> LayerTable:
        """The table of the same plans without recomputation."""
        return replace(self, row=self.plain)

    def exposed(self, plan: int) -> dict[str, dict[str, float]]:
        """Seconds of exposed communication in each kind of layer of one plan, by "axes collective"."""
        row = self.row[plan]
        return {
            kind: {name: float(seconds.flat[row]) for name, seconds in found.items()}
            for kind, found in self.exposed_s.items()
        }


def tabulate(job: TrainingJob, space: Space) -> LayerTable:
    """The table for a space."""
    piped = (space["pp"] > 1) & (job.software.pipelined_hop_s > 0)
    # DualPipe hides the all_to_all of experts.
    dual = (space["pp"] > 1) & np.isin(space["schedule"], DUAL_CODES) & (job.model.experts > 0)
    code = 2 * piped.astype(np.int64) + dual
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
            schedule=DUAL[0] if dual[row] else "1f1b",
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
        row.astype(np.int64), plain.astype(np.int64), values.reshape(len(FIELDS), len(KINDS), -1), exposed
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Built:
    """The distinct layers of a kind, at two micro-batches, and which of them each plan has."""

    plans: list[Plan]  # the first plan with each layer
    less: list[LayerWork]
    more: list[LayerWork]
    of_plan: Ints


def _values(job: TrainingJob, plans: list[Plan], batches: Ints) -> tuple[Floats, Mapping[str, Mapping[str, Floats]]]:
    """Arrays of FIELDS x KINDS x plans x micro-batches, and the exposed communication of each plan."""
    model = job.model
    counts = Counter(layer_kind(model, layer) for layer in range(model.layers))
    counts.update(embedding=1, head=1)
    if model.mtp_layers:
        counts.update(dict.fromkeys(further_kinds(model), model.mtp_layers))
    low, high = BUILT if len(batches) > 1 else (int(batches[0]), int(batches[0]))
    steps = (batches - low) / max(1, high - low)
    built = {kind: _build(job, kind, plans, (low, high)) for kind in counts}
    passes = _passes(job, built, steps)
    gain = _gain(job, counts, {kind: time_layer(found, job.software) for kind, found in passes.items()})
    values = np.zeros((len(FIELDS), len(KINDS), len(plans), len(batches)))
    exposed: dict[str, Mapping[str, Floats]] = {}
    for kind, layers in built.items():
        times = time_layer(passes[kind], job.software, gain)
        exposed[kind] = times.exposed_s
        here = values[:, KINDS.index(kind)]
        here[: len(TIMES)] = [getattr(times, name) for name in TIMES]
        sizes = np.array([_sizes(*both, steps) for both in zip(layers.less, layers.more, strict=True)])
        here[len(TIMES) :] = np.moveaxis(sizes, 1, 0)[:, layers.of_plan]
        _offload(here, job, kind)
    return values, exposed


def _build(job: TrainingJob, kind: str, plans: list[Plan], sizes: tuple[int, int]) -> _Built:
    """The layers of a kind that some plans have, each built once for two micro-batches."""
    numbers: dict[tuple[object, ...], int] = {}
    firsts: list[Plan] = []
    of_plan: list[int] = []
    for plan in plans:
        again = () if kind in OUTSIDE else (plan.recompute, plan.recompute_modules)
        of_plan.append(numbers.setdefault((*_group(kind, plan), *again), len(numbers)))
        if len(numbers) > len(firsts):
            firsts.append(plan)
    style = job.software.style
    pairs = [
        [layer_work(kind, job.model, _seen(kind, plan, size), job.seq, style) for size in sizes] for plan in firsts
    ]
    return _Built(firsts, [less for less, _ in pairs], [more for _, more in pairs], np.array(of_plan, np.int64))


def _group(kind: str, plan: Plan) -> tuple[int, ...]:
    """What the passes of a kind of layer depend on, besides the micro-batch and recomputation."""
    group = (plan.tp, plan.cp, plan.sequence_parallel, plan.pp)
    return (*group, plan.ep, plan.etp, plan.dp, plan.schedule in DUAL) if kind in WITH_EXPERTS else group


def _passes(job: TrainingJob, built: Mapping[str, _Built], steps: Floats) -> dict[str, dict[str, PassTimes]]:
    """The times of each kind's passes, by the names of `PASSES`: arrays of plans by steps."""
    # A pass is the same object for every way to recompute, so it is timed once.
    numbers: dict[LayerPass, int] = {}
    less: list[LayerPass] = []
    for layers in built.values():
        for one, other in zip(layers.less, layers.more, strict=True):
            for small, large in zip(one.passes, other.passes, strict=True):
                if numbers.setdefault(large, len(numbers)) == len(less):
                    less.append(small)
    more = tuple(numbers)
    timed = time_kernels(less, more, steps, job.device) if len(steps) > 1 else _kernels_once(more, job.device)
    known: dict[tuple[object, ...], PassTimes] = {}
    found: dict[str, dict[str, PassTimes]] = {}
    for kind, layers in built.items():
        groups = [_group(kind, plan) for plan in layers.plans]
        found[kind] = {}
        for place, name in enumerate(PASSES):
            column: list[PassTimes] = []
            for plan, group, work in zip(layers.plans, groups, layers.more, strict=True):
                at = numbers[work.passes[place]]
                key, again = (at, name, *group), name == "recompute"
                if key not in known:
                    seconds = {curve: times[at] for curve, times in timed.items()}
                    known[key] = pass_times(
                        less[at], more[at], steps, seconds, plan, job.software, job.cluster, job.device, again=again
                    )
                column.append(known[key])
            found[kind][name] = stack_passes(column, layers.of_plan)
    return found


def _offload(values: Floats, job: TrainingJob, kind: str) -> None:
    """Offload a share of what a layer keeps to the host; passes wait for copies that take longer than they do."""
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

    No layer depends on the pipeline, only a layer with experts on expert parallelism, and neither the embedding nor the
    head is recomputed.
    """
    if kind in OUTSIDE:
        plan = plan.without_recomputation()
    if kind not in WITH_EXPERTS:
        plan = replace(plan, ep=1, etp=0, dp=1)
    return replace(plan, pp=1, micro_batch=micro_batch)


def _replicas(tp: int, ep: int, etp: int) -> int:
    """The least dp over which the experts can be divided; no layer depends on more."""
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
    """The gain in clock speed over all layers of the model, for each plan at each micro-batch."""
    products = sum(counts[kind] * found.matmul_s for kind, found in times.items())
    everything = sum(counts[kind] * (found.forward_s + found.backward_s) for kind, found in times.items())
    waiting = sum(counts[kind] * found.waiting_s(job.device) for kind, found in times.items())
    rest = np.maximum(0.0, np.asarray(everything) - products - waiting)
    mixtures = zip(*(np.ravel(part).tolist() for part in (products, rest, waiting)), strict=True)
    return np.array([clock_gain(job.device, *mixture) for mixture in mixtures]).reshape(rest.shape)
