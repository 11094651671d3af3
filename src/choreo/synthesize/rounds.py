"""The fewest rounds that deliver all chunks in a given number of steps: a mixed-integer program.

A step lasts some rounds. In a round a link carries as many chunks as it is faster than the slowest link. A variable
says whether a chunk takes a hop in a step. A member that needs a chunk receives it once, a member that forwards it
received it in an earlier step, and in a step a link carries no more than its rounds allow. The solver finds the fewest
rounds over all steps, and proves that there are no fewer.

Source: Z. Cai et al., "Synthesizing optimal collective algorithms", PPoPP 2021.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix

from choreo.synthesize.network import Hops
from choreo.topology.graph import Bools, Floats, Ints

__all__ = ["Demand", "Found", "least_rounds"]


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """The hops, the distances between members in hops, and for every block who has it and who needs it."""

    hops: Hops
    away: Floats
    owner: Ints
    needs: Bools

    def fewest_steps(self) -> int:
        """The number of hops that the farthest data must travel."""
        return int(self.away[self.owner][self.needs].max(initial=0))

    def cut(self, chunks: int) -> Demand:
        """The same demand with every block cut into this many chunks."""
        return Demand(self.hops, self.away, np.repeat(self.owner, chunks), np.repeat(self.needs, chunks, axis=0))

    def possible(self, steps: int) -> Bools:
        """Which (block, hop, step) are possible: the source may have it by then, and someone downstream needs it."""
        step = np.arange(steps)
        may_have = self.away[self.owner][:, self.hops.src, None] <= step
        onwards = np.where(self.needs[:, None, :], self.away[self.hops.dst], np.inf).min(axis=2)
        back = self.hops.dst == self.owner[:, None]
        found: Bools = may_have & (step + 1 + onwards[:, :, None] <= steps) & ~back[:, :, None]
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """The fewest rounds, and which block takes which hop in which step."""

    rounds: int
    block: Ints
    hop: Ints
    step: Ints


@dataclass(slots=True, eq=False)
class _Rows:
    """The rows of a program: entries, and the bounds of each row."""

    count: int = 0
    row: list[Ints] = field(default_factory=list)
    column: list[Ints] = field(default_factory=list)
    value: list[Floats] = field(default_factory=list)
    low: list[Floats] = field(default_factory=list)
    high: list[Floats] = field(default_factory=list)

    def add(self, row: Ints, column: Ints, value: Floats, low: Floats, high: Floats) -> None:
        """Append rows, numbered from those already there."""
        self.row.append(row + self.count)
        self.column.append(column)
        self.value.append(value)
        self.low.append(low)
        self.high.append(high)
        self.count += len(low)

    def constraint(self, columns: int) -> LinearConstraint:
        """All rows as one constraint."""
        entries = np.concatenate(self.value), (np.concatenate(self.row), np.concatenate(self.column))
        matrix = coo_matrix(entries, shape=(self.count, columns)).tocsr()
        return LinearConstraint(matrix, np.concatenate(self.low), np.concatenate(self.high))


def least_rounds(demand: Demand, steps: int, most_seconds: float) -> Found | None:
    """The fewest rounds in this many steps; None if the solver does not finish in time."""
    block, hop, step = np.nonzero(demand.possible(steps))
    members, hops = demand.hops.members, demand.hops
    place = block * members + hops.dst[hop]
    rows = _Rows()
    everything = np.ones(demand.needs.size)
    rows.add(place, np.arange(len(block)), np.ones(len(block)), demand.needs.ravel().astype(np.float64), everything)
    _sent_on(rows, block * members + hops.src[hop], place, step, block * members + demand.owner[block])
    _carried(rows, hops, hop, step, steps)
    size = len(block) + steps
    is_rounds = (np.arange(size) >= len(block)).astype(np.float64)
    found = milp(
        is_rounds,
        constraints=rows.constraint(size),
        integrality=np.ones(size, np.int64),
        bounds=Bounds(is_rounds, np.where(is_rounds > 0, len(demand.owner), 1)),
        options={"time_limit": most_seconds, "mip_rel_gap": 0.0},
    )
    if found.status != 0:
        return None
    taken = np.flatnonzero(found.x[: len(block)] > 0.5)
    start = block[taken] * members + hops.src[hop[taken]]
    taken = taken[_useful(start, place[taken], step[taken], demand.needs.ravel())]
    return Found(round(found.fun), block[taken], hop[taken], step[taken])


def _sent_on(rows: _Rows, start: Ints, end: Ints, step: Ints, owned: Ints) -> None:
    """A block that leaves a member other than its origin arrived there in an earlier step (a place: block, member)."""
    sent_on = np.flatnonzero(start != owned)
    order = np.argsort(end, kind="stable")
    low, high = (np.searchsorted(end[order], start[sent_on], side=side) for side in ("left", "right"))
    row, column, value = [np.arange(len(sent_on))], [sent_on], [np.ones(len(sent_on))]
    for number, (first, last) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        came = order[first:last]
        came = came[step[came] < step[sent_on[number]]]
        row.append(np.full(len(came), number))
        column.append(came)
        value.append(np.full(len(came), -1.0))
    entries = np.concatenate(row), np.concatenate(column), np.concatenate(value)
    rows.add(*entries, np.full(len(sent_on), -np.inf), np.zeros(len(sent_on)))


def _carried(rows: _Rows, hops: Hops, hop: Ints, step: Ints, steps: int) -> None:
    """In a step a link carries no more than its rounds allow; those are the last variables."""
    load = hops.load.tocsc()[:, hop].tocoo()
    speed = hops.capacity / hops.capacity.min()
    each = np.arange(len(speed) * steps)
    rows.add(
        np.concatenate((load.row * steps + step[load.col], each)),
        np.concatenate((load.col, len(hop) + each % steps)),
        np.concatenate((load.data, -np.repeat(speed, steps))),
        np.full(len(each), -np.inf),
        np.zeros(len(each)),
    )


def _useful(start: Ints, end: Ints, step: Ints, needed: Bools) -> Ints:
    """Every block that arrives is needed there, or is forwarded from there."""
    of_use, kept = needed.copy(), []
    for one in np.argsort(-step, kind="stable").tolist():
        if of_use[end[one]]:
            of_use[start[one]] = True
            kept.append(one)
    return np.array(sorted(kept), np.int64)
