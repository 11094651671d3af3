"""Answers to files: CSV, JSON or Parquet."""

from __future__ import annotations

from pathlib import Path

from choreo.errors import UsageError, shown
from choreo.files import write_text
from choreo.record.ask.answer import Answer
from choreo.record.load import need

__all__ = ["FORMATS", "check_format", "write_answer"]

FORMATS = (".csv", ".json", ".parquet")


def check_format(path: Path) -> None:
    """Refuse a file whose extension is not a known format, or whose format cannot be written here."""
    if path.suffix not in FORMATS:
        raise UsageError(f"{shown(path)}: a table goes to a file that ends in .csv, .json or .parquet")
    if path.suffix == ".parquet":
        need("pyarrow", instead="write a .csv or .json file")


def write_answer(answer: Answer, path: Path) -> None:
    """Write the rows of an answer; an empty cell of a CSV file is a missing value."""
    check_format(path)
    if path.suffix == ".csv":
        import csv
        import io

        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(answer.columns)
        writer.writerows(answer.rows)
        write_text(path, out.getvalue())
    elif path.suffix == ".json":
        import json

        write_text(path, json.dumps(answer.to_dicts(), indent=1) + "\n")
    else:
        import pyarrow as pa
        from pyarrow import parquet

        columns = zip(*answer.rows, strict=True) if answer.rows else [()] * len(answer.columns)
        try:
            parquet.write_table(pa.table(dict(zip(answer.columns, map(list, columns), strict=True))), path)
        except OSError as error:
            raise UsageError(f"{shown(path)}: cannot be written: {error.strerror or error}") from None
