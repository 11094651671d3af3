"""Queries without SQL: rows of the store by columns, filters and groups, with the equivalent SQL."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import msgspec
from msgspec import Meta

from choreo.errors import StoreError
from choreo.record.ask.select import AGGREGATES, OPERATORS, columns, select

__all__ = ["Ask", "Asked", "ask_store", "store_columns"]

MOST_ROWS = 20_000
Name = Annotated[str, Meta(max_length=80)]
Value = Annotated[str, Meta(max_length=200)] | float


class Where(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A filter."""

    column: Name
    operator: Name
    value: Value | Annotated[tuple[Value, ...], Meta(max_length=100)] | None = None


class Ask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Columns or figures of a view, with filters and groups."""

    view: Name = "compared"
    columns: Annotated[tuple[Name, ...], Meta(max_length=40)] = ()
    where: Annotated[tuple[Where, ...], Meta(max_length=20)] = ()
    group_by: Annotated[tuple[Name, ...], Meta(max_length=20)] = ()
    order_by: Annotated[tuple[Name, ...], Meta(max_length=20)] = ()


class Asked(TypedDict):
    """The answer and its SQL; `word` says why there is no answer."""

    sql: str
    columns: list[str]
    rows: list[list[Any]]
    word: str


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No fields."""


def store_columns(_: Nothing) -> dict[str, Any]:
    """The columns of each view.

    >>> store_columns(Nothing())["views"]["compared"]["ratio"]
    'number'
    """
    views = {view: columns(view) for view in ("compared", "result")}
    return {"views": views, "figures": list(AGGREGATES), "operators": list(OPERATORS)}


def ask_store(asked: Ask) -> Asked:
    """The rows that the page's columns, filters and groups choose."""
    where = [(condition.column, condition.operator, condition.value) for condition in asked.where]
    chosen = asked.columns or (("count(*)",) if asked.group_by else tuple(columns(asked.view))[:8])
    clauses: dict[str, Any] = {"where": where, "group_by": asked.group_by, "order_by": asked.order_by}
    try:
        answer = select(chosen, **clauses, limit=MOST_ROWS, view=asked.view)
    except StoreError:  # columns cannot be created in a read-only folder, but its rows can be queried
        answer = select(chosen, **clauses, limit=MOST_ROWS, view=asked.view, oltp=True)
    word = "" if answer.rows else _empty(asked)
    return {
        "sql": answer.sql,
        "columns": list(answer.columns),
        "rows": [list(row) for row in answer.rows],
        "word": word,
    }


def _empty(asked: Ask) -> str:
    """Why there are no rows."""
    if asked.view == "compared" and not asked.where and select(("count(*)",), view="result").rows[0][0]:
        return (
            "the store has no prediction with a measurement beside it: choreo sweep bench, --record on choreo bench or "
            "run, or choreo record import bring measurements; to see what it has, choose every result as rows"
        )
    return "the store has nothing like this; choreo sweep, or --record on a command, fills it"
