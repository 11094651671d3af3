"""From hops that depend on each other to a schedule: every link takes what must start first to be in time.

A *task* is a chunk on a hop. It can start when the tasks before it have arrived, and when the links of its hop are
free; a link that is free never waits if there is something for it to do. What has the longest way still before it goes
first, and chunks that follow one another along the same trees are due one after another; or what needs the link that
has most still to carry. The order of the starts gives the steps.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from choreo.schedule import Steps, Transfers
from choreo.synthesize.network import Hops
from choreo.topology.graph import Bools, Floats, Ints

__all__ = ["Tasks", "in_time", "steps_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Tasks:
    """Chunks on hops, as columns. `before` has the tasks that must have arrived before each, as pairs (before, after).

    `reduce` marks those that are added to what is there. `due_s` is when a chunk's last hop should have arrived, as
    compared to other chunks.
    """

    hop: Ints
    chunk: Ints
    size_bytes: Floats
    reduce: Bools
    before: Ints
    due_s: Floats

    def __len__(self) -> int:
        return len(self.hop)


def in_time(tasks: Tasks, hops: Hops, *, busiest_first: bool = False) -> tuple[Floats, float]:
    """When each task starts, and when the last has arrived.

    With `busiest_first` a hop goes before others if one of its links has most still to carry, as behind switches, where
    a message needs a port of its sender and one of its receiver.
    """
    return _Links(tasks, hops, busiest_first=busiest_first).run()


class _Links:
    """List scheduling, by events: a task arrives, or its links are free again."""

    def __init__(self, tasks: Tasks, hops: Hops, *, busiest_first: bool) -> None:
        takes = tasks.size_bytes / hops.bandwidth_bytes_per_s[tasks.hop]
        self.takes, self.arrives = takes.tolist(), (takes + hops.latency_s[tasks.hop]).tolist()
        self.hop: list[int] = tasks.hop.tolist()
        self.links = hops.links
        self.after: list[list[int]] = [[] for _ in self.hop]
        for first, second in tasks.before.tolist():
            self.after[first].append(second)
        self.missing = np.bincount(tasks.before[:, 1], minlength=len(tasks)).tolist()
        self.latest = (tasks.due_s - np.array(self._rest())).tolist()  # when a task should have started
        self.busy = [False] * len(hops.capacity)
        self.hops_at: list[list[int]] = [[] for _ in self.busy]
        for hop, each in enumerate(self.links):
            for link in each:
                self.hops_at[link].append(hop)
        self.left_s = [0.0] * len(self.busy) if busiest_first else None  # what each link has still to carry
        if self.left_s is not None:
            for hop, takes_s in zip(self.hop, self.takes, strict=True):
                for link in self.links[hop]:
                    self.left_s[link] += takes_s
        self.waiting: list[list[tuple[float, int]]] = [[] for _ in self.links]
        self.start = [0.0] * len(self.hop)
        self.events: list[tuple[float, bool, int]] = []  # when a task has arrived, or is out of its links

    def run(self) -> tuple[Floats, float]:
        touched = {self._offer(task) for task, count in enumerate(self.missing) if not count}
        now = end = 0.0
        while True:
            self._begin(touched, now)
            if not self.events:
                return np.array(self.start), end
            now = end = self.events[0][0]
            touched = set()
            while self.events and self.events[0][0] == now:
                _, arrived, task = heapq.heappop(self.events)
                touched |= self._arrived(task) if arrived else self._out(task)

    def _begin(self, touched: set[int], now: float) -> None:
        """Start what can start on hops where something has changed, the most urgent first."""
        for hop in sorted((hop for hop in touched if self.waiting[hop]), key=self._urgency):
            links = self.links[hop]
            if any(self.busy[link] for link in links):
                continue
            _, task = heapq.heappop(self.waiting[hop])
            for link in links:
                self.busy[link] = True
                if self.left_s is not None:
                    self.left_s[link] -= self.takes[task]
            self.start[task] = now
            heapq.heappush(self.events, (now + self.takes[task], False, task))
            heapq.heappush(self.events, (now + self.arrives[task], True, task))

    def _urgency(self, hop: int) -> tuple[float, float, int]:
        """What tells which of several hops goes first; the least does."""
        busiest = 0.0 if self.left_s is None else -max(self.left_s[link] for link in self.links[hop])
        return busiest, *self.waiting[hop][0]

    def _offer(self, task: int) -> int:
        heapq.heappush(self.waiting[self.hop[task]], (self.latest[task], task))
        return self.hop[task]

    def _arrived(self, task: int) -> set[int]:
        touched = set()
        for later in self.after[task]:
            self.missing[later] -= 1
            if not self.missing[later]:
                touched.add(self._offer(later))
        return touched

    def _out(self, task: int) -> set[int]:
        touched: set[int] = set()
        for link in self.links[self.hop[task]]:
            self.busy[link] = False
            touched.update(self.hops_at[link])
        return touched

    def _rest(self) -> list[float]:
        """The longest way from the start of each task to the end of all that depends on it."""
        left = list(self.missing)
        order = [task for task, count in enumerate(left) if not count]
        for task in order:
            for later in self.after[task]:
                left[later] -= 1
                if not left[later]:
                    order.append(later)
        rest = list(self.arrives)
        for task in reversed(order):
            if self.after[task]:
                rest[task] += max(rest[later] for later in self.after[task])
        return rest


def steps_of(tasks: Tasks, hops: Hops, start_s: Floats, num_chunks: int) -> Steps:
    """The steps of tasks that start at these times; those that start together are one step."""
    moments, step = np.unique(start_s, return_inverse=True)
    rows = Transfers(
        step.astype(np.int64),
        hops.src[tasks.hop],
        hops.dst[tasks.hop],
        tasks.chunk,
        np.ones(len(tasks), np.int64),
        tasks.reduce,
        np.zeros(len(tasks), np.bool_),
    )
    return Steps.from_transfers(hops.devices, num_chunks, len(moments), rows.by_step())
