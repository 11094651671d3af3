"""How fast the simulator is, and in how much memory.

    python benchmarks/simulate.py [--twin]

A 1 MiB all_reduce each. Every case runs in a process of its own and is timed inside it, after imports: user time of one
core to make the topology and the schedule and to simulate them; memory is that process's peak. "peer" is what a widely
used C++ simulator takes for the same case on the same kind of machine. `--twin` times the simulator's twin in Python
on smaller cases beside the compiled one. What was found goes to benchmarks/results/simulate.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

MIB = 1 << 20
RESULTS = Path(__file__).parent / "results" / "simulate.json"


@dataclass(frozen=True)
class Case:
    """What runs where, what it may take, and what the peer takes (seconds, megabytes)."""

    algorithm: str
    topology: str
    target_s: float | None = None
    target_mb: float | None = None
    peer_s: str = ""
    peer_mb: str = ""
    contended: bool = False

    @property
    def name(self) -> str:
        """For the table."""
        return f"{self.algorithm} over {self.topology.partition(',')[0]}" + (")" if "," in self.topology else "")


FIGURES = "50GB/s, 500ns)"
CASES = [
    Case("ring", f"ring(1024, {FIGURES}", 0.3, None, "7.3", "362"),
    Case("ring", f"ring(4096, {FIGURES}", 4.0, 600, "> 250"),
    Case("halving_doubling", f"switch(4096, {FIGURES}", 0.3, 300, "11.7", "5600"),
    Case("direct", f"fully_connected(1024, {FIGURES}", 2.0, None, "46", "889"),
    Case("hierarchical", f"torus(16x16x16, {FIGURES}", 0.2, None, "3.8"),
    Case("hierarchical", f"torus(32x32x16, {FIGURES}", 1.5, 400, "29.4", "952"),
    Case("hierarchical", "hgx-h100:2048", 5.0),
    # Where links are shared there is no target; these show what following every message costs.
    Case("direct", f"switch(512, {FIGURES}", contended=True),
    Case("halving_doubling", f"ring(1024, {FIGURES}", contended=True),
    Case("swing", f"torus(32x32, {FIGURES}", contended=True),
    Case("double_binary_tree", f"torus(16x16x16, {FIGURES}", contended=True),
]
SMALLER = [
    Case("ring", f"ring(128, {FIGURES}"),
    Case("halving_doubling", f"switch(512, {FIGURES}"),
    Case("direct", f"switch(32, {FIGURES}", contended=True),
]


def measure(case: Case, compiled: bool | None) -> dict[str, float]:
    """User seconds and peak megabytes of one case, in this process."""
    from choreo.algorithms import build, list_algorithms
    from choreo.simulate import simulate
    from choreo.topology import get_topology

    list_algorithms()
    simulate(build("all_reduce", "ring", 2), "ring(2)", 8, compiled=compiled)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    topology = get_topology(case.topology)
    if case.algorithm == "hierarchical":
        schedule = build("all_reduce", "hierarchical", topology.num_devices, axes=topology)
    else:
        schedule = build("all_reduce", case.algorithm, topology.num_devices)
    simulation = simulate(schedule, topology, MIB, compiled=compiled)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    assert simulation.shared == (case.contended or compiled is False)
    return {
        "user_s": usage.ru_utime - before,
        "peak_mb": usage.ru_maxrss * 1024 / 1e6,
        "simulated_s": simulation.time_s,
    }


def in_own_process(index: int, which: str, repeats: int) -> dict[str, float]:
    """The fastest of some runs of one case, each in a process of its own."""
    command = [sys.executable, __file__, "--case", f"{which}:{index}"]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(repeats)]
    return min(runs, key=lambda run: float(run["user_s"]))


def compare_twin() -> list[dict[str, object]]:
    """The compiled loops and their twin on the same cases."""
    print(f"\n{'case':<44}{'compiled':>10}{'twin':>10}{'ratio':>8}")
    found: list[dict[str, object]] = []
    for index, case in enumerate(SMALLER):
        fast, slow = in_own_process(index, "fast", 3), in_own_process(index, "slow", 1)
        assert abs(fast["simulated_s"] - slow["simulated_s"]) <= 1e-9 * slow["simulated_s"]
        ratio = slow["user_s"] / max(fast["user_s"], 1e-4)
        print(f"{case.name:<44}{fast['user_s']:>8.3f} s{slow['user_s']:>8.3f} s{ratio:>7.0f}x")
        found.append({**asdict(case), "compiled": fast, "twin": slow})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--twin", action="store_true", help="time the twin in Python as well")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        which, _, index = arguments.case.partition(":")
        cases = CASES if which == "case" else SMALLER
        print(json.dumps(measure(cases[int(index)], False if which == "slow" else None)))
        return
    print(f"{'1 MiB all_reduce':<44}{'user':>10}{'to reach':>10}{'peak':>9}{'to reach':>10}{'peer':>10}{'peer':>9}")
    found: list[dict[str, object]] = []
    for index, case in enumerate(CASES):
        run = in_own_process(index, "case", 3)
        reach = f"{case.target_s:g} s" if case.target_s else ""
        within = f"{case.target_mb:g} MB" if case.target_mb else ""
        peer = f"{case.peer_s} s" if case.peer_s else ""
        peer_mb = f"{case.peer_mb} MB" if case.peer_mb else ""
        missed = (case.target_s is not None and run["user_s"] > case.target_s) or (
            case.target_mb is not None and run["peak_mb"] > case.target_mb
        )
        print(
            f"{case.name:<44}{run['user_s']:>8.3f} s{reach:>10}{run['peak_mb']:>6.0f} MB{within:>10}{peer:>10}"
            f"{peer_mb:>9}{'  missed' if missed else ''}"
        )
        found.append({**asdict(case), **run})
    twins = compare_twin() if arguments.twin else []
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"cases": found, "twin": twins}, indent=2) + "\n")


if __name__ == "__main__":
    main()
