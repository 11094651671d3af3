"""Fit the free constants to some tables and predict the others: how the model does on machines it never saw.

Each constant in turn is moved up and down by a shrinking factor while the error falls. The error is the mean over
tables of the mean absolute percentage error from 1 MiB, plus half of that below, plus a small penalty for leaving the
defaults, so that constants that do not affect the tables keep their defaults.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from choreo.errors import UsageError, shown
from choreo.nccl.constants import DEFAULT, Constants
from choreo.nccl.execution.execute import execute
from choreo.nccl.model import Choice, choose
from choreo.units import counted
from choreo.validate.errors import mean, relative_error
from choreo.validate.nccl.measured import MeasuredRow, read_measured
from choreo.validate.nccl.validate import BOUNDARY_BYTES, TableError, predict_row, table_errors

__all__ = ["FREE", "LeftOut", "fit", "leave_one_out"]

# The constants that a fit moves; the others describe machines (racks, networks) that few files have.
FREE = (
    "launch",
    "hop",
    "ll128_hop",
    "simple_hop",
    "link",
    "ll128",
    "ring_fill",
    "ring_wait",
    "nvls_fill",
    "nvls_sync",
    "nvls_head",
    "tree_link",
    "network",
)
_PENALTY = 0.02
_BELOW = 0.5


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One table, predicted by constants that were fitted without it."""

    table: TableError
    constants: Constants


@dataclass(frozen=True, slots=True)
class _Sample:
    """A measured row and NCCL's choice for it, which no free constant changes."""

    row: MeasuredRow
    choice: Choice

    def error(self, constants: Constants) -> float:
        row, choice = self.row, self.choice
        run = execute(
            row.collective, choice.algorithm, choice.protocol, row.size_bytes, row.system, constants=constants
        )
        return abs(relative_error(run.time_s, row.measured_s))


def fit(
    rows: Sequence[MeasuredRow], *, start: Constants = DEFAULT, free: Iterable[str] = FREE, rounds: int = 6
) -> Constants:
    """The constants that fit the rows best."""
    if not rows:
        raise UsageError("there are no measured rows to fit; give a file that holds some")
    names = tuple(free)
    samples = [_Sample(row, choose(row.collective, row.size_bytes, row.system, row.forced)) for row in rows]
    best, least = start, _error(samples, start, start)
    factor = 1.15
    for _ in range(rounds):
        for name in names:
            for change in (factor, 1 / factor):
                moved = True
                while moved:
                    tried = replace(best, **{name: getattr(best, name) * change})
                    error = _error(samples, tried, start)
                    moved = error < least - 1e-9
                    if moved:
                        best, least = tried, error
        factor = math.sqrt(factor)
    return best


def leave_one_out(path: Path | str, *, rounds: int = 5) -> list[LeftOut]:
    """For each table of a file: refit without it, then predict it."""
    rows, _ = read_measured(path)
    tables = list(dict.fromkeys(row.table_id for row in rows))
    if len(tables) < 2:
        raise UsageError(f"{shown(path)} holds {counted(len(tables), 'table')}; leaving one out needs at least two")
    found = []
    for table in tables:
        constants = fit([row for row in rows if row.table_id != table], rounds=rounds)
        own = [predict_row(row, constants) for row in rows if row.table_id == table]
        found.append(LeftOut(table_errors(own)[0], constants))
    return found


def _error(samples: Sequence[_Sample], constants: Constants, start: Constants) -> float:
    errors: dict[tuple[str, bool], list[float]] = {}
    for sample in samples:
        above = sample.row.size_bytes >= BOUNDARY_BYTES
        errors.setdefault((sample.row.table_id, above), []).append(sample.error(constants))
    total = 0.0
    for side, weight in ((True, 1.0), (False, _BELOW)):
        means = [mean(found) for (_, above), found in errors.items() if above is side]
        total += weight * (mean(means) or 0.0)
    moved = sum(math.log(getattr(constants, name) / getattr(start, name)) ** 2 for name in FREE)
    return total + _PENALTY * moved
