"""Rip up and reroute: trees are taken out of a plan of short messages and grown anew, around everything else.

Where latency decides, links and devices are idle for most of the time, and a chunk that grows into the gaps of all
others gets past them: from device to device, or straight along a route. A tree grows by the message that arrives next;
links that a message passes have a price, and leaving the root has one too, because there all chunks begin. Some ways
cost more for once, so that the next tree is another one. Whole trees and branches of the latest are changed by
simulated annealing, the sizes of chunks as well; a plan counts as it would run.

Source: rip-up and reroute as in L. McMurchie, C. Ebeling, "PathFinder: a negotiation-based performance-driven router
for FPGAs", FPGA 1995.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from choreo.compiled import import_compiled, prefers_python
from choreo.errors import NoPathError
from choreo.schedule import Schedule, Steps, Transfers, backwards
from choreo.schedule.weights import block_weight, whole_weights
from choreo.simulate.flows.engine import costs_of
from choreo.synthesize.problem import LEAST_CHUNK_BYTES, Candidate, Problem
from choreo.synthesize.timeline import CORE
from choreo.topology.graph import Floats, Ints

__all__ = ["rerouted"]

OUTWARD, INWARD = ("broadcast", "all_gather"), ("reduce", "reduce_scatter")
# Above this size links decide.
MOST_BYTES = 4 << 20
# The most devices, and messages.
MOST_DEVICES, MOST_MESSAGES = 128, 1 << 13
# Chunks of a vector or a share that grow from nothing, and how many times as large each is as the one before it.
VECTOR_CHUNKS, SHARE_CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48), (1, 2, 3)
# First prices: of a second on a link that is passed, and of leaving the root, in parts of the bound.
PASSING, LEAVING = (0.5, 2.0), (0.1, 0.3, 1.0, 3.0)
# How many given schedules are changed.
GIVEN = 4
# How many messages are planned in all: in each of the rounds, of which the first has all starts and each other one the
# best of the one before. And what changing a plan takes besides, in messages.
MESSAGES, ROUNDS, BESIDES = 1.2e8, ((0.35, 3), (0.35, 1), (0.3, 1)), 500
# Starts that end later than the best by more than this factor are left out.
HOPELESS = 1.5
# From each device to so many of the nearest others, and to those as near.
NEAREST = 24

# A plan that takes longer is kept with a probability that falls: by e for this part of the time, first and last.
WARM, COLD = 0.002, 0.0002
# Which changes are tried: other sizes; another order; of the rest, branches rather than whole trees.
RESIZE, RETIME, BRANCH = 0.03, 0.02, 0.85
# How often a change is to one of the latest messages.
LATE = 0.4
# By which factor sizes and prices change, and by which part of the whole time messages move.
RESIZED, REPRICED, MOVED = 0.2, 0.6, 0.03
# How often no way costs more for once.
DIRECT = 0.2
# A plan costs its time, and this part of the mean of its arrivals in this power.
LATENESS, WEIGHT = 12, 0.3
TUNING = np.array([WARM, COLD, RESIZE, RETIME, BRANCH, LATE, RESIZED, MOVED, REPRICED, DIRECT, LATENESS, WEIGHT])


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Chunks by their sizes and prices; who sends each to each device, and when. None and empty if not known yet."""

    bytes: Floats
    passing: Floats
    leaving: Floats
    parent: Ints
    start_s: Floats
    end_s: float


