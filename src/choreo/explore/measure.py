"""Press run: the collective between real processes of this machine, measured beside predicted."""

from __future__ import annotations

import os
from typing import Annotated, TypedDict

import msgspec
from msgspec import Meta

from choreo.bench import bench
from choreo.errors import UsageError
from choreo.explore.fields import FieldError, reading
from choreo.units import parse_size

__all__ = ["Measure", "MeasuredData", "measure"]

MOST_RANKS, MOST_BYTES = 16, 256 << 20


class Measure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to run; without an algorithm, the one that is chosen for each size."""

    collective: Annotated[str, Meta(max_length=60)] = "all_reduce"
    algorithm: Annotated[str, Meta(max_length=60)] = ""
    ranks: Annotated[int, Meta(ge=1, le=4096)] = 4
    sizes: Annotated[tuple[Annotated[str, Meta(max_length=40)], ...], Meta(min_length=1, max_length=16)] = ("1MiB",)
    rounds: Annotated[int, Meta(ge=1, le=50)] = 7


class MeasuredRow(TypedDict):
    """One size: every sample, the median, and the price with this machine's constants; `wrong` counts elements."""

    size_bytes: int
    algorithm: str
    samples_us: list[float]
    time_us: float
    predicted_us: float
    wrong: int | None
    busbw_bytes_per_s: float


class MeasuredData(TypedDict):
    """What was measured, and on how many cores."""

    ranks: int
    cores: int
    rows: list[MeasuredRow]


def measure(asked: Measure) -> MeasuredData:
    """Run it, each call checked element by element."""
    if asked.ranks > MOST_RANKS:
        told = f"the page runs at most {MOST_RANKS} processes here, not {asked.ranks}; use fewer, or choreo bench"
        raise FieldError("ranks", UsageError(told))
    sizes = [reading("size", lambda text=text: parse_size(text)) for text in asked.sizes]  # type: ignore[misc]
    if max(sizes) > MOST_BYTES:
        told = f"the page runs at most {MOST_BYTES >> 20} MiB a rank; use a smaller size, or choreo bench"
        raise FieldError("size", UsageError(told))
    found = bench(
        asked.collective, asked.ranks, sizes, algorithm=asked.algorithm or None, rounds=asked.rounds, round_s=0.02
    )
    rows: list[MeasuredRow] = [
        {
            "size_bytes": row.size_bytes,
            "algorithm": row.algorithm,
            "samples_us": [sample * 1e6 for sample in row.samples_s],
            "time_us": row.time_s * 1e6,
            "predicted_us": row.predicted_s * 1e6,
            "wrong": row.wrong,
            "busbw_bytes_per_s": row.busbw_bytes_per_s,
        }
        for row in found.results
    ]
    return {"ranks": asked.ranks, "cores": _cores(), "rows": rows}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
