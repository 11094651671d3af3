"""Refine schedules of few messages: other orders of them, other sizes of their chunks; keep what helps.

A megabyte over a network takes a few microseconds, and a rank spends much of that on preparing messages. Which of them
it prepares first then matters more than any rule of a generator knows. So the messages of a finished schedule, with
what each waits for, are put in time again by list scheduling, in an order that differs a little from that of their
starts, or with chunks a little larger or smaller (see `Ordering`). Several schedules are changed a little, and then the
one that is best by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_matrix

from choreo.schedule import Schedule, Steps, Transfers
from choreo.schedule.weights import block_weight, whole_weights
from choreo.synthesize.generators.library import is_short
from choreo.synthesize.network import hops_between
from choreo.synthesize.ordering import Messages, Ordered, Ordering
from choreo.synthesize.problem import Candidate, Problem
from choreo.synthesize.timeline import Tasks
from choreo.topology.graph import Ints

__all__ = ["refined"]

# A schedule that handles chunks more often is too large.
MOST_HANDLED = 1 << 15
# So many messages are put in time again for one schedule, in at most so many plans, and then for the best of them.
MESSAGES, PLANS = (1 << 18, 1 << 22), (400, 10_000)


def refined(problem: Problem, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
    """The best of some schedules, with messages in a better order and chunks of better sizes."""
    if problem.size_bytes <= 0:
        return
    found: list[tuple[float, int, Candidate, _Read, Ordering]] = []
    for candidate in candidates:
        read = _Read.of(problem, candidate.schedule)
        search = None if read is None else _search(problem, read)
        if read is not None and search is not None and search.best is not None:
            search.run(MESSAGES[0], PLANS[0])
            found.append((search.best.end_s, len(found), candidate, read, search))
    for _, _, candidate, read, search in sorted(found)[:1]:
        search.run(MESSAGES[1], PLANS[1])
        assert search.best is not None
        schedule = read.scheduled(search.best, resized=search.resizes)
        yield Candidate(f"{candidate.generator.removesuffix(', refined')}, refined", schedule)


def _search(problem: Problem, read: _Read) -> Ordering:
    schedule, blocks = read.schedule, problem.block_bytes
    weights = np.ones(schedule.num_chunks) if schedule.weights is None else schedule.weights.astype(np.float64)
    return Ordering(
        read.messages,
        weights.reshape(len(blocks), -1),
        read.step.astype(np.float64),
        float(blocks.sum()),
        resizes=problem.weights is None and len(blocks) < len(weights),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Read:
    """A schedule's messages and their steps, and which message each row is in."""

    schedule: Schedule
    of_rows: Ints
    step: Ints
    messages: Messages

    @staticmethod
    def of(problem: Problem, schedule: Schedule) -> _Read | None:
        """The messages of a schedule; None if there are too many, or relays."""
        nodes = np.concatenate((problem.devices, np.flatnonzero(problem.topology.reduces)))
        if schedule.relays or len(nodes) < schedule.members or not is_short(schedule, MOST_HANDLED):
            return None
        rows: Transfers = schedule.columns()
        if not 0 < int(rows.count.sum()) <= MOST_HANDLED:
            return None
        key = (rows.step * schedule.members + rows.src) * schedule.members + rows.dst
        _, at, of_rows = np.unique(key, return_index=True, return_inverse=True)
        step = rows.step[at]
        hops, hop = hops_between(problem.topology, nodes[: schedule.members], rows.src[at], rows.dst[at])
        row = np.repeat(np.arange(len(rows.step)), rows.count)
        chunk = rows.chunk[row] + np.arange(len(row)) - np.repeat(np.cumsum(rows.count) - rows.count, rows.count)
        message = of_rows[row]
        chunks = csr_matrix((np.ones(len(row)), (message, chunk)), shape=(len(at), schedule.num_chunks))
        written = rows.dst[row] * schedule.num_chunks + chunk
        works = ~rows.from_input[row]
        read = (rows.src[row] * schedule.num_chunks + chunk)[works]
        before, over = _waits(step, _by_place(written, message), _by_place(read, message[works]))
        none = np.zeros(len(at))
        tasks = Tasks(hop, none.astype(np.int64), none, none.astype(np.bool_), before, none)
        return _Read(schedule, of_rows, step, Messages(tasks, hops, chunks, over))

    def scheduled(self, plan: Ordered, *, resized: bool) -> Schedule:
        """The schedule with messages in the order of their starts."""
        schedule, weights = self.schedule, self.schedule.weights
        if resized:
            weights = np.concatenate([whole_weights(part, block_weight(len(plan.parts))) for part in plan.parts])
        moments, step = np.unique(plan.start_s, return_inverse=True)
        rows: Transfers = replace(schedule.columns(), step=step.astype(np.int64)[self.of_rows]).by_step()
        return replace(
            schedule,
            body=Steps.from_transfers(schedule.members, schedule.num_chunks, len(moments), rows),
            weights=weights,
            phases=(),
            receive_in_order=True,
        )


def _by_place(place: Ints, message: Ints) -> dict[int, list[int]]:
    """The messages at each place, a chunk of a member."""
    found: dict[int, list[int]] = {}
    for here, one in zip(place.tolist(), message.tolist(), strict=True):
        found.setdefault(here, []).append(one)
    return found


def _waits(step: Ints, writes: dict[int, list[int]], reads: dict[int, list[int]]) -> tuple[Ints, Ints]:
    """Pairs of which the second reads what the first wrote, and of which it writes over what the first reads."""
    when = step.tolist()
    before: set[tuple[int, int]] = set()
    over: set[tuple[int, int]] = set()
    for place, readers in reads.items():
        for writer in writes.get(place, ()):
            before |= {(writer, reader) for reader in readers if when[writer] < when[reader]}
            over |= {(reader, writer) for reader in readers if when[writer] >= when[reader]}
    pairs = [np.array(sorted(some), np.int64).reshape(-1, 2) for some in (before, over)]
    return pairs[0], pairs[1]
