"""What a verb returns: plain data, with the same names in Python, in JSON and in a table."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, TypeVar, dataclass_transform, overload

import numpy as np

__all__ = ["Result", "drawn", "plain", "plain_size", "result"]

T = TypeVar("T", bound=type)


class Result(Mapping[str, Any]):
    """A result: its attributes, and a read-only mapping of those that are plain data.

    `columns` names these attributes. They are the keys of `to_dict()` and of `--json`, and the columns of a table:
    `dict(result)` works, and so does `pandas.DataFrame(results)` for a list of results.
    """

    columns: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """The result as values that JSON knows."""
        return {name: self._plain(name) for name in self.columns}

    def _plain(self, name: str) -> Any:
        value = plain(getattr(self, name))
        return plain_size(value) if name == "size_bytes" else value

    def summary(self) -> str:
        """The result in one line."""
        return ", ".join(f"{name}={value!r}" for name, value in self.to_dict().items())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.summary()}>"

    def _repr_html_(self) -> str:
        return drawn(self)

    def __getitem__(self, name: str) -> Any:
        return self.to_dict()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def __len__(self) -> int:
        return len(self.to_dict())

    # Two results are equal when all their attributes are, not only the plain ones.
    __eq__ = object.__eq__
    __hash__ = object.__hash__


def drawn(thing: object) -> str:
    """A noun or a result as HTML, for a notebook that asks the object itself to draw.

    This is the one place that imports upwards.
    """
    html: str = importlib.import_module("choreo.show").notebook_html(thing)
    return html


@overload
def result(cls: T, /) -> T: ...
@overload
def result(*, eq: bool = True) -> Callable[[T], T]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def result(cls: T | None = None, /, *, eq: bool = True) -> T | Callable[[T], T]:
    """Make a class of results: a frozen dataclass that tables read by its `columns`.

    pandas before 3.1 reads every dataclass by its fields, whatever else it is, so a result does not say that it is one.
    """

    def made(one: T) -> T:
        one = dataclass(frozen=True, repr=False, eq=eq)(one)  # type: ignore[assignment]
        del one.__dataclass_fields__  # type: ignore[attr-defined]
        return one

    return made if cls is None else made(cls)


def plain(value: Any) -> Any:
    """A value as JSON knows it: numbers, texts, lists and dicts.

    >>> plain({"fraction": Fraction(7, 6), "ranks": np.arange(3)})
    {'fraction': '7/6', 'ranks': [0, 1, 2]}
    """
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Fraction):
        return str(value)
    return value


def plain_size(size_bytes: float) -> int | float:
    """A size as an int if it is a whole number: sizes are floats where they are computed with.

    >>> plain_size(1024.0)
    1024
    """
    return int(size_bytes) if size_bytes == int(size_bytes) else size_bytes
