"""Predicted against measured times of NCCL: the error of each row, and of each table below and from 1 MiB.

Fixed latency differs by 2x between near-identical machines. So the error below 1 MiB is also given after one offset per
table: the constant time, added to every prediction, that minimises the error. It shows whether the shape is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from choreo.nccl.constants import DEFAULT, Constants
from choreo.nccl.model import predict
from choreo.results import Result, result
from choreo.units import counted
from choreo.validate.errors import grouped, mean, relative_error
from choreo.validate.nccl.measured import MeasuredRow, read_measured
from choreo.validate.rows import Skipped

__all__ = ["BOUNDARY_BYTES", "PredictedRow", "TableError", "Validation", "predict_row", "table_errors", "validate"]

# A row of exactly 1 MiB counts as above.
BOUNDARY_BYTES = 1 << 20


@result
class PredictedRow(Result):
    """A measured row and its prediction."""

    columns: ClassVar[tuple[str, ...]] = (
        "table_id",
        "collective",
        "n_gpus",
        "size_bytes",
        "measured_s",
        "predicted_s",
        "topology",
        "algorithm",
        "protocol",
    )

    table_id: str
    collective: str
    n_gpus: int
    size_bytes: int
    measured_s: float
    predicted_s: float
    topology: str
    algorithm: str
    protocol: str
    channels: int

    @property
    def error(self) -> float:
        """Relative: 0.1 is ten per cent too slow."""
        return relative_error(self.predicted_s, self.measured_s)


@result
class TableError(Result):
    """Mean absolute relative errors of one table; None if it has no such rows."""

    columns: ClassVar[tuple[str, ...]] = (
        "table_id",
        "rows",
        "mape_below_1MiB",
        "mape_below_1MiB_after_offset",
        "offset_s",
        "mape_from_1MiB",
    )

    table_id: str
    rows: int
    mape_below_1MiB: float | None  # noqa: N815 - MiB is spelled so
    mape_below_1MiB_after_offset: float | None  # noqa: N815
    offset_s: float
    mape_from_1MiB: float | None  # noqa: N815


@result
class Validation(Result):
    """A file, predicted."""

    rows: tuple[PredictedRow, ...]
    skipped: tuple[Skipped, ...]
    tables: tuple[TableError, ...]

    def to_dict(self) -> dict[str, Any]:
        """Every row, and what was skipped and why."""
        return {
            "rows": [row.to_dict() for row in self.rows],
            "skipped": [{"table_id": row.row, "reason": row.reason} for row in self.skipped],
        }

    def summary(self) -> str:
        """How many rows there were."""
        return f"{counted(len(self.rows), 'row')} predicted, {len(self.skipped)} skipped"


def validate(path: Path | str, *, constants: Constants = DEFAULT) -> Validation:
    """Predict every row of a file with the columns of nccl_measured.csv; `choreo.validate` has an example."""
    measured, skipped = read_measured(path)
    rows = [predict_row(row, constants) for row in measured]
    return Validation(tuple(rows), tuple(skipped), tuple(table_errors(rows)))


def predict_row(row: MeasuredRow, constants: Constants = DEFAULT) -> PredictedRow:
    """Predict one row."""
    found = predict(row.collective, row.size_bytes, row.system, row.forced, constants=constants)
    return PredictedRow(
        table_id=row.table_id,
        collective=row.collective,
        n_gpus=row.system.ranks,
        size_bytes=row.size_bytes,
        measured_s=row.measured_s,
        predicted_s=found.time_s,
        topology=row.system.topology,
        algorithm=found.algorithm,
        protocol=found.protocol,
        channels=found.channels,
    )


def table_errors(rows: Sequence[PredictedRow]) -> list[TableError]:
    """The errors of each table, in the order they first appear."""
    found = []
    for table_id, members in grouped(rows, lambda row: row.table_id).items():
        below = [row for row in members if row.size_bytes < BOUNDARY_BYTES]
        above = [abs(row.error) for row in members if row.size_bytes >= BOUNDARY_BYTES]
        offset_s = _offset(below)
        after = [abs(relative_error(row.predicted_s + offset_s, row.measured_s)) for row in below]
        found.append(
            TableError(
                table_id,
                len(members),
                mean([abs(row.error) for row in below]),
                mean(after),
                offset_s,
                mean(above),
            )
        )
    return found


def _offset(rows: Sequence[PredictedRow]) -> float:
    """The constant that leaves the least mean absolute relative error: the residuals' median, weighted by 1 / time."""
    residuals = sorted((row.measured_s - row.predicted_s, 1 / row.measured_s) for row in rows)
    half, passed = sum(weight for _, weight in residuals) / 2, 0.0
    for residual, weight in residuals:
        passed += weight
        if passed >= half:
            return residual
    return 0.0