def rerouted(problem: Problem, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
    """The best plan by trees, starting with the given schedules and with trees that grow one after another."""
    core = None if prefers_python() else import_compiled(CORE)
    if core is None or problem.collective not in OUTWARD + INWARD or problem.weights is not None:
        return
    if not 0 < problem.size_bytes <= MOST_BYTES or not 2 <= problem.ranks <= MOST_DEVICES:
        return
    try:
        search = _Search(problem, core)
    except NoPathError:
        return
    plans = [plan for one in candidates[:GIVEN] if (plan := search.given(one.schedule)) is not None]
    plans += search.begun()
    if not plans:
        return
    best_s = min(plan.end_s for plan in plans)
    plans = [plan for plan in plans if plan.end_s <= HOPELESS * best_s]
    for part, most in ROUNDS:
        plans = sorted((search.run(plan, part / len(plans)) for plan in plans), key=lambda plan: plan.end_s)[:most]
        for plan in plans:
            schedule = search.schedule(plan)
            yield Candidate("rerouted", replace(schedule, receive_in_order=True))
            yield Candidate("rerouted", schedule)


class _Search:
    """The ways between all devices of a problem, as the compiled search takes them.

    What is summed up is planned backwards in time, with every way turned round.
    """

    def __init__(self, problem: Problem, core: Any) -> None:
        self.problem, self.core = problem, core
        self.devices = problem.ranks
        self.inward = problem.collective in INWARD
        self.blocks = 1 if problem.root is not None else self.devices
        self.roots = np.arange(self.devices) if problem.root is None else np.array([problem.root])
        self.total_bytes = float(problem.block_bytes.sum())
        self.bound_s = problem.bound().bound_s
        self.rng = np.random.default_rng(self.devices)
        src, dst = np.divmod(np.arange(self.devices**2), self.devices)
        other = src != dst
        ends = problem.devices[src[other]], problem.devices[dst[other]]
        start, end = ends[::-1] if self.inward else ends
        routes = problem.topology.routes(start, end)
        links = np.zeros(len(src), np.int64)
        links[other] = np.diff(routes.offsets)
        latency_s, byte_s, costs_s = np.zeros(len(src)), np.zeros(len(src)), np.zeros((4, len(src)))
        latency_s[other], byte_s[other] = routes.latency_s, 1 / routes.bandwidth_bytes_per_s
        costs_s[:, other] = np.stack(costs_of(problem.topology, start, end))
        costs_s[1::2] = np.maximum(costs_s[1::2], costs_s[::2])
        used, link = np.unique(routes.links, return_inverse=True)
        near = latency_s.reshape(self.devices, -1).copy()
        np.fill_diagonal(near, np.inf)
        least = np.sort(near, axis=1)[:, min(NEAREST, self.devices - 1) - 1]
        some = [np.flatnonzero(row <= most) for row, most in zip(near, least, strict=True)]
        self.near = sum(map(len, some))
        self.columns = (
            byte_s,
            np.concatenate(([0], np.cumsum(links))),
            link.astype(np.int64),
            latency_s,
            costs_s[[2, 3, 0, 1]] if self.inward else costs_s,
            np.cumsum([0, *map(len, some)]),
            np.concatenate(some),
            TUNING,
        )
        self.figures = len(used), self.devices, self.blocks, LEAST_CHUNK_BYTES * (1 - 1e-9)

    def begun(self) -> Iterator[_Plan]:
        """For each number of chunks the best that grow one after another, of several prices."""
        for each in VECTOR_CHUNKS if self.blocks == 1 else SHARE_CHUNKS:
            chunks = each * self.blocks
            if chunks * self.devices > MOST_MESSAGES or (each > 1 and self.total_bytes / chunks < LEAST_CHUNK_BYTES):
                break
            sizes = np.full(chunks, self.total_bytes / chunks)
            plans = [
                self._changed(self._unplanned(sizes, passing, leaving * self.bound_s), 0)
                for passing in PASSING
                for leaving in LEAVING
            ]
            yield min(plans, key=lambda plan: plan.end_s)

    def given(self, schedule: Schedule) -> _Plan | None:
        """A schedule's trees; None if it is none of trees, or too large, or has relays or switches."""
        chunks = schedule.num_chunks
        if schedule.members > self.devices or chunks % self.blocks or chunks * self.devices > MOST_MESSAGES:
            return None
        rows = schedule.columns()
        row = np.repeat(np.arange(len(rows.step)), rows.count)
        chunk = rows.chunk[row] + np.arange(len(row)) - np.repeat(np.cumsum(rows.count) - rows.count, rows.count)
        parent, child = (rows.dst, rows.src) if self.inward else (rows.src, rows.dst)
        place = chunk * self.devices + child[row]
        root = np.repeat(self.roots, chunks // self.blocks)
        if len(place) != chunks * (self.devices - 1) or len(np.unique(place)) < len(place):
            return None
        if np.isin(place, np.arange(chunks) * self.devices + root).any():
            return None
        weights = np.ones(chunks) if schedule.weights is None else schedule.weights.astype(np.float64)
        sizes = weights * (self.total_bytes / weights.sum())
        parents, start_s = np.repeat(root, self.devices), np.zeros(chunks * self.devices)
        parents[place] = parent[row]
        start_s[place] = (-rows.step if self.inward else rows.step)[row]
        plan = self._unplanned(sizes, PASSING[-1], LEAVING[-2] * self.bound_s)
        return self._changed(replace(plan, parent=parents, start_s=start_s), 0)

    def run(self, plan: _Plan, part: float) -> _Plan:
        """The best of a part of all plans."""
        each = len(plan.bytes) * self.devices + self.near // 2 + BESIDES
        return self._changed(plan, int(part * MESSAGES / each))

    def _unplanned(self, sizes: Floats, passing: float, leaving: float) -> _Plan:
        alike = np.ones(len(sizes))
        return _Plan(sizes, passing * alike, leaving * alike, np.zeros(0, np.int64), np.zeros(0), np.inf)

    def _changed(self, plan: _Plan, plans: int) -> _Plan:
        """The best of so many plans."""
        roots = np.repeat(self.roots, len(plan.bytes) // self.blocks)
        given = roots, plan.bytes, plan.passing, plan.leaving, plan.parent, plan.start_s
        columns = map(np.ascontiguousarray, (*given, *self.columns))
        *found, end_s = self.core.reroute_trees(*columns, *self.figures, plans, int(self.rng.integers(1 << 62)))
        parent, start_s, *chunks = found
        sizes, passing, leaving = (np.frombuffer(one, np.float64) for one in chunks)
        return _Plan(sizes, passing, leaving, np.frombuffer(parent, np.int64), np.frombuffer(start_s), end_s)

    def schedule(self, plan: _Plan) -> Schedule:
        """The plan as a schedule."""
        chunks = len(plan.bytes)
        each = chunks // self.blocks
        place = np.arange(chunks * self.devices)
        place = place[place % self.devices != np.repeat(self.roots, each)[place // self.devices]]
        moments, step = np.unique(plan.start_s[place], return_inverse=True)
        none = np.zeros(len(place), np.bool_)
        chunk, device = np.divmod(place, self.devices)
        rows = Transfers(step.astype(np.int64), plan.parent[place], device, chunk, np.ones_like(place), none, none)
        weights = [whole_weights(part, block_weight(each)) for part in plan.bytes.reshape(self.blocks, each)]
        schedule = Schedule(
            "all_gather" if self.problem.root is None else "broadcast",
            Steps.from_transfers(self.devices, chunks, len(moments), rows.by_step()),
            self.problem.root,
            "rerouted",
            np.concatenate(weights),
        )
        return backwards(schedule) if self.inward else schedule
