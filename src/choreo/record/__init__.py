"""Every result kept: written to SQLite while work runs, loaded into Parquet, and asked in SQL.

`Store` writes. To read without writing SQL: `columns()` names the columns there are, and `select(["median(time_s)"],
where=[("ranks", ">=", 8)], group_by=["algorithm"])` gives an `Answer`: its `sql`, `columns` and `rows`. `sql` answers a
text, `ask` a named question. All of them only read.
"""

from choreo.record.ask.answer import Answer
from choreo.record.ask.questions import ask
from choreo.record.ask.select import columns, select, select_sql
from choreo.record.ask.sql import sql
from choreo.record.case import Case, Constants, Measured, Predicted
from choreo.record.facts import facts_of
from choreo.record.record import record
from choreo.record.store import Store
from choreo.record.store.place import store_path

__all__ = [
    "Answer",
    "Case",
    "Constants",
    "Measured",
    "Predicted",
    "Store",
    "ask",
    "columns",
    "facts_of",
    "record",
    "select",
    "select_sql",
    "sql",
    "store_path",
]
