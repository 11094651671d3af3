"""A search for a better order of messages, and for better sizes of the chunks in them, by small changes at random.

What is changed is put in time by list scheduling, and whatever ends no later is the next one to be changed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_matrix

from choreo.synthesize.network import Hops
from choreo.synthesize.problem import LEAST_CHUNK_BYTES
from choreo.synthesize.timeline import Tasks, in_time
from choreo.topology.graph import Floats, Ints

__all__ = ["Messages", "Ordered", "Ordering"]

# Some messages start earlier or later by about this part of the whole time, all of them by less.
SOME, MOVED = 0.05, 0.1
# How often sizes are changed, and by about which factor.
OFTEN, RESIZED = 0.4, 0.3
# How often messages that wait for the same hop become one, or no longer do.
TOGETHER = 0.1
# After so many changes that gain less than this fraction of the time, no more are tried.
IDLE, HARDLY = 2000, 1e-4
# How often a plan is made again in the order of its starts.
AGAIN = 3


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Messages as tasks on hops, and the chunks in each as a matrix; their sizes follow from those of the chunks.

    In a pair of `over` the second message writes over what the first reads, so it may not start before.
    """

    tasks: Tasks
    hops: Hops
    chunks: csr_matrix
    over: Ints

    def __len__(self) -> int:
        return len(self.tasks)


@dataclass(frozen=True, slots=True, eq=False)
class Ordered:
    """The parts of each block in its chunks, the order of messages, when each starts, and the end of the last."""

    parts: Floats
    order: Floats
    together: bool
    start_s: Floats
    end_s: float


class Ordering:
    """Changes an order at random, and keeps what ends no later.

    `parts` are the parts of each block (a row) in its chunks; with `resizes` they may change.
    """

    def __init__(
        self, messages: Messages, parts: Floats, order: Floats, total_bytes: float, *, resizes: bool = True
    ) -> None:
        self.messages, self.total_bytes, self.resizes = messages, total_bytes, resizes
        self.rng = np.random.default_rng(len(messages))
        first = self._planned(parts, order, together=False)
        self.best = None if first is None else self._settled(first)

    def run(self, most_messages: int, most_plans: int) -> None:
        """Try changes, as long as some of them help."""
        idle, least_s = 0, math.inf
        for _ in range(min(most_plans, most_messages // len(self.messages))):
            assert self.best is not None
            if self.best.end_s < least_s * (1 - HARDLY):
                idle, least_s = 0, self.best.end_s
            idle += 1
            if idle > IDLE:
                break
            together = self.best.together != (self.rng.random() < TOGETHER)
            found = self._planned(*self._changed(self.best), together=together)
            if found is not None and found.end_s <= self.best.end_s:
                self.best = min(self._settled(found), self.best, key=lambda plan: plan.end_s)

    def _settled(self, plan: Ordered) -> Ordered:
        """The plan made again in the order of its starts, because ranks prepare messages in that order."""
        for _ in range(AGAIN):
            found = self._planned(plan.parts, plan.start_s, together=plan.together)
            if found is None or np.array_equal(found.start_s, plan.start_s):
                break
            plan = found
        return plan

    def _changed(self, plan: Ordered) -> tuple[Floats, Floats]:
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

    def _planned(self, parts: Floats, order: Floats, *, together: bool) -> Ordered | None:
        """The plan for chunks of these sizes in this order; None if it would write over what is still to be read."""
        chunk_bytes = (parts * (self.total_bytes / parts.sum())).ravel()
        if self.resizes and chunk_bytes.min() < LEAST_CHUNK_BYTES * (1 - 1e-9):
            return None
        messages = self.messages
        tasks = replace(messages.tasks, size_bytes=messages.chunks @ chunk_bytes)
        start_s, end_s = in_time(tasks, messages.hops, planned_s=order, together=together)
        if (start_s[messages.over[:, 0]] > start_s[messages.over[:, 1]]).any():
            return None
        return Ordered(parts, order, together, start_s, end_s)
