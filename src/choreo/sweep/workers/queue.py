"""The queue of cases: cases that share a network or a schedule go to the same worker if possible."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable

from choreo.sweep.tasks import Task

__all__ = ["Numbered", "Queue"]

Numbered = tuple[int, Task]


class Queue:
    """Waiting cases, grouped by the last task that they need.

    >>> ring, mesh = (Task("schedule", (("algorithm", name),)) for name in ("ring", "mesh"))
    >>> needs = enumerate([ring, mesh, ring, mesh])
    >>> queue = Queue((number, Task("price", (("size", number),), (need,))) for number, need in needs)
    >>> [number for number, _ in queue.take("a", 2)], [number for number, _ in queue.take("b", 2)]
    ([0, 2], [1, 3])
    """

    def __init__(self, cases: Iterable[Numbered]) -> None:
        self._groups: dict[Hashable, deque[Numbered]] = {}
        self._at: dict[Hashable, Hashable] = {}  # the current group of each worker
        self._waiting = 0
        for number, case in cases:
            self.put(number, case)

    def __len__(self) -> int:
        return self._waiting

    def put(self, number: int, case: Task) -> None:
        """Queue a case."""
        self._groups.setdefault(case.needs[-1:], deque()).append((number, case))
        self._waiting += 1

    def take(self, worker: Hashable, most: int, share: int = 1) -> list[Numbered]:
        """Up to `most` cases of one group for a worker; near the end fewer, so that `share` workers all get some."""
        if self._at.get(worker) not in self._groups:
            others = {at for other, at in self._at.items() if other != worker}
            free = [group for group in self._groups if group not in others]
            # The first group that no worker has; otherwise a part of the longest.
            self._at[worker] = (
                free[0] if free else max(self._groups, key=lambda group: len(self._groups[group]), default=None)
            )
        group = self._groups.get(self._at[worker])
        if group is None:
            return []
        most = max(1, min(most, math.ceil(self._waiting / (2 * share)))) if share > 1 else most
        taken = [group.popleft() for _ in range(min(most, len(group)))]
        if not group:
            del self._groups[self._at[worker]]
        self._waiting -= len(taken)
        return taken
