"""Measurements of NCCL's Inspector plugin: a line of JSON for each collective that a rank ran in a real job.

A row is one collective of one size in one communicator. A sample is one call: the longest time of the ranks in the
file. For an all_gather or a reduce_scatter, the Inspector counts one rank's part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from choreo.errors import UnknownNameError, UsageError, shown
from choreo.files import read_bytes, unpacked
from choreo.nccl.names import read_collective
from choreo.record.importing.nccl_tests import MAX_FILE_BYTES, MOST_S, NcclTest, TimedRow

__all__ = ["is_inspector_file", "read_nccl_inspector"]

SHARDED = ("all_gather", "reduce_scatter")
HEAD_BYTES = 1 << 14


def is_inspector_file(path: str | Path) -> bool:
    """Whether a file has lines in the Inspector's format."""
    return b'"coll_perf"' in _content(path)[:HEAD_BYTES]


def read_nccl_inspector(path: str | Path) -> list[NcclTest]:
    """A test for each communicator and collective. Truncated lines, as left by a job that died, are skipped."""
    found: dict[tuple[str, str], dict[int, dict[int, float]]] = {}
    about: dict[tuple[str, str], NcclTest] = {}
    for line in _content(path).splitlines():
        if b'"coll_perf"' not in line:
            continue
        try:
            record = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        timed_call = _one(record, path)
        if timed_call is None:
            continue
        collective, size_bytes, call, time_s = timed_call
        header = record["header"]
        key = str(header.get("id", "")), collective
        about.setdefault(key, NcclTest(collective, int(header["n_ranks"])))
        calls = found.setdefault(key, {}).setdefault(size_bytes, {})
        calls[call] = max(calls.get(call, 0.0), time_s)
    for key, sizes in found.items():
        about[key].rows = [
            TimedRow(size, "", None, None, False, tuple(calls.values()), None) for size, calls in sorted(sizes.items())
        ]
    if not about:
        raise UsageError(f"{shown(path)} has no line of NCCL's Inspector with a collective, a size and a time")
    return list(about.values())


def _one(record: Any, path: str | Path) -> tuple[str, int, int, float] | None:
    try:
        performance, ranks = record["coll_perf"], int(record["header"]["n_ranks"])
        name, size = str(performance["coll"]), int(performance["coll_msg_size_bytes"])
        call, time_us = int(performance.get("coll_sn", 0)), float(performance["coll_exec_time_us"])
    except (KeyError, TypeError, ValueError, OverflowError):
        lacks = "header.n_ranks, coll, coll_msg_size_bytes or coll_exec_time_us"
        raise UsageError(f"{shown(path)}: a line of NCCL's Inspector lacks {lacks}") from None
    if not 0 < time_us < 1e6 * MOST_S or ranks < 1 or size < 0:
        return None
    try:
        collective = read_collective(name)
    except UnknownNameError:
        return None
    if collective == "sendrecv":  # a message of one rank; the file does not name the peer
        return None
    return collective, size * ranks if collective in SHARDED else size, call, time_us * 1e-6


def _content(path: str | Path) -> bytes:
    return unpacked(read_bytes(path, MAX_FILE_BYTES, "measurements of NCCL"), path, MAX_FILE_BYTES)
