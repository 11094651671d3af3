"""What data parallelism adds to a step: summing gradients, gathering parameters, and how much of it is exposed.

Up to ZeRO-2 gradients are summed once per step, in buckets, during the backward pass of the last micro-batch or after
it. ZeRO-1 and 2 gather the new parameters before the next forward pass, or during it. With ZeRO-3 every micro-batch
gathers each layer forward and again backward, and reduces its gradients, unless the program does that once per step.
Results are arrays of stages by plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choreo.plan.data_parallel.overlap import backward_exposed, forward_exposed, slowed
from choreo.plan.data_parallel.send_times import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, SendTimes, gathered_bytes
from choreo.plan.layer.work import OUTSIDE
from choreo.plan.software import Software
from choreo.plan.stages import Kinds, PlanBatch
from choreo.workload.plan import RECOMPUTE

__all__ = ["DataParallelCost", "by_micro_batch", "data_parallel_cost"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Figures = dict[Kinds, Floats]
Fields = tuple[Floats, Floats, Floats, Floats]  # of a DataParallelCost

# FSDP copies gathered tensors into place, and widens gradients for their sum: bytes per 16-bit parameter.
COPIED_FORWARD, COPIED_REDUCED = 4, 6
# FSDP keeps two layers gathered: the current one and the next.
AHEAD = 2
FULL = RECOMPUTE.index("full")


@dataclass(frozen=True, slots=True, eq=False)
class DataParallelCost:
    """Seconds added to the forward and backward passes: of every micro-batch, or of a step (see `by_micro_batch`)."""

    forward_s: Floats
    backward_s: Floats
    gather_exposed_s: Floats  # the exposed part of the collectives; the rest is contention and copies
    reduce_exposed_s: Floats

    @property
    def total_s(self) -> Floats:
        """Everything that data parallelism adds."""
        return self.forward_s + self.backward_s


def by_micro_batch(batch: PlanBatch) -> Bools:
    """Which plans reduce gradients for every micro-batch: ZeRO-3 and ZeRO-2, which keep a share of them.

    With a pipeline, parameters stay gathered and gradients unsharded from the first micro-batch to the last.
    """
    zero = batch.columns["zero"]
    if batch.pp > 1:
        return np.zeros(len(zero), np.bool_)
    return np.asarray(zero >= 2)


def data_parallel_cost(batch: PlanBatch, sends: SendTimes) -> DataParallelCost:
    """What is added at each stage, for each plan."""
    shape = (4, len(batch.stages), len(batch.plans))
    found = np.zeros(shape)
    software, columns = batch.job.software, batch.columns
    often, shared = by_micro_batch(batch), batch.replicas > 1
    hidden = (columns["overlap"] == 1) & software.overlaps(batch.pp)
    ways: tuple[tuple[Bools, Callable[[_Units], Fields]], ...] = (
        (shared & ~often & ~hidden, _after_the_backward_pass),
        (shared & ~often & hidden, _under_the_passes),
        (shared & often, _every_tensor if software.gather == "tensor" else _every_layer),
    )
    for chosen, cost in ways:
        plans = np.flatnonzero(chosen)
        if not len(plans):
            continue
        part = batch if len(plans) == len(chosen) else batch.take(plans)
        alike = {layers: cost(_units(part, layers, sends)) for layers in {stage.layers for stage in batch.stages}}
        for row, stage in enumerate(batch.stages):
            found[:, row, plans] = alike[stage.layers]
    return DataParallelCost(*found)


@dataclass(frozen=True, slots=True, eq=False)
class _Units:
    """The units of a stage, each gathered and reduced as one: embedding and head, then layer after layer.

    Embedding and head are used first and last. Figures are by kind of unit: arrays with one number per plan.
    """

    batch: PlanBatch
    sends: SendTimes
    order: tuple[Kinds, ...]
    forward_s: Figures
    backward_s: Figures

    @property
    def zero(self) -> Ints:
        """The ZeRO stage of each plan."""
        return self.batch.columns["zero"]

    @property
    def software(self) -> Software:
        """The program."""
        return self.batch.job.software

    @property
    def gathers(self) -> Floats:
        """How often parameters are gathered for a forward pass.

        FSDP's ZeRO-2 does so for each; a program that keeps gradients of its own, as Megatron, once a step.
        """
        once = (self.zero == 2) & (self.software.accumulate_bytes > 0)
        return np.where(once, 1 / self.batch.micro_batches, 1.0)

    def sent(self, collective: str, *, bucketed: bool) -> Figures:
        """Seconds to send each unit."""
        cut = self.batch.columns["cut"]
        return {unit: self.sends.seconds(unit, collective, bucketed=bucketed)[cut] for unit in self.forward_s}

    def once_a_step(self) -> tuple[Figures, Figures]:
        """Seconds to gather and to reduce each unit once. Without ZeRO that is an all_reduce."""
        gather, scatter, whole = (self.sent(name, bucketed=True) for name in (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE))
        if self.software.zero1_reduces == ALL_REDUCE:
            scatter = {unit: np.where(self.zero == 1, whole[unit], seconds) for unit, seconds in scatter.items()}
        copied = self.copied()
        return (
            {unit: np.where(self.zero > 0, seconds + copied[unit], 0.0) for unit, seconds in gather.items()},
            {unit: np.where(self.zero > 0, seconds, whole[unit]) for unit, seconds in scatter.items()},
        )

    def copied(self) -> Figures:
        """Seconds in which the host copies each rank's part of each gathered tensor into place."""
        parts = _figures(self.batch, self.order, "tensors")
        each = self.software.zero1_copy_s * self.batch.replicas
        return {unit: tensors * each for unit, tensors in parts.items()}

    def each(self, figures: Figures) -> list[Floats]:
        """A figure of every unit, in order of the forward pass."""
        return [figures[unit] for unit in self.order]

    def total(self, figures: Figures) -> Floats:
        """The sum over all units."""
        counts = Counter(self.order)
        return np.asarray(sum(counts[unit] * figure for unit, figure in figures.items()))


