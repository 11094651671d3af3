"""Extract new rows from the store, transform them into columns, and load them into Parquet.

Tables that only grow are loaded from their high-water mark, the last id that was loaded. `run`, whose end is written
later, and `machine` are small and are loaded whole. Every file is written under a temporary name and then renamed; the
list of files (`files.json`) is last. So a reader sees the columns before this load, or after it. Files that are no
longer listed stay for a while, for readers that hold the old list.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from choreo.errors import StoreError, UsageError, shown
from choreo.record.store import connect_read_only
from choreo.record.store.connection import explained
from choreo.record.store.place import COLUMNS, DATABASE
from choreo.record.store.schema import TABLES, VERSION

if TYPE_CHECKING:
    import sqlite3

    import pyarrow
    from pyarrow.parquet import ParquetWriter

__all__ = ["Loaded", "columns_writer", "load", "loaded_files", "need"]

LIST = "files.json"
WHOLE = ("machine", "run")
ROWS = 1 << 17  # rows loaded at a time
MOST_FILES = 32  # per table; more are merged into one
STAYS_S = 600.0  # how long a file is kept after it was replaced


@dataclass(frozen=True, slots=True)
class Loaded:
    """How many rows of each table were new, and how many there are."""

    new: dict[str, int]
    rows: dict[str, int]


def load(folder: Path) -> Loaded:
    """Add what is new in a folder's store to its columns."""
    need("pyarrow")
    connection = connect_read_only(folder)
    place = folder / COLUMNS
    try:
        with _lock(place), _explained(place), explained(folder / DATABASE):
            listed = _read_list(place)
            before = _names(listed)
            new: dict[str, int] = {}
            connection.execute("begin")  # one snapshot of the store for all tables
            for table in TABLES:
                new[table] = _load_table(connection, place, table, listed)
            _write(place / LIST, json.dumps({"version": VERSION, "tables": listed}, indent=1).encode())
            _remove_others(place, _names(listed), before)
            return Loaded(new, {table: sum(entry["rows"] for entry in files) for table, files in listed.items()})
    finally:
        connection.close()


def loaded_files(folder: Path) -> dict[str, list[Path]]:
    """The files of each table, as the last load left them."""
    place = folder / COLUMNS
    return {table: [place / entry["file"] for entry in files] for table, files in _read_list(place).items()}


def columns_writer(file: Path, schema: pyarrow.Schema) -> ParquetWriter:
    """A Parquet writer for a table of columns.

    Times hardly repeat, so they are stored plain, which reads in two thirds of the time. Ids are consecutive, so their
    differences are stored. Everything else repeats: a dictionary and compression make it small.
    """
    import pyarrow as pa
    from pyarrow import parquet

    real = {field.name for field in schema if field.type == pa.float64()}
    counted = {field.name for field in schema if field.name == "id" and field.type == pa.int64()}
    return parquet.ParquetWriter(
        file,
        schema,
        compression={name: "none" if name in real else "zstd" for name in schema.names},
        use_dictionary=[name for name in schema.names if name not in real | counted],
        column_encoding={**dict.fromkeys(real, "PLAIN"), **dict.fromkeys(counted, "DELTA_BINARY_PACKED")},
    )


def need(package: str, instead: str = "ask the rows with --oltp") -> None:
    """Refuse if a package is missing: say what to install, and what to do `instead`, which needs no other package."""
    import importlib.util

    if importlib.util.find_spec(package) is None:
        raise UsageError(
            f"this needs the package {package}; pip install 'choreo[record]', or {instead}, "
            "which needs no other package"
        )


