"""The columns of a table that a reader looks at first: those that identify a row, and those that vary."""

from __future__ import annotations

from collections.abc import Sequence

from choreo.sweep.table import Table

__all__ = ["ALONG", "IDENTITY", "constant", "varying"]

IDENTITY = (
    "collective",
    "model",
    "cluster",
    "topology",
    "gpus",
    "ranks",
    "global_batch",
    "seq",
    "root",
    "segments",
    "alpha",
    "bandwidth",
    "gamma",
    "ports",
    "cores",
    "routing",
    "store_and_forward",
    "placement",
    "slow_link",
    "slow_rank",
    "packets",
    "mtu",
    "buffer",
    "lossless",
    "control",
    "recovery",
    "precision",
    "software",
    "device",
    "datatype",
    "op",
    "forced",
    "size_bytes",
    "algorithm",
    "axes",
)
# Candidates for a plot's horizontal axis, in this order.
ALONG = ("size_bytes", "ranks", "gpus", "global_batch", "seq")


def varying(table: Table, names: Sequence[str] = IDENTITY) -> list[str]:
    """The columns among `names` whose values differ between rows. Rows without figures do not count."""
    return [name for name in names if len(_values(table, name)) > 1]


def constant(table: Table, names: Sequence[str] = IDENTITY) -> dict[str, object]:
    """The columns among `names` that are the same in every row, and their values."""
    found = {name: _values(table, name) for name in names}
    return {name: values.pop() for name, values in found.items() if len(values) == 1}


def _values(table: Table, name: str) -> set[object]:
    """The different values of a column, in the rows that have figures; in all, if none has."""
    values = table.get(name, [])
    errors = table.get("error") or [None] * len(values)
    kept = {value for value, error in zip(values, errors, strict=False) if error is None}
    return kept or set(values)