def _units(batch: PlanBatch, layers: Kinds, sends: SendTimes) -> _Units:
    outside = tuple(kind for kind in layers if kind in OUTSIDE)
    order = (outside, *((kind,) for kind in layers if kind not in OUTSIDE))
    return _Units(batch, sends, order, _figures(batch, order, "forward_s"), _figures(batch, order, "backward_s"))


def _figures(batch: PlanBatch, units: tuple[Kinds, ...], field: str) -> Figures:
    nothing = np.zeros(len(batch.plans))
    return {unit: sum((batch.layer(kind, field) for kind in unit), nothing) for unit in dict.fromkeys(units)}


def _after_the_backward_pass(units: _Units) -> Fields:
    """Everything is exposed."""
    gather, reduce = (units.total(seconds) for seconds in units.once_a_step())
    moved = units.total(_figures(units.batch, units.order, "parameters")) * units.software.bucket_moved
    copied = units.batch.job.device.memory_time(moved, "copy") * (moved > 0)
    return gather, reduce + copied, gather, reduce


def _under_the_passes(units: _Units) -> Fields:
    """Gradients overlap the last micro-batch's backward pass, parameters the first forward pass."""
    share, contention = units.software.dp_bandwidth, units.software.contention
    gather, reduce = ({unit: one / share for unit, one in seconds.items()} for seconds in units.once_a_step())
    back = backward_exposed(units.each(units.backward_s), units.each(reduce))
    ahead = np.zeros_like(back)
    if (units.zero > 0).any():
        ahead = forward_exposed(units.each(units.forward_s), units.each(gather))
        ahead = np.where(units.zero > 0, ahead, 0.0)
    forward, backward = units.total(units.forward_s), units.total(units.backward_s)
    gathered, reduced = units.total(gather), units.total(reduce)
    # What is left when a pass ends has the whole bandwidth, so overlapping never takes longer than waiting.
    return (
        np.minimum(ahead + slowed(forward, gathered, contention) - forward, share * gathered),
        np.minimum(back + slowed(backward, reduced, contention) - backward, share * reduced),
        np.minimum(ahead, share * gathered),
        np.minimum(back, share * reduced),
    )


def _every_tensor(units: _Units) -> Fields:
    """ZeRO-3 parameter by parameter: nothing is prefetched, and recomputation gathers once more.

    In 2021 DeepSpeed all-reduced gradients and kept its own part.
    """
    share = units.software.dp_bandwidth
    gather = units.gathers * units.total(units.sent(ALL_GATHER, bucketed=False)) / share
    reduce = units.total(units.sent(ALL_REDUCE, bucketed=False)) / share
    times = np.where(units.batch.columns["recompute"] == FULL, 2, 1) * (units.zero == 3)
    return gather, times * gather + reduce, gather + times * gather, reduce


def _every_layer(units: _Units) -> Fields:
    """ZeRO-3: gather, use, gather again, use, reduce, layer by layer; ZeRO-2 keeps what it gathered."""
    share, contention = units.software.dp_bandwidth, units.software.contention
    job = units.batch.job
    copy, sizes = job.device.memory_time, _figures(units.batch, units.order, "parameters")
    wide = gathered_bytes(job.software, job.precision) / 2
    gathers, reduces = (units.sent(name, bucketed=False) for name in (ALL_GATHER, REDUCE_SCATTER))
    # Work that is done once per step, as a share of every micro-batch.
    once = 1 / units.batch.micro_batches if job.software.reduces == "step" else np.ones(len(units.batch.plans))
    often = units.gathers
    gather, again, reduce, forward, backward = {}, {}, {}, {}, {}
    for unit, size in sizes.items():
        gather[unit], reduce[unit] = often * gathers[unit] / share, once * reduces[unit] / share
        again[unit] = np.where(units.zero == 3, gather[unit], 0.0)
        ahead = units.forward_s[unit] + often * copy(size * COPIED_FORWARD * wide, "copy")
        back = units.backward_s[unit] + copy(size * (COPIED_FORWARD + COPIED_REDUCED * once) * wide, "copy")
        forward[unit] = slowed(ahead, gather[unit], contention)
        backward[unit] = slowed(back, again[unit] + reduce[unit], contention)
    front = forward_exposed(units.each(forward), units.each(gather), ahead=AHEAD)
    # Embedding and head stay gathered.
    regathered = [np.zeros_like(front), *units.each(again)[1:]]
    behind = backward_exposed(units.each(backward), units.each(reduce), regathered, ahead=AHEAD)
    gathered, reduced = units.total(again), units.total(reduce)
    of_gather = np.divide(gathered, gathered + reduced, out=np.zeros_like(gathered), where=gathered + reduced > 0)
    return (
        front + units.total(forward) - units.total(units.forward_s),
        behind + units.total(backward) - units.total(units.backward_s),
        front + behind * of_gather,
        behind * (1 - of_gather),
    )
