"""The stored form of a result: its case, its predictions, and every measured sample.

A case says what runs where, not how its time was found. So different predictions and measurements of the same thing
share one case.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

__all__ = ["SOURCES", "Case", "Constants", "Measured", "Predicted", "canonical", "digest"]

SOURCES = ("price", "simulate", "packets", "bound", "nccl", "plan")


def canonical(value: object) -> str:
    """One text for equal values: JSON with sorted keys and without spaces; whole floats are whole numbers.

    >>> canonical({"size_bytes": 8.0, "algorithm": "ring"})
    '{"algorithm":"ring","size_bytes":8}'
    """
    return json.dumps(_whole(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)


def digest(value: object) -> str:
    """The hash of a value's canonical text.

    >>> digest({"b": 1, "a": 2}) == digest({"a": 2.0, "b": 1})
    True
    """
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:32]


def _whole(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(name): _whole(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


@dataclass(frozen=True, slots=True)
class Case:
    """A collective or a training job on some system; fields that do not apply are None."""

    collective: str | None = None
    algorithm: str | None = None
    ranks: int | None = None
    size_bytes: int | None = None
    topology: str | None = None
    root: int | None = None
    axes: str | None = None
    library: str | None = None
    model: str | None = None
    plan: str | None = None
    global_batch: int | None = None
    seq: int | None = None
    precision: str | None = None
    software: str | None = None
    device: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # whatever else distinguishes cases

    def values(self) -> dict[str, str | int | None]:
        """The columns of `case_`, without its number and hash."""
        found = {column.name: getattr(self, column.name) for column in fields(self)}
        return found | {"options": canonical(self.options) if self.options else None}

    @property
    def hash(self) -> str:
        """The name of the case.

        >>> Case("all_reduce", "ring", 8, 1024).hash == Case("all_reduce", "ring", 8, 1024, root=None).hash
        True
        """
        return digest({name: value for name, value in self.values().items() if value is not None})


@dataclass(frozen=True, slots=True)
class Constants:
    """The figures that a prediction was made with, by what they describe ("cost model", "topology", "nccl", "plan")."""

    kind: str
    content: Mapping[str, Any]

    @property
    def hash(self) -> str:
        """The hash of their content."""
        return digest({"kind": self.kind, "content": self.content})


@dataclass(frozen=True, slots=True)
class Predicted:
    """One number that was predicted: by which verb (`source`), its terms, and the constants behind it."""

    case: Case
    source: str
    time_s: float
    terms: Mapping[str, Any] = field(default_factory=dict)
    constants: Constants | None = None
    memory_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """Times that were measured, every sample of them."""

    case: Case
    times_s: tuple[float, ...]
    datatype: str | None = None
    op: str | None = None
    in_place: bool | None = None
    wrong: int | None = None
