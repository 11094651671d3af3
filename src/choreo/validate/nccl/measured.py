"""Published measurements: a CSV file with the columns of nccl-tests, and what it was measured on.

A row needs the collective, the number of GPUs, the size, and a time or a bandwidth. Other missing values come from the
GPU's usual machine. A row that cannot be read is skipped, with its line and reason.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from choreo.collectives import get_collective
from choreo.errors import ChoreoError, UsageError, shown
from choreo.nccl.names import Forced, read_collective, read_forced
from choreo.nccl.system.gpus import without_nccl
from choreo.nccl.system.reading import read_system
from choreo.nccl.system.system import NcclSystem
from choreo.units import parse_size
from choreo.validate.rows import Skipped, missing_columns, read_number, read_records

__all__ = ["MeasuredRow", "read_measured"]


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One measured time, on one system."""

    table_id: str
    line: int
    collective: str
    size_bytes: int
    measured_s: float
    system: NcclSystem
    forced: Forced


def read_measured(path: Path | str) -> tuple[list[MeasuredRow], list[Skipped]]:
    """The rows of a file, and those that had to be skipped, by table."""
    rows: list[MeasuredRow] = []
    skipped: list[Skipped] = []
    for record in read_records(path, lambda cells: _header(path, cells), ", as in nccl_measured.csv"):
        table_id = "?"
        try:
            values = record.values()
            table_id = values.get("table_id") or "?"
            rows.append(_row(table_id, record.line, values))
        except ChoreoError as error:
            skipped.append(Skipped(table_id, f"line {record.line}: {error}"))
    return rows, skipped


def _header(path: Path | str, cells: list[str]) -> list[str]:
    header = [cell.lower() for cell in cells]
    missing = [name for name in ("collective", "n_gpus", "size_bytes") if name not in header]
    if missing:
        raise missing_columns(path, missing, header, "nccl_measured.csv")
    return header


def _row(table_id: str, line: int, values: dict[str, str]) -> MeasuredRow:
    collective = read_collective(values.get("collective", ""))
    size_bytes = _size(values.get("size_bytes", ""))
    system_text, interconnect = values.get("system", ""), values.get("interconnect", "")
    if uses := without_nccl(system_text):
        raise UsageError(f"{shown(system_text)} has no NCCL: its collectives are {uses}, for which there is no model")
    nodes = _count(values.get("n_nodes", ""))
    ranks = _ranks(collective, values, nodes)
    forced = read_forced(values.get("algo", ""))
    how = f"{values.get('tool', '')} ; {values.get('algo', '')}"
    if nodes is None:
        nodes = math.ceil(ranks / read_system(system_text, interconnect, ranks, 1).gpu.gpus_per_node)
    nodes = min(nodes, ranks)
    system = read_system(system_text, interconnect, ranks, nodes, how=how, nvls=forced.nvls)
    measured_s = _time(collective, size_bytes, ranks, values)
    return MeasuredRow(table_id, line, collective, size_bytes, measured_s, system, forced)


def _count(text: str) -> int | None:
    value = read_number(text)
    return int(value) if value is not None and 1 <= value <= 10_000_000 and value == int(value) else None


def _size(text: str) -> int:
    value = read_number(text)
    if value is not None and value >= 0:
        return int(value)
    return parse_size(text)


def _ranks(collective: str, values: dict[str, str], nodes: int | None) -> int:
    ranks = _count(values.get("n_gpus", ""))
    if ranks is not None:
        return ranks
    # The ratio of bus to algorithm bandwidth gives it: 2 (n - 1) / n for all_reduce, (n - 1) / n for most others.
    algorithm, bus = read_number(values.get("oop_algbw_gbps")), read_number(values.get("oop_busbw_gbps"))
    if algorithm and bus and collective not in ("broadcast", "reduce", "sendrecv"):
        ratio = bus / algorithm / (2 if collective == "all_reduce" else 1)
        if ratio < 1:
            return max(1, round(1 / (1 - ratio)))
    if nodes is not None and not values.get("n_gpus"):
        return nodes * read_system(values.get("system", ""), values.get("interconnect", ""), 1, 1).gpu.gpus_per_node
    raise UsageError(f"n_gpus is {values.get('n_gpus', '')!r}, which is no number of GPUs")


def _time(collective: str, size_bytes: int, ranks: int, values: dict[str, str]) -> float:
    for column in ("oop_time_us", "ip_time_us"):
        time_us = read_number(values.get(column))
        if time_us is not None and time_us > 0:
            return time_us * 1e-6
    factor = 1.0 if collective == "sendrecv" else get_collective(collective).bus_factor(ranks)
    for column, scale in (("oop_algbw_gbps", 1.0), ("oop_busbw_gbps", factor), ("ip_algbw_gbps", 1.0)):
        rate = read_number(values.get(column))
        if rate is not None and rate > 0 and size_bytes > 0 and scale > 0:
            return size_bytes * scale / (rate * 1e9)
    raise UsageError(
        f"no time can be read: oop_time_us is {values.get('oop_time_us', '')!r} and no other column gives one"
    )
