"""The library: every algorithm that implements the collective, unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from choreo.algorithms import Algorithm, axes_of, build, list_algorithms
from choreo.errors import ChoreoError
from choreo.schedule import Schedule
from choreo.synthesize.problem import Candidate, Problem

__all__ = ["is_short", "library", "weighed"]


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
    """Along the topology's dimensions if the algorithm takes axes, in one order and in all orders."""
    given: dict[str, object] = {}
    if "traffic" in algorithm.options and problem.weights is not None:
        given = {"traffic": problem.weights.reshape(problem.ranks, problem.ranks)}
    if "axes" not in algorithm.options or not problem.in_order:
        yield given
        return
    axes = str(axes_of(problem.topology))
    yield given | {"axes": axes}
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


def is_short(schedule: Schedule, most: int) -> bool:
    """Whether a schedule has at most this many transfers; a long one is not expanded to find out."""
    transfers = 0
    for rows in schedule.blocks():
        transfers += len(rows)
        if transfers > most:
            return False
    return True
