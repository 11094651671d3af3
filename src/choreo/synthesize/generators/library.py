"""The library: every algorithm that implements the collective, unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from choreo.algorithms import Algorithm, axes_of, build, list_algorithms
from choreo.errors import ChoreoError
from choreo.schedule import Schedule
from choreo.synthesize.problem import Candidate, Problem

__all__ = ["busiest_link_s", "is_short", "library", "weighed"]

# With more ranks only axes along the topology's dimensions are tried.
FEW_RANKS = 128


def library(problem: Problem) -> Iterator[Candidate]:
    """Every algorithm of the library that supports this number of ranks and is not too long."""
    for algorithm in list_algorithms(problem.collective):
        if not algorithm.in_library or _is_long(algorithm, problem):
            continue
        for options in _options(problem, algorithm):
            try:
                schedule = build(
                    problem.collective, algorithm.name, problem.ranks, root=problem.root, segments=None, **options
                )
            except ChoreoError:  # it does not support this number of ranks
                continue
            if is_short(schedule, problem.most_transfers // 4):
                whole = schedule if "traffic" in options else weighed(schedule, problem)
                yield Candidate(algorithm.name, whole)


def _options(problem: Problem, algorithm: Algorithm) -> Iterator[dict[str, object]]:
    """Along the topology's dimensions if the algorithm takes axes, in one order and in all orders, and by itself."""
    given: dict[str, object] = {}
    if "traffic" in algorithm.options and problem.weights is not None:
        given = {"traffic": problem.weights.reshape(problem.ranks, problem.ranks)}
    if "axes" not in algorithm.options or not problem.in_order:
        yield given
        return
    axes = str(axes_of(problem.topology))
    yield given | {"axes": axes}
    if problem.ranks <= FEW_RANKS:
        yield given  # along axes of its own choice
    if "rotate" in algorithm.options and len(problem.topology.blocks) > 1:
        yield {"axes": axes, "rotate": True}


def _is_long(algorithm: Algorithm, problem: Problem) -> bool:
    """Whether it is too long to be worth building, judged by the messages per rank in its cost formula."""
    if problem.root is not None or algorithm.cost is None:
        return False
    return problem.ranks * algorithm.cost.terms(problem.ranks)[0] > 4 * problem.most_transfers


def weighed(schedule: Schedule, problem: Problem) -> Schedule:
    """The schedule with blocks of the problem's sizes."""
    if problem.weights is None:
        return schedule
    return replace(schedule, weights=np.repeat(problem.weights, schedule.chunks_a_block))


def busiest_link_s(schedule: Schedule, problem: Problem) -> float:
    """The least time in which a schedule's busiest link can carry its bytes; 0 where switches are members."""
    if schedule.switches:
        return 0.0
    topology, ranks = problem.topology, schedule.ranks
    sent = np.zeros(ranks**2)
    for rows in schedule.blocks():
        sent += np.bincount(rows.src * ranks + rows.dst, schedule.weights_of(rows), ranks**2)
    pairs = np.flatnonzero(sent)
    src, dst = np.divmod(pairs, ranks)
    routes = topology.routes(problem.devices[src], problem.devices[dst])
    weight = np.repeat(sent[pairs], np.diff(routes.offsets)) * routes.share
    load = np.bincount(routes.links, weight, len(topology.links))
    total_bytes = schedule.contract.total_bytes(problem.size_bytes, ranks)
    used = load > 0
    busy_s = load[used] / schedule.total_weight * total_bytes / topology.links.bandwidth_bytes_per_s[used]
    return float(busy_s.max(initial=0.0))


def is_short(schedule: Schedule, most: int) -> bool:
    """Whether a schedule has at most this many transfers; a long one is not expanded to find out."""
    return schedule.count_transfers(most) <= most
