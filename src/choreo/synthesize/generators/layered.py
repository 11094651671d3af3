"""Stars inside servers and between them, for short messages: as few hops and messages as possible.

A megabyte is sent quickly; what counts is how often a rank waits for a message. A share crosses the network to its
peers in the other servers (the GPUs of the same local rank), in a few pieces, and whoever receives a piece sends it to
all others of its server at once. A broadcast first gives every GPU of the root's server a part of the vector, so that
all adapters are busy. An all_reduce is reduced inside the servers, exchanged between them, and spread inside. In an
all_to_all a GPU sends its peer everything for a whole server, and adds its own blocks to what it forwards.

The number of pieces and their sizes are found by trying: one more piece costs every rank a message, and the first and
the last piece have nothing to overlap with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from choreo.schedule import Schedule, backwards, then
from choreo.schedule.weights import BLOCK_WEIGHT, whole_weights
from choreo.synthesize.network import Hops, hops_of
from choreo.synthesize.problem import LEAST_CHUNK_BYTES, Candidate, Problem
from choreo.synthesize.stars.broadcasts import broadcasts
from choreo.synthesize.stars.exchanges import exchanges
from choreo.synthesize.stars.gathers import gathers
from choreo.synthesize.stars.plan import Maker, Plan, Servers
from choreo.synthesize.stars.reductions import reductions
from choreo.synthesize.timeline import Tasks, steps_of
from choreo.topology.graph import Floats, Ints

__all__ = ["layered"]

# Above this size the busiest link decides, and other generators are near the bound.
MOST_BYTES = 4 << 20
# The most pieces of an adapter's part.
PIECES = (1, 2, 3, 4, 5, 6, 8, 12)
# One more piece is not tried once plans take longer than the best by this factor.
FAR = 1.15
# Factors by which a single piece is made larger or smaller.
FACTORS = (1.6, 1 / 1.6, 1.2, 1 / 1.2)
# The most messages in a plan, and in all plans that are tried for a problem.
MOST_MESSAGES, MOST_TRIED = 1 << 17, 1 << 18
# Collectives that are planned in reverse, on the reversed network.
UNDONE = {"reduce_scatter": "all_gather", "reduce": "broadcast"}
KINDS = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all")


@dataclass(frozen=True, slots=True, eq=False)
class _Timed:
    """A plan with its end time, its tasks and when each starts."""

    end_s: float
    tasks: Tasks
    start_s: Floats
    weights: Ints


def layered(problem: Problem) -> Iterator[Candidate]:
    """Short messages on servers where each GPU reaches the others of its server, and the same local rank elsewhere."""
    if problem.collective not in KINDS or not problem.in_order or problem.weights is not None or problem.ranks < 2:
        return
    if not 0 < problem.size_bytes <= MOST_BYTES:
        return
    for through in (False, True) if problem.topology.reduces.any() else (False,):
        hops = hops_of(problem.topology, through_switches=through)
        for search in _searches(problem, hops):
            yield from search.run()
        if problem.collective == "all_reduce":
            yield from _one_by_one(problem, hops)


def _searches(problem: Problem, hops: Hops) -> list[_Search]:
    """One for each kind of plan that there is on these hops."""
    net = Servers.of(problem, hops.turned() if problem.collective in UNDONE else hops)
    return [] if net is None else [_Search(problem, net, make, blocks) for make, blocks in _makers(problem, net)]


def _one_by_one(problem: Problem, hops: Hops) -> Iterator[Candidate]:
    """All_reduces that scatter the sums and then gather them, both in plans of the same kind and pieces."""
    parts = (replace(problem, collective=collective) for collective in ("reduce_scatter", "all_gather"))
    for pair in zip(*(_searches(part, hops) for part in parts), strict=True):
        best = [candidate for search in pair for candidate in list(search.run())[-1:]]
        if len(best) == len(pair) and np.array_equal(best[0].schedule.weights, best[1].schedule.weights):
            yield Candidate("layered", then(best[0].schedule, best[1].schedule))


def _makers(problem: Problem, net: Servers) -> Iterator[tuple[Maker, int]]:
    """What can be planned, and in how many blocks."""
    match problem.collective:
        case "all_gather" | "reduce_scatter":
            return gathers(net)
        case "all_reduce":
            return reductions(net)
        case "all_to_all":
            return exchanges(net)
    assert problem.root is not None
    return broadcasts(net, problem.root)


class _Search:
    """Tries numbers of pieces, then their sizes."""

    def __init__(self, problem: Problem, net: Servers, make: Maker, blocks: int) -> None:
        self.problem, self.net, self.make, self.blocks = problem, net, make, blocks
        self.total_bytes = float(problem.contract.total_bytes(problem.size_bytes, problem.ranks))
        self.network_s = problem.bound().bandwidth_bound_s
        self.messages = 0

    def run(self) -> Iterator[Candidate]:
        """Schedules, each better than the last by its plan."""
        best: tuple[float, Floats] = np.inf, np.ones(1)
        for count in PIECES:
            parts = np.full(count, 1 / count)
            found = self._timed(parts)
            if found is None or found.end_s > FAR * best[0]:
                break
            if found.end_s < best[0]:
                best = found.end_s, parts
                yield self._candidate(found)
        improved = len(best[1]) > 1
        while improved:
            improved = False
            for nth, factor in product(range(len(best[1])), FACTORS):
                parts = best[1].copy()
                parts[nth] *= factor
                parts /= parts.sum()
                found = self._timed(parts) if self.messages < MOST_TRIED else None
                if found is not None and found.end_s < best[0] * (1 - 1e-3):
                    best, improved = (found.end_s, parts), True
                    yield self._candidate(found)

    def _timed(self, parts: Floats) -> _Timed | None:
        """The best plan with pieces of these sizes; None if they are too small or too many."""
        cut = self.problem.collective != "all_to_all"
        if cut and len(parts) > 1 and self.total_bytes / self.blocks * parts.min() < LEAST_CHUNK_BYTES:
            return None
        weights = self._weights(parts) if cut else np.ones(self.blocks, np.int64)
        plan = Plan(self.net, (weights * (self.total_bytes / weights.sum())).tolist())
        self.make(plan, parts, np.cumsum(parts) * self.network_s)
        self.messages += len(plan.hop)
        if len(plan.hop) > MOST_MESSAGES:
            return None
        found = [plan.in_time(busiest_first=busiest) for busiest in (False, True)]
        tasks, start_s, end_s = min(found, key=lambda one: one[2])
        return _Timed(end_s, tasks, start_s, weights)

    def _weights(self, parts: Floats) -> Ints:
        """The chunks' weights: the pieces of a share are adjacent, those of a vector follow one another."""
        pieces = whole_weights(parts, BLOCK_WEIGHT)
        shared = self.problem.collective in ("all_gather", "reduce_scatter")
        return np.tile(pieces, self.blocks) if shared else np.repeat(pieces, self.blocks)

    def _candidate(self, found: _Timed) -> Candidate:
        collective = self.problem.collective
        schedule = Schedule(
            UNDONE.get(collective, collective),
            steps_of(found.tasks, self.net.hops, found.start_s, len(found.weights)),
            self.problem.root,
            "layered",
            found.weights,
            switches=self.net.hops.members - self.net.hops.devices,
            receive_in_order=True,
        )
        return Candidate("layered", backwards(schedule) if collective in UNDONE else schedule)
