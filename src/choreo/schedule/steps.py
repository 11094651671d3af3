"""The body of a schedule: its steps, made on demand and in blocks, so that a long one is never held whole."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from choreo.checks import whole_number
from choreo.errors import ScheduleError
from choreo.schedule.transfers import IntColumn, StepMoves, Transfers
from choreo.units import counted

__all__ = ["Steps"]

# Rows that are made and checked together: enough to hide NumPy's overhead, few enough for the cache.
ROWS_A_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """A sequence of steps without a collective: `num_steps` steps among `ranks` ranks that move chunks 0 to
    `num_chunks` - 1.

    A switch that reduces is a rank here; a `Schedule` says which ranks are switches.

    `rows(first, last)` makes the transfers of steps first to last - 1, ordered by step. It may be called any number of
    times, in any order, and always gives the same rows.
    """

    ranks: int
    num_chunks: int
    num_steps: int
    rows: Callable[[int, int], Transfers]

    def __post_init__(self) -> None:
        for name, least in (("ranks", 1), ("num_chunks", 1), ("num_steps", 0)):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least))

    @staticmethod
    def from_rule(ranks: int, num_chunks: int, num_steps: int, rule: Callable[[IntColumn], StepMoves]) -> Steps:
        """Steps given by a rule: `rule(k)` is the moves of step k.

        The rule is called with a column vector of step numbers, shape (m, 1), and must treat it as NumPy treats
        a number: no `if` on k. A ring's `move(rank, (rank + 1) % p, (rank - k) % p)` then makes thousands of steps
        in one call.
        """

        def rows(first: int, last: int) -> Transfers:
            step = np.arange(first, last, dtype=np.int64)[:, None]
            try:
                return Transfers.from_moves(step, rule(step)) if last > first else Transfers.none()
            except (ValueError, TypeError) as error:
                if not any(words in str(error) for words in ("truth value", "converted to Python scalars", "0-dimens")):
                    raise
                at = traceback.extract_tb(error.__traceback__)[-1]
                raise ScheduleError(
                    f"line {at.lineno} of {Path(at.filename).name}: a rule gets many step numbers at once, in a "
                    "column; where it must decide by k, use from_function"
                ) from error

        return Steps(ranks, num_chunks, num_steps, rows)

    @staticmethod
    def from_function(ranks: int, num_chunks: int, num_steps: int, step: Callable[[int], StepMoves]) -> Steps:
        """Steps made one at a time: `step(k)` is the moves of step k, and k is a plain number."""

        def rows(first: int, last: int) -> Transfers:
            tables = [Transfers.from_moves(np.full((1, 1), k, np.int64), step(k)) for k in range(first, last)]
            return Transfers.join(tables)

        return Steps(ranks, num_chunks, num_steps, rows)

    @staticmethod
    def from_list(ranks: int, num_chunks: int, steps: Sequence[StepMoves]) -> Steps:
        """Steps given one by one, each a move or a list of moves."""
        lazy = Steps.from_function(ranks, num_chunks, len(steps), steps.__getitem__)
        return Steps.from_transfers(ranks, num_chunks, len(steps), lazy.rows(0, len(steps)))

    @staticmethod
    def from_transfers(ranks: int, num_chunks: int, num_steps: int, transfers: Transfers) -> Steps:
        """Steps held as one table, ordered by step."""
        starts = np.searchsorted(transfers.step, np.arange(num_steps + 1))

        def rows(first: int, last: int) -> Transfers:
            return transfers.take(slice(int(starts[first]), int(starts[last])))

        return Steps(ranks, num_chunks, num_steps, rows)

    def blocks(self, members: str | None = None) -> Iterator[Transfers]:
        """All rows in order, some whole steps at a time, each row checked to be inside the schedule's bounds.

        `members` describes the members in errors, for schedules in which not all are ranks.
        """
        first, at_once = 0, 1
        while first < self.num_steps:
            last = min(first + at_once, self.num_steps)
            block = self.rows(first, last)
            self._check(block, first, last, members)
            yield block
            rows_a_step = max(1, len(block) // (last - first))
            at_once = max(1, min(4 * at_once, ROWS_A_BLOCK // rows_a_step))
            first = last

    def all(self) -> Transfers:
        """Every row at once."""
        return Transfers.join(list(self.blocks()))

    def _check(self, rows: Transfers, first: int, last: int, members: str | None) -> None:
        """Refuse rows that are out of bounds, and steps with no transfer in them."""
        if len(rows) == 0 or rows.step[0] != first or rows.step[-1] != last - 1 or (np.diff(rows.step) > 1).any():
            present = set(np.unique(rows.step).tolist())
            empty = next(k for k in range(first, last) if k not in present)
            raise ScheduleError(f"step {empty} has no transfers; leave it out", field=f"steps[{empty}]")
        for name, limit in (("src", self.ranks), ("dst", self.ranks), ("chunk", self.num_chunks)):
            column = rows[name]
            if column.min() < 0 or column.max() >= limit:
                bad = int(np.flatnonzero((column < 0) | (column >= limit))[0])
                there = counted(limit, "chunk") if name == "chunk" else members or counted(limit, "rank")
                among = f"with {there} it must be 0{f' to {limit - 1}' * (limit > 1)}"
                hint = "; num_chunks= cuts the vector finer" if (name, limit) == ("chunk", 1) else ""
                raise _wrong(rows, bad, name, f"is out of range; {among}{hint}")
        if rows.count.min() < 1 or (rows.count > self.num_chunks - rows.chunk).any():
            bad = int(np.flatnonzero((rows.count < 1) | (rows.count > self.num_chunks - rows.chunk))[0])
            most = self.num_chunks - rows.chunk[bad]
            raise _wrong(rows, bad, "count", f"is out of range; from chunk {rows.chunk[bad]} on it must be 1 to {most}")
        if (rows.src == rows.dst).any():
            bad = int(np.flatnonzero(rows.src == rows.dst)[0])
            raise _wrong(rows, bad, "dst", "is the sender itself; leave that transfer out")


def _wrong(rows: Transfers, bad: int, name: str, problem: str) -> ScheduleError:
    step = int(rows.step[bad])
    place = bad - int(np.searchsorted(rows.step, step))
    return ScheduleError(f"step {step}: {name} {rows[name][bad]} {problem}", field=f"steps[{step}][{place}].{name}")
