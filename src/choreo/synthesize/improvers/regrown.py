"""Regrow the trees of a finished broadcast or reduce: other parents, other orders and sizes, while that helps.

Rules of a generator know which trees are good for many chunks; with a few, each costs a rank a message here and there.
So the trees of the best schedules are where simulated annealing begins. It is cold: such a schedule is already good.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from choreo.schedule import Schedule, Steps, Transfers, backwards
from choreo.schedule.weights import BLOCK_WEIGHT, whole_weights
from choreo.synthesize.annealing.forests import Forest, Forests, Ground
from choreo.synthesize.generators.library import is_short
from choreo.synthesize.network import Hops, hops_of
from choreo.synthesize.problem import Candidate, Problem
from choreo.topology.graph import Ints

__all__ = ["regrown"]

# Above this size the busiest link decides, and other trees gain little.
MOST_BYTES = 4 << 20
# A schedule that handles chunks more often is too large.
MOST_HANDLED = 1 << 12
# So many tasks are put in time in all plans, as many from all starts as then from so many of the best, and so on.
TASKS, KEPT = 20_000_000, (12, 3, 1, 1)
# What a task takes more for each hop that shares a link with it.
A_HOP = 0.3


def regrown(problem: Problem, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
    """The best of some schedules with other trees."""
    if problem.collective not in ("broadcast", "reduce") or not problem.in_order:
        return
    if not 0 < problem.size_bytes <= MOST_BYTES:
        return
    inward = problem.collective == "reduce"
    hops = hops_of(problem.topology, through_switches=bool(problem.topology.reduces.any()))
    ground = _ground_of(hops.turned() if inward else hops)
    found = []
    for candidate in candidates:
        if not is_short(candidate.schedule, MOST_HANDLED):
            continue
        schedule = backwards(candidate.schedule) if inward else candidate.schedule
        found += [(candidate.generator, *start) for start in _starts(problem, ground, schedule)]
    tasks = TASKS / (1 + A_HOP * hops.load.nnz / len(hops.capacity)) / len(KEPT)
    for kept in KEPT:
        found = sorted(found, key=lambda one: one[2].end_s)[:kept]
        plans = [int(tasks / len(found) / len(plan.parent)) for _, _, plan in found]
        found = [(name, one, one.run(plan, most)) for (name, one, plan), most in zip(found, plans, strict=True)]
    for name, forests, plan in found:
        made = _schedule(problem, forests, plan)
        if made is not None:
            yield Candidate(f"{name.removesuffix(', refined')}, refined", backwards(made) if inward else made)


def _ground_of(hops: Hops) -> Ground:
    """Every hop is a way."""
    way_of = np.zeros((hops.members, hops.members), np.int64)
    way_of[hops.dst, hops.src] = np.arange(len(hops)) + 1
    costs_s = np.stack((hops.send_s, hops.send_busy_s, hops.receive_s, hops.receive_busy_s))
    costs_s[1::2] = np.maximum(costs_s[1::2], costs_s[::2])
    by_hop = hops.load.tocsc()
    return Ground(
        hops.members,
        hops.devices,
        way_of,
        hops.bandwidth_bytes_per_s,
        hops.latency_s,
        costs_s,
        np.stack((hops.sender, hops.receiver)),
        by_hop.indptr.astype(np.int64),
        by_hop.indices.astype(np.int64),
        len(hops.capacity),
        (hops.taken, hops.is_port.astype(np.int64)) if hops.leave_room else (),
    )


def _starts(problem: Problem, ground: Ground, schedule: Schedule) -> Iterator[tuple[Forests, Forest]]:
    """The trees of a broadcast, its chunks one by one and several as one message; nothing if it is made otherwise."""
    parent = _parents(ground, schedule)
    if parent is None:
        return
    chunks = schedule.num_chunks
    weights = np.ones(chunks) if schedule.weights is None else schedule.weights.astype(np.float64)
    chunk_bytes = weights / weights.sum() * problem.size_bytes
    none = np.zeros((0, 1), np.int64)
    forests = Forests(
        ground, np.full((chunks, 1), problem.root), none, np.zeros(chunks, np.int64), inward=False, outward=True
    )
    order = np.zeros((chunks, ground.members))
    rows: Transfers = schedule.columns()
    for row, count in enumerate(rows.count.tolist()):
        order[rows.chunk[row] : rows.chunk[row] + count, rows.dst[row]] = rows.step[row]
    together_s = 1.01 * float(chunk_bytes.max() / ground.bandwidth_bytes_per_s.max())
    for longest_s in (0.0, together_s):
        plan = forests.planned(Forest(parent.reshape(-1), order.reshape(-1), chunk_bytes, longest_s))
        yield forests, replace(plan, order=plan.start_s)


def _parents(ground: Ground, schedule: Schedule) -> Ints | None:
    """Who sends a chunk (rows) to each member; None if somebody gets one twice, or by way of others."""
    rows: Transfers = schedule.columns()
    if schedule.relays or schedule.members > ground.members or rows.reduce.any():
        return None
    if not ground.way_of[rows.dst, rows.src].all():
        return None
    parent = np.full((schedule.num_chunks, ground.members), -1)
    for src, dst, chunk, count in zip(
        *(one.tolist() for one in (rows.src, rows.dst, rows.chunk, rows.count)), strict=True
    ):
        if (parent[chunk : chunk + count, dst] >= 0).any():
            return None
        parent[chunk : chunk + count, dst] = src
    # Switches that nothing goes through may later be of use.
    for switch in range(ground.devices, ground.members):
        unused = parent[:, switch] < 0
        parent[unused, switch] = (
            schedule.root if ground.way_of[switch, schedule.root] else ground.way_of[switch].argmax()
        )
    return parent


def _schedule(problem: Problem, forests: Forests, plan: Forest) -> Schedule | None:
    """The broadcast; None if its messages have no order."""
    tasks, ground = forests.tasks(plan), forests.ground
    when = forests.steps(plan, tasks)
    if when is None:
        return None
    moments, step = np.unique(when, return_inverse=True)
    none = np.zeros(len(step), np.bool_)
    count = np.ones(len(step), np.int64)
    rows = Transfers(step.astype(np.int64), tasks.src, tasks.dst, tasks.chunk, count, none, none).by_step()
    return Schedule(
        "broadcast",
        Steps.from_transfers(ground.members, forests.chunks, len(moments), rows),
        problem.root,
        "regrown",
        whole_weights(plan.chunk_bytes, BLOCK_WEIGHT),
        switches=ground.members - ground.devices,
        receive_in_order=True,
    )
