"""The inner search: step time and memory of every plan of a space at once, in closed form.

Plans with the same pp and interleave have the same stages; of these only those that differ are computed (the first, the
last, and the few kinds between). With stage times t and m micro-batches a pipeline takes

    1F1B          (m - 1) max t + sum t        and no stage can run ahead further than it may hold activations
    interleaved   the fill, sum t - max t, divided by the chunks
    zero-bubble   the fill with the weight gradients moved into it

and data parallelism adds what two lanes of n equal layers leave: see `two_lanes`. The detailed evaluation has the last
word; a test holds the two to each other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choreo.plan.data_parallel.estimate import Sending, each_micro_batch, sending, shared_times
from choreo.plan.estimate_memory import stage_bytes
from choreo.plan.job import TrainingJob
from choreo.plan.layer.table import KINDS, Tables
from choreo.plan.network import collective_time
from choreo.plan.space import Space
from choreo.plan.stages import cost_split
from choreo.plan.step import ADAM_BYTES, COPY_BYTES, NORM_BYTES, ZERO_BYTES
from choreo.workload import stage_layers
from choreo.workload.plan import SCHEDULES

__all__ = ["Estimate", "estimate"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
GPIPE, ZERO_BUBBLE = SCHEDULES.index("gpipe"), SCHEDULES.index("zero-bubble")


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """Seconds of a step and bytes of the fullest device, for each plan of a space."""

    time_s: Floats
    memory_bytes: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Plans with the same pp and interleave, as columns, and the kinds of stage they have."""

    plans: Ints
    pp: int
    chunks: int
    kinds: tuple[tuple[int, ...], ...]  # blocks of each kind (embedding, dense, experts, head), a row a kind of stage
    numbers: tuple[int, ...]  # how many stages are of that kind
    firsts: tuple[int, ...]  # and where the first of them stands


def estimate(job: TrainingJob, space: Space, tables: Tables) -> Estimate:
    """Time and memory of every plan."""
    time_s, memory = np.zeros(len(space)), np.zeros(len(space))
    chunks = np.where(space["pp"] > 1, space["interleave"], 1)
    code = space["pp"] * (int(chunks.max(initial=1)) + 1) + chunks
    order = np.argsort(code, kind="stable")
    bounds = np.flatnonzero(np.diff(code[order], prepend=-1))
    sends = sending(job, space, tables)
    for start, end in zip(bounds, [*bounds[1:], len(order)], strict=True):
        plans = order[start:end]
        group = _group(job, plans, int(space["pp"][plans[0]]), int(chunks[plans[0]]))
        columns = {name: space[name][plans] for name in space.columns}
        time_s[plans], memory[plans] = _run(job, group, columns, tables, sends)
    return Estimate(time_s, memory)


def _group(job: TrainingJob, plans: Ints, pp: int, chunks: int) -> Group:
    """The kinds of stage there are, each with how often."""
    by_cost = job.software.stage_split == "cost" and pp > 1 and chunks == 1
    held = cost_split(job.model, pp) if by_cost else stage_layers(job.model.layers, pp, chunks)
    found: dict[tuple[int, ...], list[int]] = {}
    for device in range(pp):
        counts: Counter[str] = Counter()
        for chunk in range(chunks):
            number = chunk * pp + device
            counts["embedding"] += number == 0
            counts["head"] += number == len(held) - 1
            for layer in held[number]:
                counts["experts" if job.model.has_experts(layer) else "dense"] += 1
        # Stages further on hold fewer micro-batches: of those that are alike the first needs the most memory.
        found.setdefault(tuple(counts[kind] for kind in KINDS), []).append(device)
    return Group(
        plans, pp, chunks, tuple(found), tuple(map(len, found.values())), tuple(at[0] for at in found.values())
    )


