"""The inner search: step time and memory of every plan of a space at once.

Everything is what the detailed evaluation computes, with one exception: the pipeline is not simulated. Its time comes
from closed forms in the times t of the stages, which are exact for equal stages and messages that take no time. With m
micro-batches, p stages and v chunks a device:

    1F1B          (m - 1) max t + sum t, or more where a stage may not hold enough activations to run ahead
    GPipe         the same, with the slowest forward pass and the slowest backward pass each by themselves
    interleaved   the fill, sum t - max t, divided by v
    zero-bubble   1F1B with weight gradients moved into the fill and the drain
    DualPipe      m max t, and the idle time of `pipeline/dual.py`
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from choreo.plan.data_parallel.cost import by_micro_batch, data_parallel_cost
from choreo.plan.data_parallel.send_times import SendTimes
from choreo.plan.job import TrainingJob
from choreo.plan.layer.table import LayerTable
from choreo.plan.memory.memory import stage_memory
from choreo.plan.pipeline.dual import DUAL, dual_ranks
from choreo.plan.search.space import Space
from choreo.plan.software.ability import ability_of
from choreo.plan.stages import (
    PlanBatch,
    accumulation_s,
    batch_plans,
    message_s,
    optimizer_s,
    replica_host_s,
    shared_table_s,
)
from choreo.workload.plan import RECOMPUTE, SCHEDULES

__all__ = ["FAR", "Estimate", "estimate"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
GPIPE, ZERO_BUBBLE = SCHEDULES.index("gpipe"), SCHEDULES.index("zero-bubble")
DUAL_CODES = [SCHEDULES.index(name) for name in DUAL]
FULL = RECOMPUTE.index("full")
SPARE = 0.005  # this share of the room is left: the estimate is not exact
# Data parallelism is not estimated for plans that need more than this many times the device's memory.
FAR = 4


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """Seconds of a step and bytes of the fullest device, for each plan of a space.

    If more than `FAR` times the device's memory is needed, data parallelism is left out of the seconds. Where full
    recomputation need not cover all layers to fit, `recompute_layers` of each stage are enough.
    """

    time_s: Floats
    memory_bytes: Floats
    recompute_layers: Ints

    def __add__(self, other: Estimate) -> Estimate:
        """Those of the plans of two spaces."""
        names = ("time_s", "memory_bytes", "recompute_layers")
        return Estimate(*(np.concatenate([getattr(self, name), getattr(other, name)]) for name in names))


def estimate(job: TrainingJob, space: Space, table: LayerTable, room: float | None = None) -> Estimate:
    """Time and memory of every plan; as few layers are recomputed as `room` bytes allow."""
    every = Estimate(*_costs(job, space, table), space["recompute_layers"])
    return _fewest_layers(job, space, table, every, job.device.memory_bytes if room is None else room)


def _fewest_layers(job: TrainingJob, space: Space, table: LayerTable, every: Estimate, room: float) -> Estimate:
    """Full recomputation of just enough layers to fit: time and memory are interpolated between all and none."""
    room *= 1 - SPARE
    rows = np.flatnonzero((space["recompute"] == FULL) & (every.memory_bytes <= room) & (every.recompute_layers == 0))
    ability = ability_of(job.software.name)
    if not len(rows) or not ability.some_layers or (table.plain[rows] == table.row[rows]).any():
        return every
    part = replace(space, columns={name: column[rows] for name, column in space.columns.items()})
    costs = replace(table, row=table.row[rows], plain=table.plain[rows])
    _, memory = _costs(job, part.with_column("recompute", np.zeros_like(rows)), costs.without())
    layers = -(-job.model.layers // part["pp"])
    saved = np.maximum(memory - every.memory_bytes[rows], 1.0)
    fewest = np.clip(np.ceil(layers * (memory - room) / saved), 1, layers).astype(np.int64)
    # A program counts the layers of a chunk. One with another ZeRO stage beside a pipeline is the user's own, and may
    # count those of a stage.
    own = part["zero"] > ability.zero_beside_pipeline
    chunks = np.where((part["pp"] > 1) & ~own, part["interleave"], 1)
    fewest = -(-fewest // chunks) * chunks
    fewest = np.where((fewest < layers) & (memory > room), fewest, 0)
    time_s, memory = _costs(job, part.with_column("recompute_layers", fewest), costs)
    good = (fewest > 0) & (memory <= room)
    found = Estimate(every.time_s.copy(), every.memory_bytes.copy(), every.recompute_layers.copy())
    found.time_s[rows[good]] = time_s[good]
    found.memory_bytes[rows[good]] = memory[good]
    found.recompute_layers[rows[good]] = fewest[good]
    return found


def _costs(job: TrainingJob, space: Space, table: LayerTable) -> tuple[Floats, Floats]:
    """Time and memory of every plan."""
    time_s, memory = np.zeros(len(space)), np.zeros(len(space))
    piped = space["pp"] > 1
    chunks, split = np.where(piped, space["interleave"], 1), np.where(piped, space["split"], 0)
    dual = np.where(piped & np.isin(space["schedule"], DUAL_CODES), space["schedule"], 0)
    code = (space["pp"] * (int(chunks.max(initial=1)) + 1) + chunks) * len(space.splits) + split
    code = code * len(SCHEDULES) + dual
    order = np.argsort(code, kind="stable")
    bounds = np.flatnonzero(np.diff(code[order], prepend=-1))
    sends = SendTimes(job, space, table)
    for start, end in zip(bounds.tolist(), [*bounds.tolist()[1:], len(order)], strict=True):
        plans = order[start:end]
        batch = batch_plans(job, space, table, plans, every_stage=False)
        memory[plans] = np.max(sum(stage_memory(batch).values()), axis=0)
        far = memory[plans] > FAR * job.device.memory_bytes
        if not far.any():
            time_s[plans] = _step_s(batch, sends)
            continue
        for rows, sent in ((np.flatnonzero(~far), sends), (np.flatnonzero(far), None)):
            if len(rows):
                time_s[plans[rows]] = _step_s(batch.take(rows), sent)
    return time_s, memory


def _step_s(batch: PlanBatch, sends: SendTimes | None) -> Floats:
    """Seconds of a step of each plan; without `sends`, excluding data parallelism."""
    forward, backward = batch.total("forward_s"), batch.total("backward_s")
    after: Floats | float = 0.0
    if sends is not None:
        shared, often = data_parallel_cost(batch, sends), by_micro_batch(batch)
        forward = forward + np.where(often, shared.forward_s, 0.0)
        backward = backward + np.where(often, shared.backward_s, 0.0)
        after = np.max(np.where(often, 0.0, shared.total_s), axis=0)
    piped = _pipeline_s(batch, forward, backward)
    last = np.max(optimizer_s(batch), axis=0) + np.max(accumulation_s(batch) + replica_host_s(batch), axis=0)
    lone = piped + after + last + shared_table_s(batch) + batch.job.software.step_s
    return np.asarray(lone * (1 + batch.job.straggling))


def _pipeline_s(batch: PlanBatch, forward: Floats, backward: Floats) -> Floats:
    """Seconds of all forwards and backwards, in closed form; times of one micro-batch are stages by plans."""
    both, m, p, v = forward + backward, batch.micro_batches, batch.pp, batch.chunks
    if p == 1:
        return np.asarray(m * both[0])
    software, message = batch.job.software, message_s(batch)
    blocking = (message if software.p2p_blocks else 0.0) + software.p2p_host_s
    sent = np.zeros_like(message) if software.p2p_blocks else message
    longest, everything = np.max(both, axis=0), np.array(batch.alike, np.float64) @ both
    held, hops = 2 * v * blocking, 2 * (p - 1) * (sent + blocking)
    period = longest + held
    if batch.schedule in DUAL:
        return _dual_s(batch, forward, backward, sent, blocking)
    if v == 1:
        # A stage holds p activations at most: a micro-batch must be back before the p-th after it can start.
        period = np.maximum(period, (everything + hops) / p)
    time_s = (m - 1) * period + longest + held + (everything - longest) / v + hops
    schedule = batch.columns["schedule"]
    if (schedule == GPIPE).any():
        at_once = (m - 1) * (np.max(forward, axis=0) + np.max(backward, axis=0) + held) + everything + hops
        time_s = np.where(schedule == GPIPE, at_once, time_s)
    if (schedule == ZERO_BUBBLE).any():
        # The drain does not wait for weight gradients, and a stage postpones as many as there are stages before it.
        weights = batch.total("weight_s")
        weight, inputs = np.max(weights, axis=0), np.max(backward - weights, axis=0)
        gained = (p - 1) * weight / v
        if v == 1:
            gained += np.minimum(p - 1, m - 1) * np.minimum(weight, inputs)
        time_s = np.where(schedule == ZERO_BUBBLE, time_s - gained, time_s)
    if (sharing := batch.job.device.sharing) > 1:
        # Ranks that share a core are faster while others wait, until all remaining work keeps every core busy.
        time_s = np.maximum(time_s / sharing, m * (everything / p + held))
    return np.asarray(time_s)


def _dual_s(
    batch: PlanBatch, forward: Floats, backward: Floats, sent: Floats | float, blocking: Floats | float
) -> Floats:
    """The same for DualPipe: times of a device are those of both its chunks.

    A device that has more to do than the others waits less. Passes depend on each other all around the way and back, so
    that messages slow every round, unless the busiest device does.
    """
    m, p, ways = batch.micro_batches, batch.pp, dual_ranks(batch.schedule, batch.pp)
    alike = np.array(batch.alike, np.float64)
    once, back, weight = (alike @ times / (2 * p) for times in (forward, backward, batch.total("weight_s")))
    both = forward + backward
    longest, everything = np.max(both, axis=0), alike @ both
    more = longest - (everything - longest) / (p - 1)
    hops = 2 * (ways - (1 if batch.copies == 2 else 2))  # at the turn of a V there is no message
    period = np.maximum(longest + 4 * blocking, (2 * everything / batch.copies + hops * sent) / ways)
    idle = np.maximum(0.0, (ways // 2 - 1) * (once + 2 * back - 3 * weight - 2 * more))
    return np.asarray(m * period + idle + hops * (sent + blocking / 2))
