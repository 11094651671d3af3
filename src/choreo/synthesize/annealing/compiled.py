"""The search of trees, with one root or several, by the compiled loop where there is one."""

from __future__ import annotations

import numpy as np

from choreo.compiled import import_compiled
from choreo.synthesize.annealing.search import (
    AGAIN,
    CHANGES,
    COLD,
    FAST,
    LATE,
    LATENESS,
    LONGER,
    MOVED,
    MOVED_ALL,
    WARM,
    Plan,
    Search,
)
from choreo.synthesize.annealing.ways import Ways
from choreo.synthesize.timeline import CORE
from choreo.topology.graph import Ints

__all__ = ["JOIN", "NEAR", "NEIGHBOURS", "CompiledSearch"]

# How often a new parent is one of the nearest: of so many, and of those as near.
NEAR, NEIGHBOURS = 0.7, 8
# How often a message changes to the way of another one at the same time, so that both may be one.
JOIN = 0.3

NONE = np.zeros(0, np.int64)


class CompiledSearch(Search[Ints]):
    """A shape is the parents of devices, tree by tree, with `roots` that exchange with `partners`, round by round.

    Without roots they are trees from device 0, or to it if they lead `inward`.
    """

    def __init__(
        self, ways: Ways, message_bytes: float, *, inward: bool = False, roots: Ints = NONE, partners: Ints = NONE
    ) -> None:
        super().__init__(ways, message_bytes)
        self.inward = inward
        self.near = ways.nearest(NEIGHBOURS)
        self._exchanges = roots, partners
        self._core = import_compiled(CORE) if self.is_compiled else None
        self.pace = self.pace if self._core is None else FAST

    def run(self, plan: Plan[Ints], plans: int) -> Plan[Ints]:
        """The best of so many plans; the compiled loop tries others than the one in Python."""
        if self._core is None:
            return super().run(plan, plans)
        ways = self.ways
        near = np.cumsum([0, *(len(some) for some in self.near)]), np.concatenate(self.near)
        tuning = (WARM, COLD, *CHANGES[:3], LATE, MOVED, MOVED_ALL, LONGER, LATENESS, NEAR, JOIN, AGAIN)
        columns = (
            plan.shape,
            plan.order,
            self.takes_s,
            ways.offset_of,
            *near,
            ways.offsets,
            ways.lanes,
            ways.latency_s,
            self._payers,
            ways.costs_s,
            np.array(tuning),
            *self._exchanges,
        )
        figures = ways.num_lanes, self.devices, plan.longest_s, self.inward, plans, int(self.rng.integers(1 << 62))
        shape, order, longest_s = self._core.anneal_trees(*map(np.ascontiguousarray, columns), *figures)
        found = np.frombuffer(shape, np.int64), np.frombuffer(order, np.float64)
        return self.planned(*found, longest_s)