def _run(
    job: TrainingJob, group: Group, columns: dict[str, Ints], tables: Tables, sends: Sending
) -> tuple[Floats, Floats]:
    software = job.software
    micro_batches = (job.global_batch // (columns["dp"] * columns["micro_batch"])).astype(np.float64)
    block = {
        kind: {
            field: tables.get(kind, field, group.plans)
            for field in (
                "forward_s", "backward_s", "weight_s", "saved_bytes", "input_bytes", "working_bytes", "widest_bytes",
                "parameters", "expert_parameters", "tensors",
            )
        }
        for kind in KINDS
        if any(counts[KINDS.index(kind)] for counts in group.kinds)
    }  # fmt: skip

    def total(counts: tuple[int, ...], field: str) -> Floats:
        found = np.zeros(len(group.plans))
        for kind, fields in block.items():
            count = counts[KINDS.index(kind)]
            if count:
                found = found + count * fields[field]
        return found

    each = each_micro_batch(columns["zero"], group.pp, software)
    forward, backward, weight, after, optimizer, memory = [], [], [], [], [], []
    for counts, first in zip(group.kinds, group.firsts, strict=True):
        ahead, behind = shared_times(job, counts, block, columns, sends, group.pp)
        forward.append(total(counts, "forward_s") + np.where(each, ahead, 0.0))
        backward.append(total(counts, "backward_s") + np.where(each, behind, 0.0))
        weight.append(total(counts, "weight_s"))
        after.append(np.where(each, 0.0, ahead + behind))
        optimizer.append(_optimizer_s(job, total(counts, "parameters"), total(counts, "expert_parameters"), columns))
        memory.append(stage_bytes(job, group.pp, group.chunks, counts, first, block, columns, micro_batches))
    stages = np.array(group.numbers, np.float64)[:, None]
    passes = _Passes(np.array(forward), np.array(backward), np.array(weight), stages)
    piped = _pipeline(job, group, columns, micro_batches, passes)
    lone = piped + np.max(after, axis=0) + np.max(optimizer, axis=0) + software.step_s
    nodes = max(1.0, job.gpus / job.cluster.node_gpus)
    return lone * (1 + software.jitter * np.sqrt(2 * np.log(nodes))), np.max(memory, axis=0)


@dataclass(frozen=True, slots=True, eq=False)
class _Passes:
    """Seconds of one micro-batch: rows are kinds of stage, of which there are `stages` each."""

    forward: Floats
    backward: Floats
    weight: Floats
    stages: Floats


def _pipeline(
    job: TrainingJob, group: Group, columns: dict[str, Ints], micro_batches: Floats, passes: _Passes
) -> Floats:
    """Seconds of all forwards and backwards."""
    forward, backward = passes.forward, passes.backward
    both = forward + backward
    if group.pp == 1:
        return np.asarray(micro_batches * both[0])
    m, p, v, software = micro_batches, group.pp, group.chunks, job.software
    message = _message_s(job, group, columns)
    blocking = (message if software.p2p_blocks else 0.0) + software.p2p_host_s
    sent = np.zeros_like(message) if software.p2p_blocks else message
    longest, everything = np.max(both, axis=0), np.sum(passes.stages * both, axis=0)
    held, hops = 2 * v * blocking, 2 * (p - 1) * (sent + blocking)
    period = longest + held
    if v == 1:
        # A stage holds p activations at most: a micro-batch must be back before the p-th after it can start.
        period = np.maximum(period, (everything + hops) / p)
    time_s = (m - 1) * period + longest + held + (everything - longest) / v + hops
    schedule = columns["schedule"]
    if (schedule == GPIPE).any():
        at_once = (m - 1) * (np.max(forward, axis=0) + np.max(backward, axis=0) + held) + everything + hops
        time_s = np.where(schedule == GPIPE, at_once, time_s)
    if (schedule == ZERO_BUBBLE).any():
        # The drain does not wait for weight gradients, and a stage puts off as many as there are stages before it.
        weight = np.max(passes.weight, axis=0)
        inputs = np.max(backward - passes.weight, axis=0)
        gained = (p - 1) * weight + np.minimum(p - 1, m) * np.minimum(weight, inputs)
        time_s = np.where(schedule == ZERO_BUBBLE, time_s - gained, time_s)
    return np.asarray(time_s)


def _message_s(job: TrainingJob, group: Group, columns: dict[str, Ints]) -> Floats:
    """A message between stages; see `step`."""
    width = 4 if job.precision in ("fp32", "tf32") else 2
    size = columns["micro_batch"] * job.seq / columns["cp"] * job.model.hidden * width
    seconds = collective_time(job.cluster, "sendrecv", size / columns["tp"], 2, job.gpus // group.pp)
    gathered = (columns["sequence_parallel"] == 0) & (columns["tp"] > 1)
    for tp in np.unique(columns["tp"][gathered]).tolist():
        here = gathered & (columns["tp"] == tp)
        seconds[here] += collective_time(job.cluster, "all_gather", size[here], tp, 1)
    return seconds


def _optimizer_s(job: TrainingJob, parameters: Floats, experts: Floats, columns: dict[str, Ints]) -> Floats:
    replicas = columns["dp"] * columns["cp"]
    shared = columns["zero"] > 0
    owned = (parameters - experts) / np.where(shared, replicas, 1) + experts / np.where(
        shared, replicas // columns["ep"], 1
    )
    gradients = parameters / np.where(columns["zero"] >= 2, replicas, 1)
    copies = COPY_BYTES if job.software.parameter_bytes == 2 else 0
    moved = owned * (ADAM_BYTES + copies + NORM_BYTES) + gradients * ZERO_BYTES
    return np.asarray(job.device.memory_time(moved, "optimizer"))
