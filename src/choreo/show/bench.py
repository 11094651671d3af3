"""A benchmark's report as a table: measured beside predicted, and beside other libraries."""

from __future__ import annotations

from choreo.bench.bench import Report
from choreo.show.sheet import Sheet, SheetTable
from choreo.units import counted, format_bandwidth, format_bytes, format_time

__all__ = ["report_sheet"]


def report_sheet(report: Report) -> Sheet:
    """A row for each size and algorithm."""
    peers = sorted({name for row in report.rows for name in row.peers})
    columns = ("size", "algorithm", "time", "predicted", "algbw", "busbw", *peers)
    rows = tuple(
        (
            format_bytes(row.case.size_bytes),
            row.algorithm + ("" if not row.wrong else " (wrong)"),
            format_time(row.time_s),
            format_time(row.predicted_s),
            format_bandwidth(row.algbw_bytes_per_s),
            format_bandwidth(row.busbw_bytes_per_s),
            *(format_time(row.peers[name]) if name in row.peers else "" for name in peers),
        )
        for row in report.rows
    )
    numbers = (0, *range(2, len(columns)))
    title = f"{report.options.collective} over {counted(report.options.ranks, 'rank')}, measured"
    missing = tuple(("missing", words) for words in report.missing)
    return Sheet(title, missing, (SheetTable("", columns, rows, numbers),))
