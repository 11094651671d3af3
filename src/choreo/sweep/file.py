"""A sweep in a TOML file: the verb, and the axes with their values.

verb = "simulate"

[axes]
collective = "all_reduce"
algorithm = ["ring", "swing"]
topology = ["hgx-h100:4", "torus(4x4x4, 45GB/s, 1us)"]
size = "8:1GiB"
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from choreo.errors import UsageError, shown
from choreo.files import convert, parse_toml, read_text
from choreo.sweep.axes import Value, values_of
from choreo.sweep.verbs import get_verb

__all__ = ["read_sweep"]

MAX_FILE_BYTES = 1 << 20
Given = str | int | float | bool


class _File(msgspec.Struct, forbid_unknown_fields=True):
    verb: str
    axes: dict[str, Given | list[Given]]


def read_sweep(path: str | Path) -> tuple[str, dict[str, list[Value]]]:
    """The verb of a file, and the values of each axis."""
    text = read_text(path, MAX_FILE_BYTES, "a sweep")
    found = convert(parse_toml(text, path, UsageError), _File, path, "a sweep", UsageError)
    try:
        get_verb(found.verb)
        return found.verb, {name: values_of(name, values) for name, values in found.axes.items()}
    except UsageError as error:
        raise UsageError(f"{shown(path)}: {error}") from None
