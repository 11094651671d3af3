"""A summary of the store: the number of rows of each table, the last runs, and the number of runs without an end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from choreo.record.ask.sql import engine
from choreo.record.store.place import store_path
from choreo.record.store.schema import TABLES, VERSION

__all__ = ["Summary", "summary"]

RUNS = """
select r.id, r.verb, r.began, r.ended, r.status, r.version, r."commit", r.dirty, r.host, r.argv,
       (select count(*) from prediction p where p.run = r.id) as predictions,
       (select count(*) from measurement s where s.run = r.id) as measurements
from run r order by r.id desc limit ?"""


@dataclass(frozen=True, slots=True)
class Summary:
    """The folder of a store, its tables' version, rows by table, and its last runs."""

    folder: Path
    version: int
    rows: dict[str, int]
    unfinished: int
    runs: list[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "store": str(self.folder),
            "version": self.version,
            "rows": self.rows,
            "unfinished": self.unfinished,
            "runs": self.runs,
        }


def summary(store: str | Path | None = None, *, runs: int = 10) -> Summary:
    """What is in the store, and its last runs."""
    folder = store_path(store)
    with engine(folder, oltp=True) as ask:
        rows = {table: int(ask(f"select count(*) from {table}", []).rows[0][0]) for table in TABLES}
        unfinished = int(ask("select count(*) from run where ended is null", []).rows[0][0])
        return Summary(folder, VERSION, rows, unfinished, ask(RUNS, [runs]).to_dicts())
