"""Library schedules in segments that overlap, so that fast and slow links work at the same time.

One segment's steps begin when they would if it ran alone; the next segment does the same a period later, which is what
the bound allows a segment. Every port then takes what is due first, of whichever segment (modulo scheduling). The
starts are stretched by some factors, since a step that is due a little later waits for nothing when its turn comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from choreo.algorithms import axes_of, build, list_algorithms
from choreo.errors import ChoreoError, RefusedError
from choreo.schedule import Schedule, Steps, Transfers, pipelined
from choreo.simulate import simulate
from choreo.synthesize.library import is_short
from choreo.synthesize.problem import LEAST_CHUNK_BYTES, Candidate, Problem
from choreo.topology.graph import Floats

__all__ = ["overlapped"]

SEGMENTS = (4, 16, 64, 128, 256)
STRETCHES = (1.0, 1.25, 1.5, 2.0, 3.0)
# Of so many steps of the plan that fall into one period, no two need to be told apart.
TICKS = 64


def overlapped(problem: Problem) -> Iterator[Candidate]:
    """Schedules through switches that reduce, and along the topology's other dimensions."""
    for base in _bases(problem):
        for segments in SEGMENTS:
            too_fine = problem.size_bytes / (base.num_chunks * segments) < LEAST_CHUNK_BYTES
            if too_fine or base.num_transfers * segments > problem.most_transfers:
                break
            try:
                alone = simulate(
                    base, problem.topology, problem.size_bytes / segments, placement=problem.devices.tolist()
                )
            except RefusedError:
                break
            starts = np.zeros(base.num_steps)
            np.maximum.at(starts, alone.messages.step, alone.messages.start_s)
            period = alone.bound.bandwidth_bound_s
            if period <= 0:
                break
            for stretch in STRETCHES:
                yield Candidate(f"overlapped {base.label}", _shifted(base, segments, period, starts * stretch))


def _bases(problem: Problem) -> Iterator[Schedule]:
    """What is worth cutting into segments: what goes through the switches that reduce, alone or along one dimension."""
    names = {algorithm.name for algorithm in list_algorithms(problem.collective)}
    reduces = any(block.reduces.any() for block in problem.topology.blocks)
    wanted: list[tuple[str, dict[str, object]]] = []
    if not reduces:
        return
    if "in_network" in names:
        wanted.append(("in_network", {}))
    if problem.collective in ("all_reduce", "reduce") and problem.in_order and len(problem.topology.blocks) > 1:
        wanted += [("hierarchical", {"axes": axes}) for axes in _axes(problem)]
    for name, options in wanted:
        try:
            base = build(problem.collective, name, problem.ranks, root=problem.root, segments=None, **options)
        except ChoreoError:
            continue
        if base.num_steps and is_short(base, problem.most_transfers // SEGMENTS[0]):
            yield base


def _axes(problem: Problem) -> Iterator[str]:
    """The dimensions with the algorithm that suits each, and with switches that reduce where there are some."""
    axes = axes_of(problem.topology)
    blocks = [block for block in problem.topology.blocks if block.size > 1]
    choices = [
        ("in_network",) if block.reduces.any() else tuple(dict.fromkeys(("direct", name)))
        for block, name in zip(blocks, axes.algorithms, strict=True)
    ]
    for names in product(*choices):
        yield str(replace(axes, algorithms=names))


def _shifted(base: Schedule, segments: int, period: float, starts: Floats) -> Schedule:
    """The schedule in segments, each a period after the one before, with the steps in order of their starts."""
    apart = pipelined(base, segments, base.num_steps)  # one after another, so that a row tells its segment
    rows: Transfers = apart.columns()
    segment, step = np.divmod(rows.step, base.num_steps)
    due = np.round((starts[step] + segment * period) / period * TICKS)
    moments, order = np.unique(due, return_inverse=True)
    ordered = replace(rows, step=order.astype(np.int64)).by_step()
    return replace(apart, body=Steps.from_transfers(base.members, apart.num_chunks, len(moments), ordered))
