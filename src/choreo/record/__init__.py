"""Every result stored: written to SQLite while work runs, loaded into Parquet, and queried in SQL.

`Store` writes. To read without SQL, `columns()` lists the columns, and `select` gives an `Answer` with its `sql`,
`columns` and `rows`: `select(["median(time_s)"], where=[("ranks", ">=", 8)], group_by=["algorithm"])`. `sql` answers a
query, and `ask` a named question. All of these only read.
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
