"""The answer to a query, and the error for one that cannot be answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from choreo.errors import UsageError, short

__all__ = ["Answer", "Engine", "refused"]

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
    reason = " ".join(str(error).split())
    if "readonly" in reason or "not authorized" in reason or "read-only" in reason:
        return UsageError(f"{short(text)!r} would write, and the store is only read here; write select ...")
    names = "; the tables and views are in docs/reference/store.md, and result has most" if "no such" in reason else ""
    return UsageError(f"{short(text)!r} cannot be answered: {reason}{names}")
