"""The answer to a query, and the error for one that cannot be answered."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from choreo.errors import UsageError, short

__all__ = ["Answer", "Engine", "refused"]

TABLES = (
    "select from result, which has every number, or compared, predictions beside measurements; the tables under them "
    "are run, machine, case_, prediction, measurement, constants, task and artifact (docs/reference/store.md)"
)
# Answers a query with its columns and rows.
Engine = Callable[[str, Sequence[Any]], "Answer"]


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of an answer, and the SQL that they answer."""

    sql: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows by column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def refused(text: str, error: Exception) -> Exception:
    """What went wrong with a query, in a sentence."""
    reason = " ".join(re.sub(r"\n+LINE \d+:.*", "", str(error), flags=re.DOTALL).split())  # DuckDB repeats the query
    if "readonly" in reason or "not authorized" in reason or "read-only" in reason:
        return UsageError(f"{short(text)!r} would write, and the store is only read here; write select ...")
    unknown = "no such" in reason or "does not exist" in reason  # SQLite's words, and DuckDB's
    names = f"; {TABLES}" if unknown else ""
    return UsageError(f"{short(text)!r} cannot be answered: {reason}{names}")
