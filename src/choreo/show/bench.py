"""A benchmark as a table: measured times, predictions, and other libraries."""

from __future__ import annotations

from choreo.bench.result import Benchmark
from choreo.show.sheet import Sheet, SheetTable
from choreo.units import counted, format_bandwidth, format_bytes, format_time

__all__ = ["benchmark_sheet"]


def benchmark_sheet(benchmark: Benchmark) -> Sheet:
    """A row for each size and algorithm."""
    peers = sorted({name for row in benchmark.results for name in row.peer_times_s})
    columns = ("size", "algorithm", "time", "predicted", "algbw", "busbw", *peers)
    rows = tuple(
        (
            format_bytes(row.size_bytes),
            row.algorithm + ("" if not row.wrong else " (wrong)"),
            format_time(row.time_s),
            format_time(row.predicted_s),
            format_bandwidth(row.algbw_bytes_per_s),
            format_bandwidth(row.busbw_bytes_per_s),
            *(format_time(row.peer_times_s[name]) if name in row.peer_times_s else "" for name in peers),
        )
        for row in benchmark.results
    )
    numbers = (0, *range(2, len(columns)))
    title = f"{benchmark.collective} over {counted(benchmark.ranks, 'rank')}, measured"
    missing = tuple(("missing", words) for words in benchmark.missing)
    return Sheet(title, missing, (SheetTable("", columns, rows, numbers),))
