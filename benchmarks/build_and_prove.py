"""How fast schedules are built and proved, and in how much memory.

    python benchmarks/build_and_prove.py [--peer DIRECTORY]

Every case runs in a process of its own and is timed inside it, after imports; memory is that process's peak. With
`--peer` the directory of a checkout of MSCCL's schedule language (github.com/microsoft/msccl-tools) is used to trace
and check the same ring all_reduce beside ours (not to lower it to instructions, which takes it longer still); it needs
the packages z3-solver and lxml. What was found goes to benchmarks/results/build_and_prove.json.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

MIB = 1 << 20
RESULTS = Path(__file__).parent / "results" / "build_and_prove.json"


@dataclass(frozen=True)
class Case:
    """What is built (and proved, or traced by the peer), and what it may take."""

    collective: str
    algorithm: str
    ranks: int
    verb: str
    target_s: float | None = None
    target_mb: float | None = None

    @property
    def name(self) -> str:
        """For the table."""
        return f"{self.verb} {self.collective} {self.algorithm} {self.ranks}"


OURS = [
    Case("all_reduce", "ring", 64, "prove"),
    Case("all_reduce", "ring", 256, "prove", 0.1),
    Case("all_reduce", "ring", 1024, "prove", 0.5, 200),
    Case("all_reduce", "ring", 4096, "prove", 5.0, 600),
    Case("all_reduce", "halving_doubling", 4096, "build", 0.1),
    Case("all_reduce", "halving_doubling", 4096, "prove"),
    Case("all_reduce", "hierarchical", 4096, "prove"),
    Case("all_to_all", "pairwise", 256, "prove"),
]
PEERS = [Case("all_reduce", "ring", ranks, "peer") for ranks in (16, 64, 256)]


def measure(case: Case, peer: str | None) -> dict[str, float]:
    """Seconds and peak megabytes of one case, in this process."""
    if case.verb == "peer":
        assert peer is not None
        sys.path.insert(0, peer)
        took = trace_with_peer(case.ranks)
    else:
        took = run_ours(case)
    return {"seconds": took, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB}


def run_ours(case: Case) -> float:
    """Build, and prove if asked; a built schedule is read whole, since rows are made on demand."""
    from choreo.algorithms import build, list_algorithms
    from choreo.prove import prove

    list_algorithms()
    prove(build(case.collective, case.algorithm, 4))
    started = time.perf_counter()
    schedule = build(case.collective, case.algorithm, case.ranks)
    if case.verb == "prove":
        prove(schedule)
    else:
        schedule.columns()
    return time.perf_counter() - started


def trace_with_peer(ranks: int) -> float:
    """The same ring all_reduce in the peer's language, traced and checked."""
    from msccl.language import Buffer, Check, MSCCLProgram, chunk  # type: ignore[import-not-found]  # a checkout
    from msccl.language.collectives import AllReduce  # type: ignore[import-not-found]
    from msccl.topologies import fully_connected  # type: ignore[import-not-found]

    started = time.perf_counter()
    with (
        contextlib.redirect_stdout(io.StringIO()),
        MSCCLProgram("ring", fully_connected(ranks), AllReduce(ranks, ranks, True), 1),
    ):
        for hop in range(2 * (ranks - 1)):
            for block in range(ranks):
                here, there = (block + 1 + hop) % ranks, (block + 2 + hop) % ranks
                sent = chunk(here, Buffer.input, block)
                if hop < ranks - 1:
                    chunk(there, Buffer.input, block).reduce(sent)
                else:
                    sent.copy(there, Buffer.input, block)
        right = Check()
    assert right, "the peer found our ring wrong"
    return time.perf_counter() - started


def in_own_process(index: int, which: str, peer: str | None, repeats: int) -> dict[str, float]:
    """The fastest of some runs of one case, each in a process of its own."""
    command = [sys.executable, __file__, "--case", f"{which}:{index}", *(["--peer", peer] if peer else [])]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(repeats)]
    return min(runs, key=lambda run: float(run["seconds"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="a checkout of the peer's repository")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    lists = {"ours": OURS, "peers": PEERS}
    if arguments.case:
        which, index = arguments.case.split(":")
        print(json.dumps(measure(lists[which][int(index)], arguments.peer)))
        return
    found = []
    print(f"{'case':<48}{'seconds':>9}{'to reach':>10}{'peak MB':>9}{'to reach':>10}")
    for which, cases in lists.items():
        if which == "peers" and not arguments.peer:
            continue
        for index, case in enumerate(cases):
            run = in_own_process(index, which, arguments.peer, repeats=3 if which == "ours" else 1)
            targets = [f"{t:g}" if t is not None else "" for t in (case.target_s, case.target_mb)]
            print(
                f"{case.name:<48}{run['seconds']:>9.3f}{targets[0]:>10}{run['peak_mb']:>9.0f}{targets[1]:>10}",
                flush=True,
            )
            found.append(asdict(case) | run)
    if arguments.peer:
        times = {(f["verb"], f["ranks"]): f["seconds"] for f in found if f["algorithm"] == "ring"}
        for ranks in (64, 256):
            ratio = times["peer", ranks] / times["prove", ranks]
            print(f"at {ranks} ranks the peer takes {ratio:.0f} times as long to trace and check as ours to prove")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(f"written to {RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS}")


if __name__ == "__main__":
    main()
