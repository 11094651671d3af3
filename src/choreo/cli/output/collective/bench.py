"""The table of nccl-tests, with the price of each row and the time of other libraries."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from choreo.cli.output.text.table import Column, NcclTable, echo_comment
from choreo.errors import shown
from choreo.units import counted

if TYPE_CHECKING:
    from choreo.bench.options import BenchOptions
    from choreo.bench.result import Benchmark, Measurement

__all__ = ["BenchTable"]

IN_PLACE = ("all_reduce", "broadcast", "reduce")
BEST = " ← best"


class BenchTable:
    """Prints rows as they are measured. With --algorithm all it waits for the last of a size, to mark the fastest."""

    def __init__(self, options: BenchOptions) -> None:
        """Print the head."""
        self.options = options
        self.waiting: list[Measurement] = []
        place = "in place" if options.collective in IN_PLACE else "out of place"
        echo_comment(
            f"{options.collective} over {counted(options.ranks, 'rank')} of this machine, {place}"
            f"{', registered' if options.registered else ''}"
        )
        columns = [
            Column("size"),
            Column("count", 6),
            Column("type", 9),
            Column("redop", 8),
            Column("root", 7),
            Column("time"),
            Column("algbw", 5),
            Column("busbw", 2),
            Column("#wrong", 4),
            Column("predicted", 3),
        ]
        units = ["(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)"]
        widths = [11, 11, 8, 5, 4, 9, 7, 7, 6, 9]
        for name in options.against:
            columns += [Column(name), Column("ratio")]
            units += ["(us)", ""]
            widths += [9, 7]
        last = Column("algorithm", 0 if options.algorithm == "all" else 1, left=True)
        self.table = NcclTable([*columns, last], [*units, ""], [*widths, _name_width(options)])

    def row(self, row: Measurement) -> None:
        """Print a row, or keep it until its size is complete."""
        if self.waiting and self.waiting[0].case.size_bytes != row.case.size_bytes:
            self._print_waiting()
        self.waiting.append(row)
        if self.options.algorithm != "all":
            self._print_waiting()

    def end(self, report: Benchmark, *, calibrated: bool) -> None:
        """Print what is left, and the summary; without a calibration, why predictions are off."""
        from choreo.bench.result import geometric_mean

        self._print_waiting()
        self.table.end()
        wrong = sum(row.wrong or 0 for row in report.results)
        echo_comment(f"Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
        echo_comment(f"Avg bus bandwidth    : {statistics.fmean(row.busbw_GBps for row in report.results):.6g}")
        # A rank alone sends nothing, so nothing is predicted.
        off = [abs(row.predicted_s / row.time_s - 1) for row in report.results if row.predicted_s > 0]
        if off:
            why = "" if calibrated else "; to measure this machine, run choreo calibrate"
            echo_comment(f"Prediction off by    : {100 * statistics.median(off):.0f} % in the median row{why}")
        if report.disturbed:
            echo_comment(f"Disturbed            : {report.disturbed}")
        for name in report.options.against:
            ratios = [row.ratio(name) for row in report.results if name in row.peer_times_s]
            if ratios:
                echo_comment(
                    f"{name + ' takes':<20} : {geometric_mean(ratios):.2f} times as long (geometric mean), "
                    f"at least {min(ratios):.2f} times"
                )
            self._traffic(name, report.results[-1])

    def _traffic(self, name: str, row: Measurement) -> None:
        """Say what a peer that counts its traffic has sent, in arrays of N bytes."""
        arrays = [received / row.size_bytes for received in row.peer_received_bytes.get(name, ())]
        if arrays:
            ring = 2 * (row.ranks - 1) / row.ranks
            echo_comment(
                f"{name + ' moves':<20} : {arrays[0]:.3g} N to reduce and {sum(arrays):.3g} N in all, through rank 0; "
                f"through a rank of a ring go {ring:.3g} N each way"
            )

    def _print_waiting(self) -> None:
        fastest = min((row.time_s for row in self.waiting), default=0.0)
        for row in self.waiting:
            best = len(self.waiting) > 1 and row.time_s == fastest
            self.table.row(self._cells(row, BEST if best else ""))
        self.waiting = []

    def _cells(self, row: Measurement, mark: str) -> list[str]:
        from choreo.collectives import get_collective

        contract = get_collective(self.options.collective)
        peers = [
            text
            for name in self.options.against
            for text in (
                (f"{row.peer_times_s[name] * 1e6:.2f}", f"{row.ratio(name):.2f}x")
                if name in row.peer_times_s
                else ("-", "")
            )
        ]
        return [
            str(row.case.size_bytes),
            str(row.case.count),
            row.case.dtype,
            self.options.op if contract.reduces else "none",
            str(row.case.root if contract.rooted else -1),
            f"{row.time_s * 1e6:.2f}",
            f"{row.algbw_GBps:.2f}",
            f"{row.busbw_GBps:.2f}",
            "N/A" if row.wrong is None else str(row.wrong),
            f"{row.predicted_s * 1e6:.2f}",
            *peers,
            f"{shown(row.algorithm)}{mark}",
        ]


def _name_width(options: BenchOptions) -> int:
    """How wide the algorithm's column can become."""
    from choreo.algorithms import list_algorithms

    if options.algorithm not in (None, "all"):
        return len(shown(options.algorithm))
    longest = max(len(shown(algorithm.name)) for algorithm in list_algorithms(options.collective))
    return longest + (len(BEST) if options.algorithm == "all" else 0)
