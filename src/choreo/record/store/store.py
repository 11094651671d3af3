"""The store of results while work runs: SQLite in WAL mode, one short transaction at a time.

Every transaction begins with BEGIN IMMEDIATE: one that begins as a reader and becomes a writer fails if another process
wrote in between. A run is opened before its work and closed after it, so a crash shows as a run without an end. What
was committed survives when the process is killed.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import socket
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from choreo import __version__
from choreo.errors import StoreError, shown
from choreo.files import is_file
from choreo.record.case import Case, Constants, Measured, Predicted, canonical
from choreo.record.store.connection import (
    PATIENCE_S,
    check_tables,
    check_version,
    explained,
    make_views,
    marks,
    patiently,
)
from choreo.record.store.machine import Machine, this_machine
from choreo.record.store.place import DATABASE, check_local, store_path
from choreo.record.store.provenance import code_hash, commit_here
from choreo.record.store.schema import APPLICATION, MIGRATIONS, VERSION

__all__ = ["Store", "connect_read_only"]

STATUSES = ("done", "failed", "interrupted")


class Store:
    """A folder of results that this process writes to. Use it as a context, or `close` it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Store(folder) as store:
    ...     run = store.begin("price", ["all_reduce"])
    ...     store.add(run, [Predicted(Case("all_reduce", "ring", 8, 1024), "price", 1e-5)])
    ...     store.end(run)
    ...     store.rows("select source, time_s from prediction")
    [('price', 1e-05)]
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = store_path(folder)
        self.file = self.folder / DATABASE
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"{shown(self.folder)} cannot be made: {error.strerror or error}; give another folder with --store DIR"
            ) from None
        check_local(self.folder)
        self._cases: dict[str, int] = {}
        self._constants: dict[str, int] = {}
        with self._explained():
            self._connection = sqlite3.connect(self.file, timeout=PATIENCE_S, isolation_level=None)
        try:
            with self._explained():
                self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def begin(
        self,
        verb: str,
        argv: Sequence[str],
        *,
        machine: Machine | None = None,
        host: str | None = None,
        sweep: str | None = None,
    ) -> int:
        """Open a run and return its id. `machine` and `host` say where it measures, if not here."""
        where = this_machine() if machine is None else machine
        commit, dirty = commit_here()
        columns = (
            verb,
            json.dumps(list(argv)),
            _now(),
            "running",
            __version__,
            commit,
            None if dirty is None else int(dirty),
            where.fingerprint,
            socket.gethostname() if machine is None else host,
            os.getpid(),
            sweep,
        )
        with self._transaction() as connection:
            connection.execute(
                "insert or ignore into machine values (?, ?, ?, ?, ?, ?)",
                (where.fingerprint, where.cpu, where.cores, where.memory_bytes, where.kernel, where.accelerator),
            )
            inserted = connection.execute(
                'insert into run (verb, argv, began, status, version, "commit", dirty, machine, host, pid, sweep) '
                f"values ({', '.join('?' * len(columns))})",
                columns,
            )
        assert inserted.lastrowid is not None
        return inserted.lastrowid

    def end(self, run: int, status: str = "done") -> None:
        """Close a run."""
        assert status in STATUSES
        with self._transaction() as connection:
            connection.execute("update run set ended = ?, status = ? where id = ?", (_now(), status, run))

    def add(
        self,
        run: int,
        facts: Iterable[Predicted | Measured],
        tasks: Iterable[tuple[str, Mapping[str, object]]] = (),
    ) -> None:
        """Store results, all of them or none. An existing prediction by the same code stays.

        `tasks` are those of a sweep that are done: the hash of each, and its row.
        """
        code = code_hash()
        with self._transaction() as connection:
            for fact in facts:
                case = self._case(connection, fact.case)
                if isinstance(fact, Predicted):
                    constants = None if fact.constants is None else self._constant(connection, fact.constants)
                    terms = canonical(fact.terms) if fact.terms else None
                    connection.execute(
                        "insert or ignore into prediction "
                        "(case_, run, source, time_s, memory_bytes, terms, constants, code) values (?,?,?,?,?,?,?,?)",
                        (case, run, fact.source, float(fact.time_s), fact.memory_bytes, terms, constants, code),
                    )
                else:
                    in_place = None if fact.in_place is None else int(fact.in_place)
                    about = (fact.datatype, fact.op, in_place, fact.wrong)
                    connection.executemany(
                        "insert into measurement (case_, run, sample, time_s, datatype, op, in_place, wrong) "
                        "values (?,?,?,?,?,?,?,?)",
                        [(case, run, number, float(time_s), *about) for number, time_s in enumerate(fact.times_s)],
                    )
            connection.executemany(
                "insert into task (hash, code, run, row_) values (?, ?, ?, ?)",
                [(name, code, run, json.dumps(row, default=str)) for name, row in tasks],
            )

    def add_constants(self, constants: Constants) -> None:
        """Keep constants that no prediction uses yet."""
        with self._transaction() as connection:
            self._constant(connection, constants)

    def add_artifact(self, run: int, file: Path) -> None:
        """Keep where a run wrote a file, and the hash of what it wrote."""
        content = file.read_bytes()
        with self._transaction() as connection:
            connection.execute(
                "insert into artifact (run, path, bytes, sha256) values (?, ?, ?, ?)",
                (run, str(file.resolve()), len(content), hashlib.sha256(content).hexdigest()),
            )

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[object, ...]]:
        """The answer of the store to a query."""
        with self._explained():
            return self._connection.execute(sql, tuple(parameters)).fetchall()

    def close(self) -> None:
        """Close the file. Other processes can still use it."""
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _prepare(self) -> None:
        connection = self._connection
        connection.execute("begin")  # a consistent snapshot: another process may be creating the tables
        application, version = marks(connection)
        empty = not connection.execute("select 1 from sqlite_master limit 1").fetchall()
        connection.execute("commit")
        if application != APPLICATION and not empty:
            raise StoreError(
                f"{shown(self.file)} is a database of another program; give another folder with --store DIR"
            )
        check_version(self.file, version)
        patiently(connection, "pragma journal_mode = wal")
        connection.execute("pragma synchronous = normal")  # a kill loses nothing, a power cut the last commits at most
        connection.execute("pragma foreign_keys = on")
        if version < VERSION or application != APPLICATION:
            with self._transaction():
                version = marks(connection)[1]  # another process may have been first
                for number, script in enumerate(MIGRATIONS[version:], version + 1):
                    for statement in filter(str.strip, script.split(";")):
                        connection.execute(statement)
                    connection.execute(f"pragma user_version = {number}")
                connection.execute(f"pragma application_id = {APPLICATION}")
        check_tables(connection, self.file, tuple(MIGRATIONS))
        make_views(connection)

    def _case(self, connection: sqlite3.Connection, case: Case) -> int:
        name = case.hash
        if name not in self._cases:
            values = case.values()
            connection.execute(
                f"insert or ignore into case_ (hash, {', '.join(values)}) values (?{', ?' * len(values)})",
                (name, *values.values()),
            )
            self._cases[name] = connection.execute("select id from case_ where hash = ?", (name,)).fetchone()[0]
        return self._cases[name]

    def _constant(self, connection: sqlite3.Connection, constants: Constants) -> int:
        name = constants.hash
        if name not in self._constants:
            connection.execute(
                "insert or ignore into constants (hash, kind, content) values (?, ?, ?)",
                (name, constants.kind, canonical(constants.content)),
            )
            self._constants[name] = connection.execute("select id from constants where hash = ?", (name,)).fetchone()[0]
        return self._constants[name]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._explained():
            if self._connection.in_transaction:  # Ctrl-C between two lines left it open
                self._roll_back()
            try:
                self._connection.execute("begin immediate")
                yield self._connection
                self._connection.execute("commit")
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        self._cases.clear()  # their ids may have come from this transaction
        self._constants.clear()
        if self._connection.in_transaction:
            self._connection.execute("rollback")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        with explained(self.file):
            yield


