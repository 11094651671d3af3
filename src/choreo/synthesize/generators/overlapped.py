"""Library schedules in overlapping segments, so that fast and slow links work at the same time.

The steps of one segment start when they would if it ran alone. The next segment follows one period later, which is the
bound for a segment. Every port then takes what is due first, of any segment (modulo scheduling). The starts are
stretched by several factors, because a step that is due a little later waits for nothing when its turn comes.

A message over a network costs its rank much more than one inside a server. So a segment may also be cut into groups of
blocks that follow one another: the fast links work on small parts, and a rank sends its block over the network once per
segment. Segments whose messages would keep a rank busy for longer than the whole collective should take are not tried.

Where no switch reduces, long messages have better schedules. Short ones still gain: a few segments of an all_reduce
along the dimensions keep both kinds of link busy with few messages.
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
from choreo.simulate.flows.engine import Messages
from choreo.synthesize.generators.library import is_short
from choreo.synthesize.problem import LEAST_CHUNK_BYTES, Candidate, Problem
from choreo.topology.graph import Floats, Ints

__all__ = ["overlapped"]

SEGMENTS = (1, 2, 3, 4, 6, 8, 16, 24, 32, 48, 64, 128, 256)
GROUPS = (1, 4, 8)
STRETCHES = (1.0, 1.25, 1.5, 2.0, 3.0)
# Where no switch reduces: the most segments and transfers of a schedule, and how far its starts are stretched.
FEW_SEGMENTS, FEW_TRANSFERS, FEW_STRETCHES = 8, 1 << 15, (1.0, 1.5)
# How long messages may keep a rank busy, relative to the bound.
BUSY = 1.2
# The most transfers of all schedules together: simulating so many takes half a minute.
MOST_TRIED = 24 << 20
# Start times are rounded to this many steps per period.
TICKS = 64


def overlapped(problem: Problem) -> Iterator[Candidate]:
    """Schedules through switches that reduce, and along the topology's dimensions."""
    reduces = any(block.reduces.any() for block in problem.topology.blocks)
    most_transfers = problem.most_transfers if reduces else min(FEW_TRANSFERS, problem.most_transfers)
    least_s, tried = problem.bound().bound_s, 0
    for base, groups in product(_bases(problem), GROUPS if reduces else (1,)):
        if groups > 1 and base.num_chunks < 2 * groups:
            continue
        grouped = _in_groups(base, groups)
        if grouped is None:
            continue
        for segments in SEGMENTS if reduces else SEGMENTS[: SEGMENTS.index(FEW_SEGMENTS) + 1]:
            too_fine = problem.size_bytes / (base.num_chunks * segments) < LEAST_CHUNK_BYTES
            if too_fine or grouped.num_transfers * segments > most_transfers:
                break
            try:
                alone = simulate(
                    grouped, problem.topology, problem.size_bytes / segments, placement=problem.devices.tolist()
                )
            except RefusedError:
                break
            period = alone.bound.bandwidth_bound_s
            if period <= 0 or segments * _busy_s(alone.messages) > BUSY * least_s:
                break
            first = np.zeros(base.num_steps)
            inside = alone.messages.step < base.num_steps
            np.maximum.at(first, alone.messages.step[inside], alone.messages.start_s[inside])
            turn = np.repeat(np.arange(groups) * period / groups, base.num_steps)
            for stretch in STRETCHES if reduces else FEW_STRETCHES:
                tried += grouped.num_transfers * segments
                if tried > MOST_TRIED:
                    return
                starts = turn + np.tile(first, groups) * stretch
                yield Candidate(f"overlapped {base.label}", _shifted(grouped, segments, period, starts))


def _busy_s(messages: Messages) -> float:
    """The time that the busiest rank spends on preparing messages, or on receiving them."""
    sends = np.bincount(messages.src, messages.send_s())
    receives = np.bincount(messages.dst, messages.receive_s())
    return float(max(sends.max(initial=0.0), receives.max(initial=0.0)))


def _in_groups(base: Schedule, groups: int) -> Schedule | None:
    """All steps for the first of equal parts of the chunks, then all for the next; None if a part skips a step."""
    if groups == 1:
        return base
    rows: Transfers = base.columns()
    edges = np.arange(groups + 1) * base.num_chunks // groups
    parts = []
    for group in range(groups):
        first = np.maximum(rows.chunk, edges[group])
        count = np.minimum(rows.chunk + rows.count, edges[group + 1]) - first
        inside = replace(rows, step=rows.step + group * base.num_steps, chunk=first, count=count)
        parts.append(inside.take(count > 0))
    joined = Transfers.join(parts)
    if len(np.unique(joined.step)) < groups * base.num_steps:
        return None
    steps = Steps.from_transfers(base.members, base.num_chunks, groups * base.num_steps, joined)
    return replace(base, body=steps)


