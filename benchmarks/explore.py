"""What the page's data costs beside the simulation that it shows.

    python benchmarks/explore.py [--rounds 7]

Each round moves the size, as a slider does, and takes the processor's seconds of `simulate` itself, of the moment with
the messages that it keeps, encoded as it is sent, and of the chunk matrix that follows it. The ratio is that of the
moment, which has a simulation in it, to the simulation: about 2 at most where there is much to simulate. The processes
that work for the page keep free memory; so does this one, which therefore starts itself again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from choreo.explore.fields import Fields, case_of
from choreo.explore.server.workers import KEPT
from choreo.explore.views.chunks import chunks
from choreo.explore.views.moment import moment
from choreo.simulate import simulate

RESULTS = Path(__file__).parent / "results" / "explore.json"
CASES = (
    ("all_reduce", "ring", 64, "ring"),
    ("all_reduce", "halving_doubling", 512, "torus"),
    ("all_reduce", "halving_doubling", 512, "switch"),
    ("all_reduce", "ring", 512, "ring"),
    ("all_reduce", "ring", 512, "hgx-h100"),
    ("all_reduce", "swing", 512, "torus"),
    ("all_gather", "bruck", 512, "switch"),
    ("all_reduce", "ring", 1024, "ring"),
)


def seconds(act: Callable[[], object]) -> float:
    """The processor's seconds of something."""
    began = time.process_time()
    act()
    return time.process_time() - began


def main(rounds: int) -> None:
    """Every case, as a table and as JSON."""
    print(f"{'all on':44}{'simulate':>10}{'moment':>10}{'matrix':>10}{'ratio':>8}   (ms of the processor)")
    found = []
    for collective, algorithm, ranks, topology in CASES:
        parts: list[list[float]] = [[], [], []]
        for nth in range(rounds + 1):
            size = f"{1024 + 8 * nth}KiB"
            fields = Fields(collective=collective, algorithm=algorithm, ranks=ranks, topology=topology, size=size)
            case = case_of(fields)
            took = (
                seconds(lambda: simulate(case.schedule, case.topology, case.size_bytes)),  # noqa: B023 - called at once
                seconds(lambda: msgspec.json.encode(moment(fields))),  # noqa: B023
                seconds(lambda: msgspec.json.encode(chunks(fields))),  # noqa: B023
            )
            if nth:  # the first builds what the others share
                for part, one in zip(parts, took, strict=True):
                    part.append(1e3 * one)
        alone, shown, matrix = (statistics.median(part) for part in parts)
        what = f"{collective} by {algorithm}, {ranks} on {topology}"
        ratio = shown / alone
        print(f"{what:44}{alone:10.1f}{shown:10.1f}{matrix:10.1f}{ratio:8.2f}")
        found.append({"case": what, "simulate_ms": alone, "moment_ms": shown, "matrix_ms": matrix, "ratio": ratio})
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"load": os.getloadavg()[0], "cases": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    if not KEPT.keys() <= os.environ.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEPT})
    main(parser.parse_args().rounds)
