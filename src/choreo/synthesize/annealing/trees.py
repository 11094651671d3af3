"""Trees of one device's chunks: which other device each device gets a chunk from; or inward, whom it gives its sum."""

from __future__ import annotations

import numpy as np

from choreo.synthesize.annealing.compiled import JOIN, NEAR, CompiledSearch
from choreo.synthesize.annealing.search import LATE, Messages, Plan
from choreo.synthesize.annealing.ways import Ways
from choreo.topology.graph import Floats, Ints

__all__ = ["Trees"]


class Trees(CompiledSearch):
    """A shape is the parent of each device but 0, for each chunk after another.

    With `inward` device 0 is not the source of the chunks, but where they are summed up.
    """

    def __init__(self, ways: Ways, chunk_bytes: float, chunks: int, *, inward: bool = False) -> None:
        super().__init__(ways, chunk_bytes, inward=inward)
        self.chunks = chunks
        self.child = np.tile(np.arange(1, self.devices), chunks)
        self.first = np.repeat(np.arange(chunks) * (self.devices - 1), self.devices - 1)

    def direct(self) -> Plan[Ints]:
        """Everything goes straight from device 0, or to it, the farthest first."""
        order = np.tile(-self.ways.latency_s, self.chunks)
        return self.planned(np.zeros(len(self.child), np.int64), order, float(self.takes_s.sum()))

    def turned(self, plan: Plan[Ints], ends_s: Floats) -> Plan[Ints]:
        """The trees of a plan the other way round: first goes what ends last there."""
        return self.planned(plan.shape, plan.end_s - ends_s, plan.longest_s)

    def messages(self, shape: Ints) -> Messages:
        """A message waits for that to its own sender, or for all that its sender sums up."""
        ends = (shape, self.child) if self.inward else (self.child, shape)
        way = self.ways.offset_of[ends] - 1
        beyond = np.where(shape > 0, self.first + shape - 1, -1)  # the parent's own message
        depends = beyond >= 0
        if self.inward:
            missing = np.bincount(beyond[depends], minlength=len(shape))
            offsets = np.concatenate(([0], np.cumsum(depends)))
            return Messages(
                way, missing, self.first + shape + self.first // (self.devices - 1), offsets, beyond[depends]
            )
        after = np.argsort(beyond, kind="stable")
        offsets = np.searchsorted(beyond[after], np.arange(len(shape) + 1))
        return Messages(
            way, depends.astype(np.int64), np.full(len(shape), -1), offsets - offsets[0], after[offsets[0] :]
        )

    def reshaped(self, plan: Plan[Ints]) -> tuple[Ints, Floats] | None:
        """Another parent for one device; None if that gets the chunk from it."""
        rng, parent, order = self.rng, plan.shape, plan.order
        one = self._chosen(plan)
        joined = int(rng.integers(len(parent))) if rng.random() < JOIN else -1
        if joined >= 0:
            offset_of = self.ways.offset_of
            ways = offset_of[:, self.child[one]] if self.inward else offset_of[self.child[one]]
            other = int(np.flatnonzero(ways == plan.way[joined] + 1)[0])
        else:
            near = rng.random() < NEAR
            other = int(rng.choice(self.near[self.child[one]]) if near else rng.integers(self.devices))
        if self._descends(parent, other, one):
            return None
        parent = parent.copy()
        parent[one] = other
        if joined >= 0 or rng.random() < 0.5:
            order = order.copy()
            order[one] = plan.start_s[joined] if joined >= 0 else rng.random() * plan.end_s
        return parent, order

    def _chosen(self, plan: Plan[Ints]) -> int:
        """A message: any, or one of those that the last of all has waited for."""
        if self.rng.random() >= LATE:
            return int(self.rng.integers(len(self.child)))
        arrived_s = self.arrived_s(plan)
        chain = [int(arrived_s.argmax())]
        while len(before := self._before(plan.shape, chain[-1])):
            chain.append(int(before[arrived_s[before].argmax()]))
        return chain[int(self.rng.integers(len(chain)))]

    def _before(self, parent: Ints, task: int) -> Ints:
        """The messages that one waits for."""
        first, last = int(self.first[task]), int(self.first[task]) + self.devices - 1
        if self.inward:
            return first + np.flatnonzero(parent[first:last] == self.child[task])
        return np.array([first + parent[task] - 1] if parent[task] else [], np.int64)

    def _descends(self, parent: Ints, device: int, task: int) -> bool:
        """Whether a device is behind another in the tree, or is that device."""
        other, first = int(self.child[task]), int(self.first[task])
        while device:
            if device == other:
                return True
            device = int(parent[first + device - 1])
        return False