def _bases(problem: Problem) -> Iterator[Schedule]:
    """Schedules worth cutting into segments: through the switches that reduce, and along the dimensions."""
    names = {algorithm.name for algorithm in list_algorithms(problem.collective)}
    reduces = any(block.reduces.any() for block in problem.topology.blocks)
    wanted: list[tuple[str, dict[str, object]]] = []
    if "in_network" in names and reduces:
        wanted.append(("in_network", {}))
    if problem.collective in ("all_reduce", "reduce") and problem.in_order and len(problem.topology.blocks) > 1:
        wanted += [("hierarchical", {"axes": axes}) for axes in _axes(problem)]
    for name, options in wanted:
        try:
            base = build(problem.collective, name, problem.ranks, root=problem.root, segments=None, **options)
        except ChoreoError:
            continue
        if base.num_steps and is_short(base, problem.most_transfers // 4):
            yield _with_own_kept(base)


def _with_own_kept(base: Schedule) -> Schedule:
    """A rank that alone gets a sum back from a switch keeps its own part of it, and adds that to what comes.

    Where a rank sends as much up as comes down, that much less goes up.
    """
    rows: Transfers = base.columns()
    ranks = base.members - base.switches
    up = (rows.dst >= ranks) & rows.reduce
    down = (rows.src >= ranks) & (rows.dst < ranks) & ~rows.reduce
    kept = []
    for step in np.unique(rows.step[up]).tolist():
        rising, coming = np.flatnonzero(up & (rows.step == step)), np.flatnonzero(down & (rows.step == step + 1))
        got = np.bincount(np.repeat(rows.src[coming], rows.count[coming]) * base.num_chunks + _each(rows, coming))
        if len(coming) and got.max() == 1:  # each sum goes to one rank
            kept.append((rising, coming))
    if not kept:
        return base
    rising, coming = (np.concatenate(column) for column in zip(*kept, strict=True))
    # What each rank gets back, as one range: the part of what it sends that it keeps.
    own = {(int(rows.step[row]) - 1, int(rows.dst[row]), int(rows.src[row])): row for row in coming.tolist()}
    if len(own) < len(coming):
        return base
    reduce, first, end = rows.reduce.copy(), rows.chunk.copy(), rows.chunk + rows.count
    reduce[coming] = True
    more = []
    for row in rising.tolist():
        mine = own.get((int(rows.step[row]), int(rows.src[row]), int(rows.dst[row])))
        if mine is None:
            continue
        behind, last = int(rows.chunk[mine] + rows.count[mine]), int(end[row])
        end[row] = min(last, int(rows.chunk[mine]))
        if behind < last:
            more.append((row, max(behind, int(first[row])), last))
    extra = rows.take(np.array([row for row, *_ in more], np.int64))
    extra = replace(
        extra,
        chunk=np.array([low for _, low, _ in more], np.int64),
        count=np.array([high - low for _, low, high in more], np.int64),
    )
    cut = replace(rows, reduce=reduce, count=end - first)
    steps = Transfers.join([cut.take(cut.count > 0), extra]).by_step()
    return replace(base, body=Steps.from_transfers(base.members, base.num_chunks, base.num_steps, steps))


def _each(rows: Transfers, some: Ints) -> Ints:
    """The number of every chunk of some transfers."""
    count = rows.count[some]
    offset = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    found: Ints = np.repeat(rows.chunk[some], count) + offset
    return found


def _axes(problem: Problem) -> Iterator[str]:
    """The dimensions with the algorithms that suit each, and with reducing switches where there are any.

    Two ranks do best if they exchange everything and both add: one message, where halves take two.
    """
    axes = axes_of(problem.topology)
    blocks = [block for block in problem.topology.blocks if block.size > 1]
    choices = [
        ("in_network",) if block.reduces.any() else _across(block.size, name)
        for block, name in zip(blocks, axes.algorithms, strict=True)
    ]
    for names in product(*choices):
        yield str(replace(axes, algorithms=names))


def _across(size: int, name: str) -> tuple[str, ...]:
    return ("recursive_doubling",) if size == 2 else tuple(dict.fromkeys(("recursive_doubling", "direct", name)))


def _shifted(base: Schedule, segments: int, period: float, starts: Floats) -> Schedule:
    """The schedule in segments, each one period after the last, with the steps in order of their starts."""
    apart = pipelined(base, segments, base.num_steps)  # one after another, so that the row gives the segment
    rows: Transfers = apart.columns()
    segment, step = np.divmod(rows.step, base.num_steps)
    due = np.round((starts[step] + segment * period) / period * TICKS)
    moments, order = np.unique(due, return_inverse=True)
    ordered = replace(rows, step=order.astype(np.int64)).by_step()
    return replace(apart, body=Steps.from_transfers(base.members, apart.num_chunks, len(moments), ordered))
