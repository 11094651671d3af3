"""Common parts of all connections to the store: error messages, the file's version, and the views."""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from choreo.errors import StoreError, shown
from choreo.record.store.schema import VERSION, VIEWS

__all__ = ["PATIENCE_S", "check_tables", "check_version", "explained", "make_views", "marks", "patiently"]

PATIENCE_S = 60.0  # how long to wait for other writers
# (SQLite's message, our message)
TROUBLES = (
    ("SQLITE_FULL", "the disk is full; free some space and try again, what was kept so far is safe"),
    ("SQLITE_CORRUPT", "is damaged; move it away and start a new one; `sqlite3 FILE .recover` saves what can be read"),
    ("SQLITE_NOTADB", "is damaged, or not a store; move it away, or give another folder with --store DIR"),
    ("SQLITE_READONLY", "cannot be written: the folder or file is read-only; give another one with --store DIR"),
    ("SQLITE_CANTOPEN", "cannot be opened: the folder or file may not be read or written; give --store DIR"),
    ("SQLITE_BUSY", f"is locked by another process for more than {PATIENCE_S:.0f} s; try again, or end that one"),
    ("SQLITE_IOERR", "cannot be read or written: the disk reports an error, or is full"),
)


class _Median:
    """The median, which DuckDB has and SQLite lacks."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def step(self, value: Any, /) -> None:
        if value is not None:
            self.values.append(value)

    def finalize(self) -> Any:
        return statistics.median(self.values) if self.values else None


def make_views(connection: sqlite3.Connection) -> None:
    """Create the views and `median` for this connection: they are not stored in the file."""
    connection.create_aggregate("median", 1, _Median)
    for name, text in VIEWS.items():
        connection.execute(f"create temp view if not exists {name} as {text}")


def marks(connection: sqlite3.Connection) -> tuple[int, int]:
    """The program that a file belongs to, and the version of its tables."""
    application, version = (
        int(connection.execute(f"pragma {name}").fetchone()[0]) for name in ("application_id", "user_version")
    )
    return application, version


def check_version(file: Path, version: int) -> None:
    """Refuse tables of a version that only a newer Choreo knows."""
    if version > VERSION:
        raise StoreError(
            f"{shown(file)} was written by a newer Choreo: its tables are of version {version}, and this one knows "
            f"{VERSION}; upgrade with pip install -U choreo, or give another folder with --store DIR"
        )


def patiently(connection: sqlite3.Connection, statement: str) -> None:
    """Retry a statement that SQLite's busy timeout does not cover until it succeeds."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            connection.execute(statement).fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return


def check_tables(connection: sqlite3.Connection, file: Path, scripts: tuple[str, ...]) -> None:
    """Refuse a store whose tables are not those that these scripts make."""
    for table, columns in _tables_of(scripts).items():
        is_table = connection.execute("select 1 from sqlite_master where type = 'table' and name = ?", (table,))
        if not is_table.fetchall() or _columns(connection, table) != columns:
            raise StoreError(
                f"{shown(file)} is damaged: its table {table} is not as Choreo made it; move it away, or give another "
                "folder with --store DIR"
            )


@lru_cache(maxsize=4)
def _tables_of(scripts: tuple[str, ...]) -> dict[str, list[tuple[str, str]]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(";".join(scripts))
        names = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        return {name: _columns(connection, name) for name in names}


def _columns(connection: sqlite3.Connection, table: str) -> list[tuple[str, str]]:
    return [(name, kind) for _, name, kind, *_ in connection.execute(f"pragma table_info({table})")]


@contextmanager
def explained(file: Path, *, reading: bool = False) -> Iterator[None]:
    """SQLite's errors as sentences. While `reading`, an attempt to write is the query's mistake."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", None) or ""
        sentence = next((text for start, text in TROUBLES if name.startswith(start)), None)
        if reading and (sentence is None or name.startswith("SQLITE_READONLY")):
            raise
        if sentence is None:  # our own statements have no mistakes
            sentence = f"is damaged, or another program has changed it ({error}); move it away, or give --store DIR"
        raise StoreError(f"{shown(file)}{':' if sentence.startswith('the ') else ''} {sentence}") from error
