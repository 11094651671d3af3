"""Compose schedules: one after another, side by side, reversed, or pipelined in segments.

A collective takes data from one layout to another (see `choreo.collectives`). `then` composes two that meet in a
layout, and `backwards` reverses one, so the collective of the result follows from those of the parts. Composition is
lazy: rows are made on demand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from choreo.checks import whole_number
from choreo.collectives import Layout, collective_between, get_collective
from choreo.errors import ScheduleError, UsageError
from choreo.schedule.schedule import Phase, Schedule
from choreo.schedule.steps import Steps
from choreo.schedule.transfers import Transfers

__all__ = [
    "after",
    "as_collective",
    "backwards",
    "beside",
    "pipelined",
    "refined",
    "then",
    "together",
    "turned",
]


# Search for the best stride up to this many ports times steps. Beyond it, segments run one after another.
MAX_PORT_STEPS = 1 << 27


def then(first: Schedule, second: Schedule) -> Schedule:
    """Compose two schedules, one after the other: reduce_scatter, then all_gather, is an all_reduce.

    The second starts from what the first left in the ranks' work places. There is no barrier between the two: only data
    dependencies order them.

    >>> from choreo import build
    >>> then(build("reduce_scatter", "ring", 4), build("all_gather", "ring", 4))
    <Schedule all_reduce by ring: 4 ranks, 4 chunks, 6 steps>
    """
    sized = first.contract.size_per == second.contract.size_per == "vector"
    meet = sized and first.contract.after is second.contract.before is not Layout.EVERYWHERE
    composed = collective_between(first.contract.before, second.contract.after) if meet else None
    if composed is None:
        raise UsageError(
            f"{first.collective} then {second.collective} is no collective: after the first "
            f"{first.contract.after.value}, before the second {second.contract.before.value}"
        )
    roots = {s.root for s in (first, second)} - {None}
    if (first.ranks, first.relays, first.switches) != (second.ranks, second.relays, second.switches) or len(roots) > 1:
        raise UsageError(
            f"{first!r} and {second!r} differ in ranks, relays, switches or root and cannot follow one another"
        )
    chunks = math.lcm(first.num_chunks, second.num_chunks)
    first, second = refined(first, chunks // first.num_chunks), refined(second, chunks // second.num_chunks)
    if not _same_weights(first, second):
        raise UsageError(f"{first!r} and {second!r} cut the vector differently and cannot follow one another")
    body = after(first.body, replace(second.body, rows=_from_work(second)))
    root = roots.pop() if roots and composed.rooted else None
    phases = (*_phases(first), *_phases(second))
    return Schedule(
        composed.name,
        body,
        root,
        _name(" then ", first, second),
        first.weights,
        phases,
        first.switches,
        _same_axes(first, second),
        receive_in_order=first.receive_in_order or second.receive_in_order,
        relays=first.relays,
    )


def after(*parts: Steps) -> Steps:
    """Run parts one after another. They share ranks and chunks.

    The caller must make sure that no later part sends from inputs, which are the ranks' data before the first part.

    >>> from choreo import build
    >>> ring = build("all_gather", "ring", 4).body
    >>> after(ring, ring).num_steps
    6
    """
    ranks, chunks = _same_size(parts)
    starts = np.cumsum([0, *(part.num_steps for part in parts)])

    def rows(first: int, last: int) -> Transfers:
        pieces = []
        for part, start in zip(parts, starts[:-1].tolist(), strict=True):
            low, high = max(first - start, 0), min(last - start, part.num_steps)
            if low < high:
                piece = part.rows(low, high)
                pieces.append(replace(piece, step=piece.step + start))
        return Transfers.join(pieces)

    return Steps(ranks, chunks, int(starts[-1]), rows)


def beside(*parts: Steps) -> Steps:
    """Run parts at the same time: step k is step k of every part that has one.

    >>> from choreo import build
    >>> ring = build("all_gather", "ring", 4).body
    >>> beside(ring, ring).num_steps
    3
    """
    ranks, chunks = _same_size(parts)

    def rows(first: int, last: int) -> Transfers:
        pieces = [p.rows(min(first, p.num_steps), min(last, p.num_steps)) for p in parts if p.num_steps > first]
        return Transfers.join(pieces).by_step()

    return Steps(ranks, chunks, max(part.num_steps for part in parts), rows)


def together(*schedules: Schedule) -> Schedule:
    """Run schedules of one collective side by side, each on its own equal part of the vector.

    If the contract has blocks, each schedule takes its part of every block.

    >>> from choreo import build
    >>> together(build("all_reduce", "ring", 4), build("all_reduce", "ring", 4))
    <Schedule all_reduce by ring: 4 ranks, 8 chunks, 6 steps>
    """
    kinds = {(s.collective, s.ranks, s.root, s.relays, s.switches) for s in schedules}
    if len(kinds) != 1 or any(s.weights is not None for s in schedules):
        raise UsageError(
            "only unweighted schedules of one collective, ranks, relays, switches and root go together, not "
            f"{schedules}"
        )
    chunks = math.lcm(*(s.num_chunks for s in schedules))
    parts = [refined(s, chunks // s.num_chunks) for s in schedules]
    bodies = [_interleaved(s, index, len(parts)) for index, s in enumerate(parts)]
    same_phases = len({part.phases for part in parts}) == 1
    return replace(
        parts[0],
        body=beside(*bodies),
        algorithm=_name(" and ", *parts),
        phases=parts[0].phases if same_phases else (),
        axes=_same_axes(*parts),
        receive_in_order=any(part.receive_in_order for part in parts),
    )


def backwards(schedule: Schedule) -> Schedule:
    """Reverse a schedule in time. A broadcast becomes a reduce, a scatter a gather, an all_gather a reduce_scatter, and
    vice versa.

    Every transfer is reversed, last step first. Where the schedule copies along a tree, the reversed one reduces along
    it. That is right if each rank receives each chunk once, as in every tree; `prove` checks it.

    >>> from choreo import build
    >>> backwards(build("all_gather", "ring", 4)).collective
    'reduce_scatter'
    """
    contract = schedule.contract
    dual = collective_between(contract.after, contract.before)
    if dual is None or dual.name == contract.name or contract.size_per != "vector":
        raise UsageError(
            f"{schedule.collective} run backwards is no collective; only broadcast, reduce, scatter, gather, "
            "all_gather and reduce_scatter can be turned round"
        )
    phases = tuple(Phase(_dual(phase.collective), phase.num_steps) for phase in reversed(schedule.phases))
    body = turned(schedule.body, reduce=dual.reduces)
    return replace(schedule, collective=dual.name, body=body, phases=phases)


def turned(steps: Steps, *, reduce: bool) -> Steps:
    """Reverse steps in time: every transfer reversed, last step first. Either all of them reduce, or all store.

    >>> from choreo import build
    >>> turned(build("all_gather", "ring", 4).body, reduce=True).num_steps
    3
    """

    def rows(first: int, last: int) -> Transfers:
        forward = steps.rows(steps.num_steps - last, steps.num_steps - first).take(slice(None, None, -1))
        return replace(
            forward,
            step=steps.num_steps - 1 - forward.step,
            src=forward.dst,
            dst=forward.src,
            reduce=np.full(len(forward), reduce),
            from_input=np.zeros(len(forward), np.bool_),
        )

    return replace(steps, rows=rows)


def refined(schedule: Schedule, factor: int) -> Schedule:
    """Split every chunk into `factor` equal chunks that always travel together.

    >>> from choreo import build
    >>> refined(build("all_reduce", "ring", 4), 2).num_chunks
    8
    """
    if factor == 1:
        return schedule
    body = schedule.body

    def rows(first: int, last: int) -> Transfers:
        transfers = body.rows(first, last)
        return replace(transfers, chunk=transfers.chunk * factor, count=transfers.count * factor)

    finer = Steps(body.ranks, body.num_chunks * factor, body.num_steps, rows)
    weights = None if schedule.weights is None else np.repeat(schedule.weights, factor)
    return replace(schedule, body=finer, weights=weights)


def pipelined(schedule: Schedule, segments: int, stride: int | None = None) -> Schedule:
    """Pipeline a schedule: run it on `segments` equal parts of every block, each starting `stride` steps after the one
    before.

    The default stride is the smallest at which no rank sends, or receives, for two segments in one step. At worst, the
    segments run one after another. A switch has a port to every peer, so only the ports of ranks and relays count.

    >>> from choreo import build
    >>> tree = build("broadcast", "mst", 4)
    >>> tree.num_steps, pipelined(tree, 3).num_steps
    (2, 6)
    """
    segments = whole_number("segments", segments)
    stride = None if stride is None else whole_number("stride", stride)
    if segments == 1 or schedule.num_steps == 0:
        return schedule
    apart = _least_stride(schedule, segments) if stride is None else min(stride, schedule.num_steps)
    num_steps = schedule.num_steps

    def rows(first: int, last: int) -> Transfers:
        pieces = []
        for index in range(max(0, (first - num_steps) // apart + 1), min(segments, (last - 1) // apart + 1)):
            start = index * apart
            piece = _interleaved(schedule, index, segments).rows(max(first - start, 0), min(last - start, num_steps))
            pieces.append(replace(piece, step=piece.step + start))
        return Transfers.join(pieces).by_step()

    body = Steps(schedule.members, schedule.num_chunks * segments, num_steps + (segments - 1) * apart, rows)
    weights = schedule.weights
    if weights is not None:
        weights = np.tile(weights.reshape(-1, schedule.chunks_a_block), segments).reshape(-1)
    return replace(schedule, body=body, weights=weights, phases=())


def as_collective(schedule: Schedule, collective: str) -> Schedule:
    """Use the same steps for another collective between the same layouts: an all_gather of zero bytes is a barrier.

    >>> from choreo import build
    >>> as_collective(build("all_gather", "bruck", 4), "barrier").collective
    'barrier'
    """
    wanted, has = get_collective(collective), schedule.contract
    if (wanted.before, wanted.after) != (has.before, has.after):
        raise UsageError(f"a {has.name} schedule does not do what {wanted.name} promises")
    return replace(schedule, collective=collective)


def _same_weights(first: Schedule, second: Schedule) -> bool:
    if first.weights is None or second.weights is None:
        return first.weights is second.weights
    return np.array_equal(first.weights, second.weights)


def _phases(schedule: Schedule) -> tuple[Phase, ...]:
    return schedule.phases or (Phase(schedule.collective, schedule.num_steps),)


def _dual(collective: str) -> str:
    contract = get_collective(collective)
    dual = collective_between(contract.after, contract.before)
    return collective if dual is None else dual.name


def _name(joint: str, *parts: Schedule) -> str:
    """The name of a composition: the names of its parts, each once."""
    return joint.join(dict.fromkeys(part.algorithm for part in parts))


def _same_axes(*parts: Schedule) -> str | None:
    """The axes of a composition if all parts have the same axes, otherwise None."""
    return parts[0].axes if len({part.axes for part in parts}) == 1 else None


def _interleaved(schedule: Schedule, index: int, parts: int) -> Steps:
    """The steps moved to part `index` of `parts` of every block: chunks index * k onwards, for blocks of k chunks."""
    body, a_block = schedule.body, schedule.chunks_a_block
    one_block = a_block == body.num_chunks

    def rows(first: int, last: int) -> Transfers:
        transfers = body.rows(first, last)
        if one_block:
            return replace(transfers, chunk=transfers.chunk + index * a_block)
        transfers = transfers.expanded()
        return replace(
            transfers, chunk=(transfers.chunk // a_block * parts + index) * a_block + transfers.chunk % a_block
        )

    return Steps(body.ranks, body.num_chunks * parts, body.num_steps, rows)


def _least_stride(schedule: Schedule, segments: int) -> int:
    """The smallest stride at which no port of a rank or relay is used by two segments in one step."""
    if schedule.num_steps * schedule.members > MAX_PORT_STEPS:
        return schedule.num_steps
    busy = np.zeros((2, schedule.members, schedule.num_steps), np.bool_)
    for rows in schedule.blocks():
        busy[0, rows.src, rows.step] = True
        busy[1, rows.dst, rows.step] = True
    # Many ports are busy in the same steps, so check each pattern once, as a bit mask.
    of_devices = busy[:, : schedule.members - schedule.switches].reshape(-1, schedule.num_steps)
    packed = np.unique(np.packbits(of_devices, axis=1), axis=0)
    patterns = [int.from_bytes(row.tobytes(), "big") for row in packed]

    def collides(stride: int) -> bool:
        gaps = range(stride, min(stride * segments, schedule.num_steps), stride)
        return any(pattern & (pattern >> gap) for gap in gaps for pattern in patterns)

    return next(stride for stride in range(1, schedule.num_steps + 1) if not collides(stride))


def _from_work(schedule: Schedule) -> Callable[[int, int], Transfers]:
    """The rows of a schedule that runs after another: it starts from the work places, not from the inputs."""

    def rows(first: int, last: int) -> Transfers:
        transfers = schedule.body.rows(first, last)
        if transfers.from_input.any():
            bad = int(np.flatnonzero(transfers.from_input)[0])
            raise ScheduleError(
                f"{schedule!r} cannot follow another schedule: in its step {transfers.step[bad]} "
                f"rank {transfers.src[bad]} sends from its input, which by then is somebody else's; send from the work "
                "place instead"
            )
        return transfers

    return rows


def _same_size(parts: Sequence[Steps]) -> tuple[int, int]:
    sizes = {(part.ranks, part.num_chunks) for part in parts}
    if len(sizes) != 1:
        raise UsageError(f"steps of different (ranks, chunks) {sorted(sizes)} do not go together")
    return sizes.pop()
