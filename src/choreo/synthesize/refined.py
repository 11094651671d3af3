"""Refine schedules of few messages: other orders of them, other sizes of their chunks; keep what helps.

A megabyte over a network takes a few microseconds, and a rank spends much of that on preparing messages. Which of them
it prepares first then matters more than any rule of a generator knows. So the messages of a finished schedule, with
what each waits for, are put in time again by list scheduling, in an order that differs a little from that of their
starts, or with chunks a little larger or smaller. Whatever ends no later is the next one to be changed. Several
schedules are changed a little, and then the one that is best by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_matrix

from choreo.schedule import Schedule, Steps, Transfers
from choreo.schedule.weights import block_weight, whole_weights
from choreo.synthesize.generators.library import is_short
from choreo.synthesize.network import Hops, hops_between
from choreo.synthesize.problem import LEAST_CHUNK_BYTES, Candidate, Problem
from choreo.synthesize.timeline import Tasks, in_time
from choreo.topology.graph import Floats, Ints

__all__ = ["refined"]

# A schedule that handles chunks more often is too large.
MOST_HANDLED = 1 << 15
# So many messages are put in time again for one schedule, in at most so many plans, and then for the best of them.
MESSAGES, PLANS = (1 << 18, 1 << 21), (400, 5000)
# Some messages start earlier or later by about this part of the whole time, all of them by less.
SOME, MOVED = 0.05, 0.1
# How often sizes are changed, and by about which factor.
OFTEN, RESIZED = 0.4, 0.3
# How often messages that wait for the same hop become one, or no longer do.
TOGETHER = 0.1


def refined(problem: Problem, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
    """The best of some schedules, with messages in a better order and chunks of better sizes."""
    if problem.size_bytes <= 0:
        return
    found: list[tuple[float, int, Candidate, _Search]] = []
    for candidate in candidates:
        messages = _Messages.of(problem, candidate.schedule)
        search = None if messages is None else _Search(problem, messages)
        if search is not None and search.best is not None:
            search.run(MESSAGES[0], PLANS[0])
            found.append((search.best.end_s, len(found), candidate, search))
    for _, _, candidate, search in sorted(found)[:1]:
        search.run(MESSAGES[1], PLANS[1])
        assert search.best is not None
        yield Candidate(
            f"{candidate.generator}, refined", search.messages.scheduled(search.best, resized=search.resizes)
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """The parts of each block in its chunks, the order of messages, when each starts, and the end of the last."""

    parts: Floats
    order: Floats
    together: bool
    start_s: Floats
    end_s: float


@dataclass(frozen=True, slots=True, eq=False)
class _Messages:
    """A schedule's messages: which one each row is in, their steps and hops, and the chunks in each as a matrix.

    `before` are pairs of messages of which the second reads what the first writes. In `over` the second writes over
    what the first reads.
    """

    schedule: Schedule
    of_rows: Ints
    step: Ints
    hop: Ints
    hops: Hops
    chunks: csr_matrix
    before: Ints
    over: Ints

    @staticmethod
    def of(problem: Problem, schedule: Schedule) -> _Messages | None:
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
        return _Messages(schedule, of_rows, step, hop, hops, chunks, before, over)

    def scheduled(self, plan: _Plan, *, resized: bool) -> Schedule:
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


class _Search:
    """Changes a plan at random, and keeps what ends no later."""

    def __init__(self, problem: Problem, messages: _Messages) -> None:
        self.messages = messages
        self.rng = np.random.default_rng(len(messages.hop))
        schedule, blocks = messages.schedule, problem.block_bytes
        weights = np.ones(schedule.num_chunks) if schedule.weights is None else schedule.weights.astype(np.float64)
        self.total_bytes = float(blocks.sum())
        self.resizes = problem.weights is None and len(blocks) < len(weights)
        first = self._planned(weights.reshape(len(blocks), -1), messages.step.astype(np.float64), together=False)
        self.best = None if first is None else replace(first, order=first.start_s)

    def run(self, most_messages: int, most_plans: int) -> None:
        """Try changes."""
        for _ in range(min(most_plans, most_messages // len(self.messages.hop))):
            assert self.best is not None
            together = self.best.together != (self.rng.random() < TOGETHER)
            found = self._planned(*self._changed(self.best), together=together)
            if found is not None and found.end_s <= self.best.end_s:
                self.best = found

    def _changed(self, plan: _Plan) -> tuple[Floats, Floats]:
        """Other sizes, or another order."""
        rng, order = self.rng, plan.order.copy()
        if self.resizes and rng.random() < OFTEN:
            parts = plan.parts.copy()
            block = rng.integers(len(parts)) if rng.random() < 0.5 else slice(None)
            parts[block, rng.integers(parts.shape[1])] *= np.exp(rng.normal(0.0, RESIZED))
            return parts / parts.sum(axis=1, keepdims=True), order
        if rng.random() < 0.5:
            some = rng.random(len(order)) < SOME
            order[some] += rng.normal(0.0, MOVED * plan.end_s, int(some.sum()))
        else:
            order += rng.normal(0.0, MOVED * plan.end_s * rng.random() ** 2, len(order))
        return plan.parts, order

    def _planned(self, parts: Floats, order: Floats, *, together: bool) -> _Plan | None:
        """The plan for chunks of these sizes in this order; None if it would write over what is still to be read."""
        chunk_bytes = (parts * (self.total_bytes / parts.sum())).ravel()
        if self.resizes and chunk_bytes.min() < LEAST_CHUNK_BYTES * (1 - 1e-9):
            return None
        messages, count = self.messages, len(self.messages.hop)
        size, none = messages.chunks @ chunk_bytes, np.zeros(count)
        tasks = Tasks(messages.hop, none.astype(np.int64), size, none.astype(np.bool_), messages.before, none)
        start_s, end_s = in_time(tasks, messages.hops, planned_s=order, together=together)
        if (start_s[messages.over[:, 0]] > start_s[messages.over[:, 1]]).any():
            return None
        return _Plan(parts, order, together, start_s, end_s)