def connect_read_only(folder: Path) -> sqlite3.Connection:
    """A read-only connection to the store of a folder, which may itself be read-only.

    It has the views, and attaches no other file.
    """
    file = folder / DATABASE
    if not is_file(file):
        raise StoreError(f"there is no store in {shown(folder)}; record something, with --record or choreo sweep")
    with explained(file):
        try:
            connection = _opened(file, "mode=ro")
        except sqlite3.OperationalError:
            # The log's shared memory cannot be created in a read-only folder, but then there is no writer either.
            if file.with_name(f"{file.name}-wal").exists() and not os.access(folder, os.W_OK):
                raise
            connection = _opened(file, "immutable=1")
        application, version = marks(connection)
        if application != APPLICATION:
            connection.close()
            raise StoreError(f"{shown(file)} is not a store of Choreo; give another folder with --store DIR")
        check_version(file, version)
        if version < VERSION:
            connection.close()
            Store(folder).close()  # brings it to this version
            return connect_read_only(folder)
        try:
            check_tables(connection, file, tuple(MIGRATIONS))
        except BaseException:
            connection.close()
            raise
        make_views(connection)
        connection.execute("pragma query_only = on")
        connection.set_authorizer(_refuse_attach)
    return connection


def _opened(file: Path, how: str) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{file.resolve().as_uri()}?{how}", uri=True, timeout=PATIENCE_S, isolation_level=None)
    try:
        connection.execute("select count(*) from sqlite_master").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse_attach(action: int, *_: object) -> int:
    return sqlite3.SQLITE_DENY if action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH) else sqlite3.SQLITE_OK


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
