"""Choreo beside ASTRA-sim, on the same Chakra files.

    python benchmarks/astra_sim.py --binary-folder .../build/bin

The folder has ASTRA-sim's AstraSim_Analytical_Congestion_Unaware and ..._Aware. Each collective runs there by its ring
or direct algorithm, in one piece, on a ring, a switch or a fully connected dimension. Times are in microseconds. The
first of the two knows no congestion, and is held against a workload. The second stores messages at every hop and lets
one after another go, which choreo does where a message is one packet. A difference of more than 1 % is marked;
docs/explanation/simulation.md says where it comes from.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from pathlib import Path

from choreo import GraphBuilder, Packets, build, read_trace, simulate, simulate_workload, write_trace

GIB_PER_S, LATENCY_NS = 50.0, 500.0
SHAPES = {"Ring": "ring", "Switch": "switch", "FullyConnected": "fully_connected"}
WHOLE_MESSAGES = Packets(mtu_bytes="1GiB", buffer_bytes="1TiB", threshold=1024)
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def system(algorithm: str) -> dict[str, object]:
    """What ASTRA-sim calls a system: one chunk at a time, and endpoints that take the least time it knows, 1 ns."""
    found: dict[str, object] = {
        "scheduling-policy": "FIFO",
        "endpoint-delay": 1,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1,
        "collective-optimization": "baseline",
        "local-mem-bw": 1e9,
        "boost-mode": 0,
    }
    return found | {f"{one.replace('_', '-')}-implementation": [algorithm] for one in COLLECTIVES}


def astra_sim(binary: Path, folder: Path, shape: str, ranks: int, algorithm: str) -> float | None:
    """The time of the slowest rank in microseconds, of the files `step` in a folder; None if ASTRA-sim gave up."""
    (folder / "system.json").write_text(json.dumps(system(algorithm)))
    (folder / "memory.json").write_text('{"memory-type": "NO_MEMORY_EXPANSION"}')
    (folder / "network.yml").write_text(
        f"topology: [ {shape} ]\nnpus_count: [ {ranks} ]\nbandwidth: [ {GIB_PER_S} ]\nlatency: [ {LATENCY_NS} ]\n"
    )
    options = {"workload": "step", "system": "system.json", "remote-memory": "memory.json", "network": "network.yml"}
    command = [str(binary), *(f"--{name}-configuration={folder / value}" for name, value in options.items())]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=600, check=False)
    cycles = [int(one) for one in re.findall(r"finished, (\d+) cycles", done.stdout)]
    return max(cycles) / 1e3 if len(cycles) == ranks else None


def topology(shape: str, ranks: int) -> str:
    """ASTRA-sim's dimension as choreo says it. Its GB are 2^30 bytes."""
    return f"{SHAPES[shape]}({ranks}, {GIB_PER_S * 2**30 / 1e9:.12g}GB/s, {LATENCY_NS:g}ns)"


def compare(binaries: Path, ranks: int, size: str) -> None:
    """All cases of one number of ranks and one size."""
    for collective in COLLECTIVES:
        graph = GraphBuilder(ranks)
        for rank in range(ranks):
            graph.collective(rank, collective, size, range(ranks))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_trace(graph.finish(), folder / "step")
            read = read_trace(folder / "step").graph
            for shape in SHAPES:
                for algorithm in ("direct",) if collective == "all_to_all" else ("ring", "direct"):
                    wire = topology(shape, ranks)
                    ours = simulate_workload(read, wire, algorithm=algorithm).time_s * 1e6
                    schedule = build(collective, algorithm, ranks)
                    stored = simulate(schedule, wire, size, packets=WHOLE_MESSAGES).time_s * 1e6
                    print(f"{collective:15}{shape:15}{algorithm:7}{ranks:5}{size:>8}{ours:12.2f}{stored:12.2f}", end="")
                    for kind, mine in (("Unaware", ours), ("Aware", stored)):
                        binary = binaries / f"AstraSim_Analytical_Congestion_{kind}"
                        theirs = astra_sim(binary, folder, shape, ranks, algorithm)
                        if theirs is None:
                            print(f"{'gave up':>21}", end="")
                            continue
                        mark = " *" if abs(mine / theirs - 1) > 0.01 else "  "
                        print(f"{theirs:12.2f}{mine / theirs:7.3f}{mark}", end="")
                    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary-folder", type=Path, required=True, help="where ASTRA-sim's binaries are")
    parser.add_argument("--ranks", type=int, nargs="*", default=[4, 8, 16])
    parser.add_argument("--sizes", nargs="*", default=["1MiB", "64MiB"])
    options = parser.parse_args()
    columns = (
        "collective",
        "dimension",
        "by",
        "ranks",
        "size",
        "choreo",
        "stored",
        "unaware",
        "ratio",
        "aware",
        "ratio",
    )
    print("{:15}{:15}{:7}{:>5}{:>8}{:>12}{:>12}{:>12}{:>7}{:>14}{:>7}".format(*columns))
    for ranks in options.ranks:
        for size in options.sizes:
            compare(options.binary_folder.resolve(), ranks, size)


if __name__ == "__main__":
    main()
