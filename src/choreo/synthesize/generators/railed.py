"""Broadcast and reduce across servers: every rail carries a part of the vector, in pieces that follow one another.

A piece goes from the root to a carrier in its server, along the rail from server to server, and from each carrier to
the rest of its server. Where the root's server has rails to spare, every other server has some of them to itself and
gets all directly. Otherwise the servers pass pieces on to each other (see `swarm`). The last pieces have nothing to
hide behind, so they are smaller, and so are the first, because the rails wait for them.

How many pieces and how much smaller is found by trying.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from choreo.schedule import Schedule, backwards
from choreo.synthesize.network import hops_of
from choreo.synthesize.problem import Candidate, Problem
from choreo.synthesize.rails.plan import CHAIN, STAR, SWARM, Columns, Planned, Planner, Shape
from choreo.synthesize.rails.rails import Rails, rails_of
from choreo.synthesize.timeline import steps_of

__all__ = ["railed"]

PIECES = (4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 192, 256)
# More pieces are not tried once plans take longer than the best by this factor.
FAR = 1.1
# How many pieces at either end are smaller, and by which factor from one to the next.
SMALLER, FACTORS = (0, 1, 2, 3, 4, 6), (0.5, 0.7, 0.85)
# Every server gets rails to itself if they have this part of the speed that the bound allows, and then as many.
ENOUGH, SPARE = 0.9, (1.0, 1.15, 1.25, 1.4, 2.0)
# How often a plan is made again in the order of its starts.
AGAIN = 4
# The most hops of chunks in all plans that are tried for one choice of columns, and the most plans that are simulated.
MOST_TRIED, MOST_SIMULATED = 1 << 22, 4


def railed(problem: Problem) -> Iterator[Candidate]:
    """Pieces along rails, where the outermost dimension joins servers."""
    if problem.collective not in ("broadcast", "reduce") or not problem.in_order or problem.size_bytes <= 0:
        return
    hops = hops_of(problem.topology, through_switches=bool(problem.topology.reduces.any()))
    rails = rails_of(problem, hops.turned() if problem.collective == "reduce" else hops)
    if rails is not None:
        for columns in _columns(problem, rails):
            planner = Planner(problem, rails, columns)
            for plan in _best(planner):
                yield from (_candidate(problem, rails, again) for again in planner.again(plan, AGAIN))


def _columns(problem: Problem, rails: Rails) -> Iterator[Columns]:
    others, gpus, local = rails.servers - 1, rails.gpus, rails.root % rails.gpus
    ranks = [(local + 1 + turn) % gpus for turn in range(gpus)]
    bound_s = problem.bound().bandwidth_bound_s
    width = rails.hops.bandwidth_bytes_per_s[rails.number[rails.root, (rails.root + gpus) % problem.ranks]]
    needed = max(1, math.ceil(ENOUGH * problem.size_bytes / (bound_s * width)))
    own = gpus // others
    for count in sorted({min(own, math.ceil(needed * spare)) for spare in SPARE}) if own >= needed else ():
        carriers = [[-1, *(ranks[server * own + part] for server in range(others))] for part in range(count)]
        yield Columns(carriers, STAR)
    if others > 1 or own < needed:
        for way in (CHAIN, SWARM) if others > 2 else (CHAIN,):
            yield Columns([[rank] * rails.servers for rank in ranks], way)


def _best(planner: Planner) -> Iterator[Planned]:
    """The best plans of the shapes that were tried."""
    found: dict[Shape, Planned] = {}
    tried = 0

    def end_s(shape: Shape) -> float:
        nonlocal tried
        if shape not in found:
            plan = planner.plan(shape) if tried < MOST_TRIED else None
            if plan is None:
                return math.inf
            tried += len(plan.tasks)
            found[shape] = plan
        return found[shape].end_s

    best = Shape(PIECES[0])
    for pieces in PIECES:
        shape = Shape(pieces)
        if end_s(shape) > FAR * end_s(best):
            break
        best = min(best, shape, key=end_s)
    better: Shape | None = best if math.isfinite(end_s(best)) else None
    while better is not None:
        best = better
        enough_s = end_s(best) * (1 - 1e-4)
        better = next((shape for shape in _similar(best) if end_s(shape) < enough_s), None)
    # With many small pieces the simulation may be further from the plan, so the best of several numbers are returned.
    by_pieces = {shape.pieces: shape for shape in sorted(found, key=end_s, reverse=True)}
    yield from (found[shape] for shape in sorted(by_pieces.values(), key=end_s)[:MOST_SIMULATED])


def _similar(shape: Shape) -> Iterator[Shape]:
    """Shapes that differ in one respect."""
    yield from (replace(shape, pieces=count) for count in range(max(1, shape.pieces - 2), shape.pieces + 3))
    yield from (replace(shape, falling=count) for count in SMALLER)
    yield from (replace(shape, rising=count) for count in SMALLER)
    yield from (replace(shape, factor=factor) for factor in FACTORS)


def _candidate(problem: Problem, rails: Rails, plan: Planned) -> Candidate:
    hops = rails.hops
    schedule = Schedule(
        "broadcast",
        steps_of(plan.tasks, hops, plan.start_s, len(plan.weights)),
        problem.root,
        "railed",
        plan.weights,
        switches=hops.members - hops.devices,
        receive_in_order=True,
    )
    return Candidate("railed", backwards(schedule) if problem.collective == "reduce" else schedule)
