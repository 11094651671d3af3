"""What data parallelism adds, for whole columns of plans: two lanes with n equal layers, in closed form.

With layers that compute for c and send for r each, n of them, and what stands outside of them (c0, r0) at the end, the
backward pass ends at max(n c + r, c + n r) for the layers, and the outside is sent after. Forward, gathering g ahead of
computing f, it is max(f0 + n f, g + n f, n g + f) after the outside was gathered. How long a layer takes to send
depends on how the devices are cut, and on nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from choreo.plan.data_parallel.sharing import BUCKET, BUCKET_A_RANK, COPIED_BACKWARD, COPIED_FORWARD, GATHERED_BYTES
from choreo.plan.job import TrainingJob
from choreo.plan.layer.table import KINDS, Tables
from choreo.plan.network import collective_time
from choreo.plan.software import Software
from choreo.plan.space import Space

__all__ = ["Sending", "each_micro_batch", "sending", "shared_times"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Block = dict[str, Floats]
REDUCE, SUM, GATHER = "reduce_scatter", "all_reduce", "all_gather"


def reduced_bytes(job: TrainingJob) -> int:
    """Of a gradient while it is summed; see `step`."""
    if job.software.gradient_bytes == 2 and job.precision != "fp16" and not job.software.pure:
        return 4
    return job.software.gradient_bytes


def each_micro_batch(zero: Ints, pp: int, software: Software) -> npt.NDArray[np.bool_]:
    """Which plans gather and reduce for every micro-batch; see `data_parallel.by_micro_batch`."""
    often = (zero == 3) | ((zero == 2) & (software.accumulate_bytes == 0))
    return np.asarray(often if pp == 1 else np.zeros_like(often))


@dataclass(frozen=True, slots=True, eq=False)
class Sending:
    """Seconds that each cut takes to send the parameters of a kind of block; keys are kind of block and collective."""

    bucketed: dict[tuple[str, str], Floats]
    whole: dict[tuple[str, str], Floats]


def sending(job: TrainingJob, space: Space, tables: Tables) -> Sending:
    """For every cut of a space and every kind of block."""
    cuts = int(space["cut"].max(initial=-1)) + 1
    _, first = np.unique(space["cut"], return_index=True)
    at = space["cut"][first]
    found = Sending({}, {})
    width = {REDUCE: reduced_bytes(job), SUM: reduced_bytes(job), GATHER: GATHERED_BYTES}
    for kind in KINDS:
        parameters, experts = (tables.get(kind, name, first) for name in ("parameters", "expert_parameters"))
        if not parameters.any():
            continue
        tensors = tables.get(kind, "tensors", first) if job.software.gather == "tensor" else np.ones(len(first))
        for collective in (REDUCE, SUM, GATHER):
            bucketed, whole = np.zeros(cuts), np.zeros(cuts)
            for number, row in enumerate(first.tolist()):
                tp, cp, dp, ep = (int(space[name][row]) for name in ("tp", "cp", "dp", "ep"))
                for amount, ranks, stride in (
                    (parameters[number] - experts[number], dp * cp, tp),
                    (experts[number], dp * cp // ep, tp * ep),
                ):
                    if amount <= 0 or ranks == 1:
                        continue
                    bucket = max(BUCKET, BUCKET_A_RANK * ranks) * width[collective]
                    size = amount * width[collective]
                    alone = size / max(1.0, float(tensors[number]))
                    in_bucket, in_one = collective_time(job.cluster, collective, [bucket, alone], ranks, stride)
                    bucketed[at[number]] += in_bucket * size / bucket
                    whole[at[number]] += in_one * max(1.0, float(tensors[number]))
            found.bucketed[kind, collective], found.whole[kind, collective] = bucketed, whole
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Stage:
    """A stage as n equal layers and what stands outside of them: seconds to compute, parameters, seconds to send."""

    number: int
    forward: Floats
    backward: Floats
    parameters: Floats
    forward_outside: Floats
    backward_outside: Floats
    parameters_outside: Floats
    sent: dict[str, tuple[Floats, Floats]]  # by collective: a layer, and the outside


def shared_times(  # noqa: PLR0917 -- all that the times depend on
    job: TrainingJob,
    counts: tuple[int, ...],
    block: dict[str, Block],
    columns: dict[str, Ints],
    sends: Sending,
    pp: int,
) -> tuple[Floats, Floats]:
    """Seconds added to forward and backward passes of a stage: of each micro-batch with ZeRO-3, else of the step."""
    rows = len(columns["dp"])
    inside = {kind: counts[KINDS.index(kind)] for kind in ("dense", "experts") if counts[KINDS.index(kind)]}
    outside = {kind: 1 for kind in ("embedding", "head") if counts[KINDS.index(kind)]}
    number = max(1, sum(inside.values()))
    forward, backward = np.zeros(rows), np.zeros(rows)
    each = each_micro_batch(columns["zero"], pp, job.software)
    for mask, often in ((~each, False), (each, True)):
        chosen = np.flatnonzero(mask & (columns["dp"] * columns["cp"] > 1))
        if not len(chosen):
            continue
        cut = columns["cut"][chosen]

        def total(of: dict[str, int], field: str, over: int = 1, chosen: Ints = chosen) -> Floats:
            return sum((count / over * block[kind][field][chosen] for kind, count in of.items()), np.zeros(len(chosen)))

        def seconds(of: dict[str, int], name: str, over: int = 1, often: bool = often, cut: Ints = cut) -> Floats:
            table = sends.whole if often else sends.bucketed
            return sum((count / over * table[kind, name][cut] for kind, count in of.items()), np.zeros(len(cut)))

        stage = _Stage(
            number,
            total(inside, "forward_s", number),
            total(inside, "backward_s", number),
            total(inside, "parameters", number),
            total(outside, "forward_s"),
            total(outside, "backward_s"),
            total(outside, "parameters"),
            {name: (seconds(inside, name, number), seconds(outside, name)) for name in (REDUCE, SUM, GATHER)},
        )
        part = {name: columns[name][chosen] for name in ("zero", "overlap", "recompute")}
        work = _every_micro_batch if often else _once_a_step
        forward[chosen], backward[chosen] = work(job, stage, part, pp)
    return forward, backward


def _once_a_step(job: TrainingJob, stage: _Stage, columns: dict[str, Ints], pp: int) -> tuple[Floats, Floats]:
    software, n = job.software, stage.number
    cut = columns["zero"] > 0
    reduce, reduce_outside = (np.where(cut, *both) for both in zip(stage.sent[REDUCE], stage.sent[SUM], strict=True))
    gather, gather_outside = (np.where(cut, seconds, 0.0) for seconds in stage.sent[GATHER])
    hides = software.dp_overlap == "always" or (software.dp_overlap == "without-pipeline" and pp == 1)
    overlapped = (columns["overlap"] == 1) & hides
    share = software.dp_bandwidth
    back = _behind_backward(stage, reduce / share, reduce_outside / share)
    ahead = np.where(cut, _ahead_of_forward(stage, gather / share, gather_outside / share), 0.0)
    slow = software.contention * np.minimum(
        n * stage.backward + stage.backward_outside, (n * reduce + reduce_outside) / share
    )
    ahead_slow = software.contention * np.minimum(
        n * stage.forward + stage.forward_outside, (n * gather + gather_outside) / share
    )
    return (
        np.where(overlapped, ahead + ahead_slow, n * gather + gather_outside),
        np.where(overlapped, back + slow, n * reduce + reduce_outside),
    )


def _behind_backward(stage: _Stage, reduce: Floats, outside: Floats) -> Floats:
    n, c = stage.number, stage.backward
    lane = np.maximum(n * c + reduce, c + n * reduce)
    done = n * c + stage.backward_outside
    return np.asarray(np.maximum(done, np.maximum(lane, done) + outside) - done)


def _ahead_of_forward(stage: _Stage, gather: Floats, outside: Floats) -> Floats:
    n, f, f0 = stage.number, stage.forward, stage.forward_outside
    done = outside + np.maximum(f0 + n * f, np.maximum(gather + n * f, n * gather + f))
    return np.asarray(np.maximum(done - f0 - n * f, 0.0))


def _every_micro_batch(job: TrainingJob, stage: _Stage, columns: dict[str, Ints], pp: int) -> tuple[Floats, Floats]:
    software, n = job.software, stage.number
    gather, gather_outside = stage.sent[GATHER]
    reduce, reduce_outside = stage.sent[REDUCE]
    twice = columns["zero"] == 3  # ZeRO-2 keeps what it gathered
    if software.gather == "tensor":
        often = np.where(columns["recompute"] == 2, 2, 1) * twice
        return n * gather + gather_outside, often * (n * gather + gather_outside) + n * reduce + reduce_outside
    again = np.where(twice, gather, 0.0)
    share = software.dp_bandwidth
    gather, gather_outside, reduce, reduce_outside, again = (
        seconds / share for seconds in (gather, gather_outside, reduce, reduce_outside, again)
    )
    memory = job.device.memory_time
    forward = stage.forward + memory(stage.parameters * COPIED_FORWARD, "copy")
    backward = stage.backward + memory(stage.parameters * COPIED_BACKWARD, "copy")
    forward_outside = stage.forward_outside + memory(stage.parameters_outside * COPIED_FORWARD, "copy")
    backward_outside = stage.backward_outside + memory(stage.parameters_outside * COPIED_BACKWARD, "copy")
    forward = forward + software.contention * np.minimum(forward, gather)
    backward = backward + software.contention * np.minimum(backward, again + reduce)
    slowed = replace(stage, forward=forward, forward_outside=forward_outside)
    front = _ahead_of_forward(slowed, gather, gather_outside)
    done = n * backward + backward_outside
    lane = np.maximum(again + n * backward + reduce, backward + n * (again + reduce))
    back = np.maximum(done + again, np.maximum(lane, done + again) + reduce_outside) - done
    return (
        front + n * (forward - stage.forward) + forward_outside - stage.forward_outside,
        back + n * (backward - stage.backward) + backward_outside - stage.backward_outside,
    )
