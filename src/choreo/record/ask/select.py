"""Queries without SQL: columns, filters and groups become SQL, which is returned with the answer."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from choreo.errors import UnknownNameError, UsageError
from choreo.record.ask.answer import Answer
from choreo.record.ask.sql import engine
from choreo.record.store.schema import VIEWS

__all__ = ["AGGREGATES", "OPERATORS", "columns", "select", "select_sql"]

AGGREGATES = {"count": "count", "min": "min", "max": "max", "mean": "avg", "median": "median", "sum": "sum"}
OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "like", "in", "is null", "is not null")
MOST_ROWS = 1_000_000
Filter = tuple[str, str, Any] | tuple[str, str]

_AGGREGATE = re.compile(r"(\w+)\((\*|\w+)\)")
# The columns of each view: those of the case, the view's own, and those of provenance.
_CASE = {
    **dict.fromkeys(("collective", "algorithm"), "text"),
    **dict.fromkeys(("ranks", "size_bytes"), "number"),
    "topology": "text",
    "root": "number",
    **dict.fromkeys(("axes", "library", "model", "plan"), "text"),
    **dict.fromkeys(("global_batch", "seq"), "number"),
    **dict.fromkeys(("precision", "software", "device", "options"), "text"),
}
_MACHINE = dict.fromkeys(("machine", "cpu", "accelerator"), "text")
_COLUMNS = {
    "result": {
        **dict.fromkeys(("kind", "source", "case_"), "text"),
        **_CASE,
        **dict.fromkeys(("time_s", "memory_bytes", "sample"), "number"),
        **dict.fromkeys(("datatype", "op"), "text"),
        **dict.fromkeys(("in_place", "wrong", "run"), "number"),
        **dict.fromkeys(("verb", "began", "version", "commit"), "text"),
        "dirty": "number",
        "host": "text",
        **_MACHINE,
    },
    "compared": {
        "case_": "text",
        **_CASE,
        "source": "text",
        **dict.fromkeys(("predicted_s", "measured_s", "ratio", "samples"), "number"),
        **_MACHINE,
    },
}


def columns(view: str = "result") -> dict[str, str]:
    """The columns of a view, and whether each is a "number" or a "text".

    >>> columns()["size_bytes"], columns("compared")["ratio"], "ratio" in columns()
    ('number', 'number', False)
    """
    if view not in VIEWS:
        raise UnknownNameError("view", view, VIEWS)
    return dict(_COLUMNS[view])


def select(
    chosen: Sequence[str],
    *,
    where: Sequence[Filter] = (),
    group_by: Sequence[str] = (),
    order_by: Sequence[str] = (),
    limit: int = 10_000,
    view: str = "result",
    store: str | Path | None = None,
    oltp: bool | None = None,
) -> Answer:
    """Rows of a view of the store, and the SQL that they answer, which can be copied. Nothing is written.

    `chosen` are columns, or figures of a group: "median(time_s)", "count(*)", also min, max, mean and sum. `where` are
    triples like ("ranks", ">=", 8) or ("algorithm", "in", ["ring", "swing"]). `order_by` names columns, with a minus
    for descending order. The view is "result", a row for each prediction and sample, or "compared", predicted beside
    measured. DuckDB answers if it is installed, or SQLite (`oltp`).

    >>> import choreo, tempfile
    >>> from choreo.record import select
    >>> found = choreo.simulate(choreo.build("all_reduce", "ring", 4), "ring(4, 50GB/s, 1us)", "1MiB")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     kept = choreo.record(found, store=folder)
    ...     answer = select(["count(*)"], where=[("ranks", "<", 8)], group_by=["algorithm"], store=folder, oltp=True)
    >>> answer.sql
    'select algorithm, count(*) from result where ranks < 8 group by algorithm limit 10000'
    >>> answer.columns, answer.rows
    (('algorithm', 'count(*)'), [('ring', 1)])
    """
    text = select_sql(chosen, where=where, group_by=group_by, order_by=order_by, limit=limit, view=view)
    if oltp is None:
        oltp = any(importlib.util.find_spec(name) is None for name in ("duckdb", "pyarrow"))
    with engine(store, oltp=oltp) as ask:
        return ask(text, [])


def select_sql(
    chosen: Sequence[str],
    *,
    where: Sequence[Filter] = (),
    group_by: Sequence[str] = (),
    order_by: Sequence[str] = (),
    limit: int = 10_000,
    view: str = "result",
) -> str:
    """The SQL of `select`, which SQLite and DuckDB both understand.

    >>> select_sql(["time_s"], where=[("algorithm", "=", "ring's")], order_by=["-time_s"], limit=5)
    "select time_s from result where algorithm = 'ring''s' order by time_s desc nulls last limit 5"
    """
    known = columns(view)
    if not isinstance(limit, int) or not 0 < limit <= MOST_ROWS:
        raise UsageError(f"limit is a number of rows from 1 to {MOST_ROWS}, not {limit!r:.40}")
    groups = [_column(name, known) for name in group_by]
    shown = groups + [text for name in chosen if (text := _figure(name, known, grouped=bool(group_by))) not in groups]
    if not shown:
        raise UsageError("there is nothing to show; choose a column")
    parts = [f"select {', '.join(shown)} from {view}"]
    if where:
        parts.append("where " + " and ".join(_condition(condition, known) for condition in where))
    if groups:
        parts.append(f"group by {', '.join(groups)}")
    if order_by:
        parts.append("order by " + ", ".join(_order(name, known, grouped=bool(group_by)) for name in order_by))
    return " ".join([*parts, f"limit {limit}"])


def _column(name: str, known: dict[str, str]) -> str:
    if name not in known:
        raise UnknownNameError("column", str(name), known)
    return f'"{name}"' if name == "commit" else name


def _figure(text: str, known: dict[str, str], *, grouped: bool) -> str:
    match = _AGGREGATE.fullmatch(str(text))
    if match is None:
        if grouped and text in known:
            raise UsageError(f"{text} differs within a group; group by it too, or take min({text}) or median({text})")
        return _column(text, known)
    function, inner = match.groups()
    if function not in AGGREGATES:
        raise UnknownNameError("figure", function, AGGREGATES)
    if inner == "*" and function != "count":
        raise UsageError(f"{text} has no meaning; write count(*), or {function}(time_s)")
    if inner != "*" and function in ("mean", "median", "sum") and known.get(inner) == "text":
        raise UsageError(f"{inner} is a text, which has no {function}; count({inner}), min and max work")
    return f"{AGGREGATES[function]}({inner if inner == '*' else _column(inner, known)})"


def _order(text: str, known: dict[str, str], *, grouped: bool) -> str:
    falls = text.startswith("-")
    name = text.removeprefix("-")
    column = _column(name, known) if name in known else _figure(name, known, grouped=grouped)
    return f"{column}{' desc' if falls else ''} nulls last"


def _condition(condition: Filter, known: dict[str, str]) -> str:
    if len(condition) not in (2, 3) or condition[1] not in OPERATORS:
        raise UsageError(
            f"{condition!r:.80} is not a filter; write (column, operator, value) with one of {', '.join(OPERATORS)}"
        )
    column, operator = _column(condition[0], known), condition[1]
    if operator in ("is null", "is not null"):
        return f"{column} {operator}"
    value = condition[2] if len(condition) == 3 else None
    if operator == "in":
        if not isinstance(value, list | tuple) or not value:
            raise UsageError(f"{condition[0]} in needs a list of values, not {value!r:.60}")
        return f"{column} in ({', '.join(_literal(each) for each in value)})"
    return f"{column} {operator} {_literal(value)}"


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int | float) and math.isfinite(value):
        return repr(value)
    if isinstance(value, str) and "\0" not in value:
        return "'" + value.replace("'", "''") + "'"
    raise UsageError(f"a filter compares with a number or a text, not {value!r:.60}")
