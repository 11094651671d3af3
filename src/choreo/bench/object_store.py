"""The naive all_reduce through Ray's object store, everybody's first attempt, as a library beside the others.

Every rank puts its array into the store; rank 0 gets them, adds them up and puts the sum; everybody gets the sum. Where
each rank is on a node of its own, p-1 arrays cross the network to be reduced and 2 (p-1) in all, one way or the other
through rank 0. A ring sends as many bytes in all, but only 2 (p-1) / p arrays through any rank.
"""

from __future__ import annotations

import importlib
import os
import queue
from collections.abc import Callable
from typing import Any

import numpy as np

from choreo.bench.inputs import Case
from choreo.run.execute.arrays import Array

__all__ = ["MAIL", "VARIABLE", "RayObjectStore"]

VARIABLE = "CHOREO_BENCH_RAY"  # the actors' names are its value and the rank
MAIL: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()  # senders, and references to what they put


class RayObjectStore:
    """All_reduce of sums. `received_bytes` counts what this rank got of other ranks' objects."""

    def __init__(self) -> None:
        self.ray: Any = importlib.import_module("ray")
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.peers = [self.ray.get_actor(f"{os.environ[VARIABLE]}{rank}") for rank in range(self.ranks)]
        self.received_bytes = 0
        self._own: Any = None  # a reference: an object lives as long as somebody has one

    def empty(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
        """An uninitialized array."""
        return np.empty(shape, kind)

    def prepare(self, case: Case, x: Array, y: Array) -> Callable[[], object]:
        """The call to time."""
        if (case.collective, case.op) != ("all_reduce", "sum"):
            raise ValueError(f"only all_reduce of sums is done through the object store, not {case.collective}")
        return lambda: self.all_reduce(x)

    def all_reduce(self, x: Array) -> None:
        """The naive way, in place."""
        self._own = self.ray.put(x)
        if self.rank == 0:
            others = [MAIL.get()[1] for _ in range(self.ranks - 1)]
            total = x.copy()
            for reference in others:
                total += self._get(reference)
            self._own = self.ray.put(total)
            for peer in self.peers[1:]:
                peer.deliver.remote(0, [self._own])
            np.copyto(x, total)
        else:
            self.peers[0].deliver.remote(self.rank, [self._own])
            np.copyto(x, self._get(MAIL.get()[1]))

    def barrier(self) -> None:
        """Return when all ranks have called."""
        before = self.received_bytes
        self.all_reduce(np.zeros(1))
        self.received_bytes = before

    def _get(self, reference: Any) -> Array:
        found: Array = self.ray.get(reference)
        self.received_bytes += found.nbytes
        return found
