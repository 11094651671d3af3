"""Simulated annealing of a plan that every device follows alike, on a network that looks the same from all of them.

A plan's messages are put in time by list scheduling on the lanes of `Ways`. That takes some ten microseconds, so tens
of thousands of plans can be tried, and more of trees, where the search is compiled as well: another shape of trees or
paths, another order of messages, chunks that wait for the same way as one message. What is kept as the best is a plan
whose messages are prepared in the order in which they start, so that the simulation is the plan.

Source: S. Kirkpatrick, C. D. Gelatt, M. P. Vecchi, "Optimization by simulated annealing", Science 1983.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from choreo.synthesize.annealing.ways import Ways
from choreo.synthesize.list_scheduling import start_times
from choreo.synthesize.timeline import planner
from choreo.topology.graph import Floats, Ints

__all__ = ["Messages", "Plan", "Search"]

# A plan that takes longer is kept with a probability that falls: by e for this part of the time, first and last.
WARM, COLD = 0.015, 0.0005
# Which changes are tried: another shape; one message earlier or later; all of them, a little; longer messages or
# shorter ones.
CHANGES = (0.5, 0.25, 0.2, 0.05)
# How often what is reshaped is what the last message had to wait for.
LATE = 0.5
# By which part of the whole time one message moves, and all of them.
MOVED, MOVED_ALL = 0.2, 0.05
# By which factor the longest message that is made of several chunks changes.
LONGER = 0.5
# A plan costs its time plus the mean of its arrivals in this power: many late messages are worse than one.
LATENESS = 6
# How many plans are tried in the time of one where messages alone are put in time by a compiled loop: without it, and
# if all is compiled.
SLOW, FAST = 0.02, 4.0

# How often a plan is made again in the order of its starts, until that makes no difference.
AGAIN = 4

Shape = TypeVar("Shape")


class Messages(NamedTuple):
    """The way of each message m, how many it waits for, where it is added to what is there, -1 if it is only copied,
    and who waits for it: after[offsets[m] : offsets[m + 1]]."""

    way: Ints
    missing: Ints
    place: Ints
    offsets: Ints
    after: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Plan(Generic[Shape]):
    """Trees or paths; the way and the order of their messages; when they start.

    Those that wait for the same way go together while that takes no more than `longest_s` on its links.
    """

    shape: Shape
    way: Ints
    order: Floats
    longest_s: float
    start_s: Floats
    end_s: float


class Search(ABC, Generic[Shape]):
    """Changes a plan at random, and keeps what is better, and at first also what is a little worse.

    `pace` says how fast, as `SLOW` and `FAST` do.
    """

    def __init__(self, ways: Ways, message_bytes: float) -> None:
        self.ways = ways
        self.devices = len(ways.latency_s) + 1
        self.takes_s = message_bytes / ways.bandwidth_bytes_per_s
        self.rng = np.random.default_rng(self.devices)
        self._start_times = planner()
        self.is_compiled = self._start_times is not start_times
        self.pace = 1.0 if self.is_compiled else SLOW
        self._payers = np.zeros((2, len(ways.latency_s)), np.int64)

    @abstractmethod
    def messages(self, shape: Shape) -> Messages:
        """The messages of a shape."""

    @abstractmethod
    def reshaped(self, plan: Plan[Shape]) -> tuple[Shape, Floats] | None:
        """A shape that is a little different, with the order of its messages; None if that is impossible."""

    def planned(self, shape: Shape, order: Floats, longest_s: float = 0.0) -> Plan[Shape]:
        """Put in time."""
        ways, found = self.ways, self.messages(shape)
        start_s, end_s = self._start_times(
            found.way,
            self.takes_s[found.way],
            order,
            found.missing,
            found.place,
            found.offsets,
            found.after,
            ways.offsets,
            ways.lanes,
            ways.num_lanes,
            ways.latency_s,
            self._payers,
            ways.costs_s,
            False,
            longest_s,
        )
        return Plan(shape, found.way, order, longest_s, start_s, end_s)

    def run(self, plan: Plan[Shape], plans: int) -> Plan[Shape]:
        """The best of so many plans."""
        best, cost_s = plan, self._cost_s(plan)
        for number in range(plans):
            warmth = plan.end_s * WARM * (COLD / WARM) ** (number / plans)
            changed = self._changed(plan)
            if changed is None:
                continue
            other_s = self._cost_s(changed)
            if other_s <= cost_s or self.rng.random() < math.exp((cost_s - other_s) / warmth):
                plan, cost_s = changed, other_s
            if plan.end_s < best.end_s:
                best = min(best, self.settled(plan), key=lambda one: one.end_s)
        return best

    def settled(self, plan: Plan[Shape]) -> Plan[Shape]:
        """The plan with messages prepared in the order in which they start, as ranks do."""
        for _ in range(AGAIN):
            order = plan.start_s
            plan = self.planned(plan.shape, order, plan.longest_s)
            if np.array_equal(plan.start_s, order):
                break
        return plan

    def _cost_s(self, plan: Plan[Shape]) -> float:
        """What is made less: plans that end equally late are not equally good."""
        late = self.arrived_s(plan) / plan.end_s
        return plan.end_s * (1 + math.pow(float(np.mean(late**LATENESS)), 1 / LATENESS))

    def arrived_s(self, plan: Plan[Shape]) -> Floats:
        """When each message would have arrived, if none were made of several."""
        found: Floats = plan.start_s + (self.takes_s + self.ways.latency_s)[plan.way]
        return found

    def ends_s(self, plan: Plan[Shape]) -> Floats:
        """When each message has arrived; those that go together arrive together."""
        _, message = np.unique(np.stack((plan.start_s, plan.way)), axis=1, return_inverse=True)
        message = message.reshape(-1)
        takes_s = np.bincount(message, self.takes_s[plan.way])[message]
        ends: Floats = plan.start_s + takes_s + self.ways.latency_s[plan.way]
        return ends

    def turns(self, plan: Plan[Shape]) -> Ints:
        """Which message starts first, which second: as planned, one at a time; parts of a message have one turn."""
        first = np.lexsort((plan.order, plan.start_s))
        _, at, message = np.unique(
            np.stack((plan.start_s, plan.way))[:, first], axis=1, return_index=True, return_inverse=True
        )
        turn = np.empty(len(first), np.int64)
        turn[first] = at[message.reshape(-1)]
        return turn

    def _changed(self, plan: Plan[Shape]) -> Plan[Shape] | None:
        """A plan that is a little different."""
        rng, order, longest_s = self.rng, plan.order, plan.longest_s
        change = int(np.searchsorted(np.cumsum(CHANGES), rng.random()))
        if change == 0:
            found = self.reshaped(plan)
            return None if found is None else self.planned(*found, longest_s)
        if change == 1:
            order = order.copy()
            order[int(rng.integers(len(order)))] += rng.normal(0.0, MOVED * plan.end_s)
        elif change == 2:
            order = plan.start_s + rng.normal(0.0, MOVED_ALL * plan.end_s * rng.random(), len(order))
        elif rng.random() < 0.5:
            longest_s = max(longest_s, float(self.takes_s.min())) * math.exp(rng.normal(0.0, LONGER))
        else:
            longest_s = 0.0
        return self.planned(plan.shape, order, longest_s)
