"""The dataframe interchange protocol for a table, over NumPy and nothing else.

Numbers are float64 or int64, truth values bool, and all else is text, as UTF-8 with 64-bit offsets. A mask of bytes
says where there is no value: 1 is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["InterchangeFrame"]

INT, UINT, FLOAT, BOOL, STRING = 0, 1, 2, 20, 21  # the protocol's DtypeKind
NON_NULLABLE, BYTE_MASK = 0, 4  # its ColumnNullType
CPU = 1  # of DLPack's devices


class _Buffer:
    """One NumPy array in memory."""

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self._values = values

    @property
    def bufsize(self) -> int:
        return self._values.nbytes

    @property
    def ptr(self) -> int:
        return self._values.ctypes.data

    def __dlpack__(self) -> Any:
        return self._values.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, None]:
        return CPU, None


class _Column:
    """A column: its values, and where they are missing."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values
        self._missing = np.array([value is None for value in values], np.uint8)
        there = [value for value in values if value is not None]
        if there and all(isinstance(value, bool) for value in there):
            self._kind, self._data = BOOL, np.array([bool(value) for value in values], np.bool_)
        elif there and all(isinstance(value, int) and not isinstance(value, bool) for value in there):
            self._kind, self._data = INT, np.array([value or 0 for value in values], np.int64)
        elif there and all(isinstance(value, int | float) and not isinstance(value, bool) for value in there):
            self._kind = FLOAT
            self._data = np.array([np.nan if value is None else value for value in values], np.float64)
        else:
            texts = [b"" if value is None else str(value).encode() for value in values]
            self._kind, self._data = STRING, np.frombuffer(b"".join(texts) or b"\0", np.uint8)
            self._offsets = np.concatenate(([0], np.cumsum([len(text) for text in texts]))).astype(np.int64)

    def size(self) -> int:
        return len(self._values)

    @property
    def offset(self) -> int:
        return 0

    @property
    def dtype(self) -> tuple[int, int, str, str]:
        width, letter = {INT: (64, "l"), FLOAT: (64, "g"), BOOL: (8, "b"), STRING: (8, "U")}[self._kind]
        return self._kind, width, letter, "="

    @property
    def describe_categorical(self) -> Any:
        raise TypeError("this column is not categorical")

    @property
    def describe_null(self) -> tuple[int, int | None]:
        return (BYTE_MASK, 1) if self.null_count else (NON_NULLABLE, None)

    @property
    def null_count(self) -> int:
        return int(self._missing.sum())

    @property
    def metadata(self) -> dict[str, Any]:
        return {}

    def num_chunks(self) -> int:
        return 1

    def get_chunks(self, n_chunks: int | None = None) -> Iterator[_Column]:
        count = n_chunks or 1
        step = -(-max(1, self.size()) // count)
        return (_Column(self._values[at : at + step]) for at in range(0, step * count, step))

    def get_buffers(self) -> dict[str, Any]:
        data = (UINT, 8, "C", "=") if self._kind == STRING else self.dtype
        text = (_Buffer(self._offsets), (INT, 64, "l", "=")) if self._kind == STRING else None
        mask = (_Buffer(self._missing), (BOOL, 8, "b", "=")) if self.null_count else None
        return {"data": (_Buffer(self._data), data), "validity": mask, "offsets": text}


class InterchangeFrame:
    """What `__dataframe__` returns, for libraries to read."""

    version = 0

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self._columns = {name: [*values] for name, values in columns.items()}

    def __dataframe__(self, nan_as_null: bool = False, allow_copy: bool = True) -> InterchangeFrame:
        """The same: it is one already."""
        return self

    @property
    def metadata(self) -> dict[str, Any]:
        """There is none."""
        return {}

    def num_columns(self) -> int:
        """How many columns there are."""
        return len(self._columns)

    def num_rows(self) -> int:
        """How many rows there are."""
        return len(next(iter(self._columns.values()), ()))

    def num_chunks(self) -> int:
        """All rows are one chunk."""
        return 1

    def column_names(self) -> Iterable[str]:
        """The names of the columns."""
        return list(self._columns)

    def get_column(self, i: int) -> _Column:
        """A column by place."""
        return _Column(list(self._columns.values())[i])

    def get_column_by_name(self, name: str) -> _Column:
        """A column by name."""
        return _Column(self._columns[name])

    def get_columns(self) -> Iterable[_Column]:
        """Every column."""
        return [_Column(values) for values in self._columns.values()]

    def select_columns(self, indices: Sequence[int]) -> InterchangeFrame:
        """Some columns by place."""
        names = list(self._columns)
        return InterchangeFrame({names[at]: self._columns[names[at]] for at in indices})

    def select_columns_by_name(self, names: Sequence[str]) -> InterchangeFrame:
        """Some columns by name."""
        return InterchangeFrame({name: self._columns[name] for name in names})

    def get_chunks(self, n_chunks: int | None = None) -> Iterable[InterchangeFrame]:
        """The rows in as many parts as asked for."""
        count = n_chunks or 1
        step = -(-max(1, self.num_rows()) // count)
        for at in range(0, step * count, step):
            yield InterchangeFrame({name: values[at : at + step] for name, values in self._columns.items()})
