"""Read-only SQL on the store: on Parquet by DuckDB, or on the rows by SQLite (`oltp`)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from choreo.errors import UsageError, short
from choreo.record.ask.answer import Answer, Engine, refused
from choreo.record.store import connect_read_only
from choreo.record.store.connection import explained
from choreo.record.store.place import DATABASE, store_path

__all__ = ["engine", "sql"]


def sql(text: str, parameters: Sequence[Any] = (), *, store: str | Path | None = None, oltp: bool = False) -> Answer:
    """Answer one query. It may read the tables and the views `result` and `compared`, and cannot write.

    DuckDB reads the columns, after new rows of the store are added to them. `oltp` asks SQLite instead, which needs no
    other package.

    >>> import choreo, tempfile
    >>> from choreo.record import sql
    >>> found = choreo.simulate(choreo.build("all_reduce", "ring", 4), "ring(4, 50GB/s, 1us)", "1MiB")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     kept = choreo.record(found, store=folder)
    ...     sql("select source, algorithm, ranks from result", store=folder, oltp=True).rows
    [('simulate', 'ring', 4)]
    """
    with engine(store, oltp=oltp) as ask:
        return ask(text, parameters)


@contextmanager
def engine(store: str | Path | None = None, *, oltp: bool = False) -> Iterator[Engine]:
    """An engine that answers several queries."""
    folder = store_path(store)
    if oltp:
        with _sqlite(folder) as found:
            yield found
    else:
        from choreo.record.ask.columns import duckdb_engine

        with duckdb_engine(folder) as found:
            yield found


@contextmanager
def _sqlite(folder: Path) -> Iterator[Engine]:
    connection = connect_read_only(folder)

    def ask(text: str, parameters: Sequence[Any] = ()) -> Answer:
        try:
            with explained(folder / DATABASE, reading=True):
                cursor = connection.execute(text, tuple(parameters))
                rows = cursor.fetchall()
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise refused(text, error) from None
        if cursor.description is None:
            raise UsageError(f"{short(text)!r} asks nothing; write select ..., the store is only read here")
        return Answer(text, tuple(column[0] for column in cursor.description), rows)

    try:
        yield ask
    finally:
        connection.close()
