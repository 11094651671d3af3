"""Every result kept: written to SQLite while work runs, loaded into Parquet, and asked in SQL.

`Store` writes. To read without writing SQL: `columns()` names the columns there are, `select(columns, where, group_by)`
gives rows and the SQL that they are the answer to. `sql` answers a text, `ask` a named question. All of them only read.
"""

from choreo.record.ask.answer import Answer
from choreo.record.ask.sql import sql
from choreo.record.case import Case, Constants, Measured, Predicted
from choreo.record.facts import facts_of
from choreo.record.place import store_path
from choreo.record.record import record
from choreo.record.store import Store

__all__ = [
    "Answer",
    "Case",
    "Constants",
    "Measured",
    "Predicted",
    "Store",
    "facts_of",
    "record",
    "sql",
    "store_path",
]
