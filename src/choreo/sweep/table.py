"""The table of a sweep: columns of one length, which convert to any dataframe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from choreo.errors import UsageError
from choreo.record.ask.answer import Answer
from choreo.record.ask.export import write_answer
from choreo.results import drawn
from choreo.units import counted

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

__all__ = ["Table"]


class Table(dict[str, list[Any]]):
    """Rows of one sweep: a dictionary from column names to lists, in the order of the cases.

    So `pandas.DataFrame(table)` works, and `choreo.show(table)` prints it. Columns that no row has a value in are left
    out. `error` says why a row has no figures.

    >>> table = Table([{"algorithm": "ring", "time_s": 1e-5}, {"algorithm": "swing", "error": "7 ranks"}])
    >>> list(table), table["time_s"], len(table.rows)
    (['algorithm', 'time_s', 'error'], [1e-05, None], 2)
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], time: str = "time_s") -> None:
        names = dict.fromkeys(name for row in rows for name, value in row.items() if value is not None)
        ordered = [name for name in names if name != "error"] + ["error"] * ("error" in names)
        super().__init__({name: [row.get(name) for row in rows] for name in ordered})
        self._count = len(rows)
        self.time = time  # the column that is the verb's answer

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows as dictionaries."""
        return [dict(zip(self, values, strict=True)) for values in zip(*self.values(), strict=True)]

    def __repr__(self) -> str:
        return f"<Table {counted(self._count, 'row')}: {', '.join(self)}>"

    def _repr_html_(self) -> str:
        return drawn(self)

    def to_dict(self) -> dict[str, list[Any]]:
        """The columns as lists."""
        return dict(self)

    def to_pandas(self) -> pandas.DataFrame:
        """The table as a pandas DataFrame."""
        try:
            import pandas as pd
        except ImportError:
            raise _missing("pandas") from None
        return pd.DataFrame(dict(self))

    def to_polars(self) -> polars.DataFrame:
        """The table as a polars DataFrame."""
        try:
            import polars as pl
        except ImportError:
            raise _missing("polars") from None
        return pl.DataFrame(dict(self), infer_schema_length=None)

    def to_arrow(self) -> pyarrow.Table:
        """The table as an Arrow table."""
        try:
            import pyarrow as pa
        except ImportError:
            raise _missing("pyarrow") from None
        return pa.table(dict(self))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Arrow's PyCapsule stream protocol, through pyarrow; newer libraries use this one."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __dataframe__(self, nan_as_null: bool = False, allow_copy: bool = True) -> object:
        """The dataframe interchange protocol, for libraries that support it."""
        from choreo.sweep.interchange import InterchangeFrame

        return InterchangeFrame(self)

    def write(self, file: str | Path) -> None:
        """Write the table to a .csv, .json (a list of rows) or .parquet file."""
        rows = list(zip(*self.values(), strict=True))
        write_answer(Answer("", self.columns, rows), Path(file))


def _missing(package: str) -> UsageError:
    also = " (or choreo[record])" if package == "pyarrow" else ""
    return UsageError(f"this needs the package {package}{also}; pip install {package}")
