"""Names and values of results as people read them: `time_s` 0.00126 is "time", "1.26 ms"."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from choreo.results import Result
from choreo.show.schedule.words import printable
from choreo.show.sheet import Sheet, SheetTable
from choreo.units import format_bandwidth, format_bytes, format_time

__all__ = ["labels", "result_sheet", "value_words"]

# Longer lists are counted, not printed.
FEW = 6
SHARES = ("efficiency", "utilisation", "mfu", "hfu")
# How a name says its unit, and the words for such a value.
UNITS = (
    (re.compile(r"_bytes_per_s$"), format_bandwidth),
    (re.compile(r"_s$"), format_time),
    (re.compile(r"(^|_)bytes(_|$)"), format_bytes),
)
SUFFIX = re.compile(r"_(bytes_per_s|bytes|s)$")


def labels(fields: Mapping[str, object]) -> list[str]:
    """The names in words. A number shows its own unit, so its name drops it unless two names would become equal.

    >>> labels({"total_s": 1.5, "total_bytes": 8, "size_bytes": 2, "num_steps": 3})
    ['total time', 'total bytes', 'size', 'num steps']
    """
    bare = [SUFFIX.sub("", name) if isinstance(value, int | float) else name for name, value in fields.items()]
    chosen = [name if bare.count(short) > 1 else short for name, short in zip(fields, bare, strict=True)]
    return [re.sub("_s$", "_time", name).replace("_", " ") for name in chosen]


def value_words(name: str, value: object) -> str:
    """A value with the unit that its name gives it.

    >>> value_words("busbw_bytes_per_s", 42e9), value_words("efficiency", 0.917)
    ('42.0 GB/s', '91.7 %')
    """
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, int | float):
        return _number(name, value)
    if isinstance(value, Result):
        return value.summary()
    if isinstance(value, Mapping):
        return _few([f"{name} {value_words(key, value[key])}" for name, key in zip(labels(value), value, strict=True)])
    if isinstance(value, list | tuple):
        return _few([value_words(name, item) for item in value])
    return printable(str(value))


def _few(words: list[str]) -> str:
    return (", ".join(words) or "none") if len(words) <= FEW else f"{len(words)} values"


def _number(name: str, value: float) -> str:
    if name in SHARES:
        return f"{100 * value:.1f} %"
    for unit, words in UNITS:
        if unit.search(name):
            return words(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def result_sheet(thing: object) -> Sheet:
    """Any result, or a list of them: single values are facts, and lists of records are tables."""
    if isinstance(thing, list | tuple):
        return Sheet("", tables=(_table("", [_fields(item) for item in thing]),))
    facts, tables = [], []
    fields = _fields(thing)
    off = _off(thing)
    for words, (name, value) in zip(labels(fields), fields.items(), strict=True):
        if name in off:
            continue
        records = _records(value)
        if records:
            tables.append(_table(words, records))
        else:
            facts.append((words, value_words(name, value)))
    title = thing.summary() if isinstance(thing, Result) else type(thing).__name__
    return Sheet(title, tuple(facts), tuple(tables))


def _fields(thing: object) -> dict[str, object]:
    """The values of a result by name; of any other record, its attributes. No figure is there in two units."""
    if isinstance(thing, Mapping):
        fields = dict(thing.to_dict() if isinstance(thing, Result) else thing)
        return {name: fields[name] for name in fields if f"{name.removesuffix('_GBps')}_bytes_per_s" not in fields}
    if not dataclasses.is_dataclass(thing):
        return {"value": thing}
    return {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing) if field.repr}


def _off(thing: object) -> set[str]:
    """The fields of a record that are off: of a model, the parts that only other models have."""
    if isinstance(thing, Mapping) or not dataclasses.is_dataclass(thing):
        return set()
    empty = {field.name for field in dataclasses.fields(thing) if field.default in (None, False, 0, "")}
    return {name for name in empty if not getattr(thing, name)}


def _records(value: object) -> list[dict[str, object]]:
    """The rows of a list of records; empty for any other value."""
    if not isinstance(value, list | tuple) or not value:
        return []
    if not all(isinstance(item, Mapping) or dataclasses.is_dataclass(item) for item in value):
        return []
    return [_fields(item) for item in value]


def _table(caption: str, records: list[dict[str, object]]) -> SheetTable:
    """A row for each record; numbers stand flush right."""
    names = list(records[0]) if records else []
    rows = tuple(tuple(value_words(name, record.get(name)) for name in names) for record in records)
    right = tuple(
        at
        for at, name in enumerate(names)
        if all(isinstance(record.get(name), int | float) and record.get(name) is not None for record in records)
    )
    return SheetTable(caption, tuple(labels(records[0])) if records else (), rows, right)
