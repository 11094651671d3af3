"""The end time of a pipeline with a fixed order, computed level by level.

Which pass waits for which depends on the schedule alone. The level of a pass is the longest chain of passes before it;
passes of one level do not wait for each other and are one NumPy operation. Levels are computed once per schedule and
cached. `simulate` goes pass by pass if a timeline is wanted, or if the order is not fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Levels", "Order", "levels", "time_of_levels"]

Ints: TypeAlias = npt.NDArray[np.int64]
Order: TypeAlias = tuple[tuple[tuple[str, int, int], ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """Passes in order of levels; `before` and `after` say which passes each waits for, the last index for none.

    `kind` is the index of a pass's cost: (0 or 1 for F or B, stage, chunk), flattened.
    """

    starts: tuple[int, ...]
    before: Ints  # the pass before at the same stage
    after: Ints  # the pass whose result it needs
    received: npt.NDArray[np.bool_]  # from another stage
    kind: Ints


def levels(order: Order, chunks: int) -> Levels:
    """The levels of an order of passes."""
    stages, last = len(order), len(order) * chunks - 1
    place: dict[tuple[str, int, int], int] = {}
    rows: list[tuple[int, int, int, bool, int]] = []  # level, before, after, received, kind
    at, previous = [0] * stages, [-1] * stages
    waiting = list(range(stages))
    while waiting:
        left, done = [], len(rows)
        for stage in waiting:
            todo = order[stage]
            while at[stage] < len(todo):
                kind, micro_batch, chunk = todo[at[stage]]
                virtual = chunk * stages + stage
                local = kind == "B" and virtual == last
                source = (
                    ("F", virtual, micro_batch) if local else (kind, virtual + (1 if kind == "B" else -1), micro_batch)
                )
                first = kind == "F" and virtual == 0
                if not first and source not in place:
                    break
                after = -1 if first else place[source]
                before = previous[stage]
                level = 1 + max(rows[before][0] if before >= 0 else -1, rows[after][0] if after >= 0 else -1)
                index = (kind == "B") * stages * chunks + stage * chunks + chunk
                place[kind, virtual, micro_batch] = previous[stage] = len(rows)
                rows.append((level, before, after, not (first or local), index))
                at[stage] += 1
            if at[stage] < len(todo):
                left.append(stage)
        assert not left or len(rows) > done, "a pipeline schedule that waits for itself"
        waiting = left[::-1]
    table = np.array([row[:3] for row in rows], np.int64)
    sorted_rows = np.argsort(table[:, 0], kind="stable")
    moved = np.empty(len(rows) + 1, np.int64)
    moved[sorted_rows] = np.arange(len(rows))
    moved[-1] = len(rows)  # what waits for nothing waits for the last index, which is always 0
    counts = np.bincount(table[:, 0])
    return Levels(
        starts=tuple(int(start) for start in np.concatenate([[0], np.cumsum(counts)])),
        before=moved[table[sorted_rows, 1]],
        after=moved[table[sorted_rows, 2]],
        received=np.array([row[3] for row in rows])[sorted_rows],
        kind=np.array([row[4] for row in rows])[sorted_rows],
    )


def time_of_levels(
    found: Levels,
    forward_s: Sequence[Sequence[float]],
    backward_s: Sequence[Sequence[float]],
    message_s: float,
    blocking_s: float,
) -> float:
    """When the last pass ends."""
    costs = np.array([forward_s, backward_s]).reshape(-1)[found.kind] + blocking_s * found.received
    lag = message_s * found.received
    ends = np.zeros(len(costs) + 1)
    before, after = found.before, found.after
    for start, stop in zip(found.starts[:-1], found.starts[1:], strict=True):
        ready = ends[after[start:stop]]
        ready += lag[start:stop]
        np.maximum(ready, ends[before[start:stop]], out=ready)
        ready += costs[start:stop]
        ends[start:stop] = ready
    return float(ends.max())
