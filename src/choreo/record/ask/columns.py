"""DuckDB on the columns of a store: views over Parquet, in an in-memory database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from choreo.errors import StoreError, UsageError, short, shown
from choreo.record.ask.answer import Answer, Engine, refused
from choreo.record.load import load, loaded_files, need
from choreo.record.store.place import COLUMNS
from choreo.record.store.schema import VIEWS

__all__ = ["duckdb_engine"]


@contextmanager
def duckdb_engine(folder: Path, *, fresh: bool = True) -> Iterator[Engine]:
    """An engine that answers queries from the columns; `fresh` first loads new rows."""
    need("duckdb")
    import duckdb

    if fresh:
        load(folder)
    files = loaded_files(folder)
    connection = duckdb.connect(":memory:")
    for table, parts in files.items():
        names = ", ".join(f"'{_quoted(part)}'" for part in parts)
        try:
            connection.execute(f"create view {table} as select * from read_parquet([{names}])")
        except duckdb.Error as error:
            connection.close()
            raise _damaged(folder, table, error) from None
    for view, text in VIEWS.items():
        connection.execute(f"create view {view} as {text}")
    # A query reads these files, and no others.
    allowed = ", ".join(f"'{_quoted(part)}'" for parts in files.values() for part in parts)
    connection.execute(f"set allowed_paths = [{allowed}]")
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")

    def ask(text: str, parameters: Sequence[Any] = ()) -> Answer:
        try:
            statements = connection.extract_statements(text)
            kinds = {str(statement.type).rpartition(".")[2] for statement in statements}
            if len(statements) != 1 or not kinds <= {"SELECT", "SELECT_STATEMENT", "EXPLAIN", "EXPLAIN_STATEMENT"}:
                raise UsageError(f"{short(text)!r} is not a single select; queries only read the store")
            cursor = connection.execute(text, list(parameters))
            rows = cursor.fetchall()
        except (duckdb.IOException, duckdb.InternalException, duckdb.SerializationException) as error:
            raise _damaged(folder, "a table", error) from None
        except duckdb.Error as error:
            raise refused(text, error) from None
        return Answer(text, tuple(column[0] for column in cursor.description or ()), rows)

    try:
        yield ask
    finally:
        connection.close()


def _damaged(folder: Path, table: str, error: Exception) -> StoreError:
    reason = str(error).strip().splitlines()[0]
    place = shown(folder / COLUMNS)
    return StoreError(
        f"the columns of {table} in {place} cannot be read: {reason}; remove that folder and ask again, which rebuilds "
        "it from the rows, or query those with --oltp"
    )


def _quoted(path: Path) -> str:
    return str(path.resolve()).replace("'", "''")