def _load_table(
    connection: sqlite3.Connection, place: Path, table: str, listed: dict[str, list[dict[str, Any]]]
) -> int:
    import pyarrow as pa
    from pyarrow import parquet

    there = [] if table in WHOLE else listed.get(table, [])
    mark = max((entry["through"] for entry in there), default=0)
    schema = _schema(connection, table)
    names = ", ".join(f'"{name}"' for name in schema.names)
    where = "" if table in WHOLE else f" where id > {mark} order by id"
    cursor = connection.execute(f"select {names} from {table}{where}")
    file, rows, through = "", 0, mark
    writer = None
    while batch := cursor.fetchmany(ROWS):
        if writer is None:
            file = _name(table)
            temporary = place / f"{file}.new"
            writer = columns_writer(temporary, schema)
        columns = [
            pa.array(column, type=field.type) for column, field in zip(zip(*batch, strict=True), schema, strict=True)
        ]
        writer.write_table(pa.table(columns, schema=schema))
        rows += len(batch)
        if table not in WHOLE:
            through = batch[-1][0]
    if writer is None:
        if not there:  # an empty table has columns too
            file = _name(table)
            temporary = place / f"{file}.new"
            parquet.write_table(schema.empty_table(), temporary)
            _rename(temporary, place / file)
            listed[table] = [{"file": file, "rows": 0, "through": 0}]
        return 0
    writer.close()
    _rename(temporary, place / file)
    old = listed.get(table, [])
    listed[table] = [*there, {"file": file, "rows": rows, "through": through}]
    if len(listed[table]) > MOST_FILES:
        _join(place, table, listed)
    before = 0 if table not in WHOLE else sum(int(entry["rows"]) for entry in old)
    return rows - before


def _join(place: Path, table: str, listed: dict[str, list[dict[str, Any]]]) -> None:
    """Make one file of many small ones."""
    from pyarrow import parquet

    parts = listed[table]
    file = _name(table)
    temporary = place / f"{file}.new"
    with columns_writer(temporary, parquet.read_schema(place / parts[0]["file"])) as writer:
        for part in parts:
            writer.write_table(parquet.read_table(place / part["file"]))
    _rename(temporary, place / file)
    through, rows = parts[-1]["through"], sum(part["rows"] for part in parts)
    listed[table] = [{"file": file, "rows": rows, "through": through}]


def _schema(connection: sqlite3.Connection, table: str) -> pyarrow.Schema:
    import pyarrow as pa

    kinds = {"INTEGER": pa.int64(), "REAL": pa.float64(), "TEXT": pa.string()}
    described = connection.execute(f"pragma table_info({table})").fetchall()
    return pa.schema([(name, kinds[str(kind).upper()]) for _, name, kind, *_ in described])


def _read_list(place: Path) -> dict[str, list[dict[str, Any]]]:
    file = place / LIST
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        version, tables = document["version"], document["tables"]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError):
        raise StoreError(f"{shown(file)} is damaged; remove the folder {shown(place)}, and load again") from None
    if version > VERSION:
        raise StoreError(
            f"{shown(place)} was loaded by a newer Choreo; upgrade, or give another folder with --store DIR"
        )
    # Columns of older tables are rebuilt.
    return tables if version == VERSION else {}


def _write(file: Path, content: bytes) -> None:
    temporary = file.with_name(f"{file.name}.new")
    with temporary.open("wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    temporary.rename(file)


def _rename(temporary: Path, file: Path) -> None:
    with temporary.open("rb") as out:
        os.fsync(out.fileno())
    temporary.rename(file)


def _name(table: str) -> str:
    """A name that no file has had: readers may still have old files open."""
    return f"{table}-{time.time_ns()}-{os.getpid()}.parquet"


def _names(listed: dict[str, list[dict[str, Any]]]) -> set[str]:
    return {entry["file"] for files in listed.values() for entry in files}


def _remove_others(place: Path, listed: set[str], before: set[str]) -> None:
    """Remove what an interrupted load left behind, and files that were replaced a while ago.

    Files that were listed only `before` this load get a new time stamp: a reader may be about to open them.
    """
    for file in place.glob("*.parquet*"):
        if file.name in listed:
            continue
        if file.name in before:
            os.utime(file)
        elif file.suffix == ".new" or time.time() - file.stat().st_mtime > STAYS_S:
            file.unlink(missing_ok=True)


@contextmanager
def _lock(place: Path) -> Iterator[None]:
    """One load at a time: two would load the same rows."""
    try:
        place.mkdir(exist_ok=True)
        lock = (place / "lock").open("a")
    except OSError as error:
        raise StoreError(f"{shown(place)} cannot be written: {error.strerror}; ask the rows with --oltp") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _explained(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)  # Arrow's own message is longer
        raise StoreError(
            f"{shown(place)} cannot be written: {why}; what was loaded before is still there, and --oltp asks the rows"
        ) from error
