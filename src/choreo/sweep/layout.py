"""What identifies the rows of a table, and what varies among them: the columns a reader looks at first."""

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
    """The columns among `names` whose values differ between rows."""
    return [name for name in names if name in table and len(set(table[name])) > 1]


def constant(table: Table, names: Sequence[str] = IDENTITY) -> dict[str, object]:
    """The columns among `names` that are the same in every row, and their values."""
    same = [name for name in names if name in table and len(set(table[name])) == 1]
    return {name: table[name][0] for name in same}
