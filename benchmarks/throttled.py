"""A rank with a slow cable: an all_reduce synthesized for what was measured there, against the library in the same run.

    python benchmarks/throttled.py [--ranks 4] [--size 4MiB] [--rate 200] [--slow 50] [--rounds 5]

Every rank is in a network namespace of its own, joined to one switch by a cable of --rate Mbit/s each way; the last
rank's has --slow (tc's token buckets). What the network does is measured first, by messages from rank to rank: the
rate of each pair, where a rank's port is as fast as the fastest of its pairs, what a short message takes, and what each
of many costs. The schedule is synthesized for a switch like that. It and the best of the library by simulation then
take turns, round after round. A time is the median of the rounds, a round's that of its slowest rank. Predicted is what
the simulation says on that network. It needs root and iproute2. What was found goes to
benchmarks/results/throttled.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from namespace_ranks import NamespaceRanks, delete_namespaces, ip

import choreo
from choreo.units import parse_size

RESULTS = Path(__file__).parent / "results" / "throttled.json"
NETWORK = "10.79.0."
PORT = 29_780
# A message that takes far longer than its latency.
PROBE_BYTES = 1 << 20
# So many short messages are timed together.
MESSAGES = 64
# What the schedule from the file is called where it runs; `synthesized` is taken.
MADE = "synthesized_here"
# So many algorithms of the library run beside it: those that the simulation has as the fastest.
OF_LIBRARY = 3


@contextlib.contextmanager
def hosts(rates_mbit: list[int]) -> Iterator[list[str]]:
    """Machines on one switch, each with a cable of its own rate."""
    tag = f"thr{os.getpid()}"
    hub, names = f"{tag}hub", [f"{tag}h{number}" for number in range(len(rates_mbit))]
    try:
        ip("netns", "add", hub)
        ip("-n", hub, "link", "add", "switch", "type", "bridge")
        ip("-n", hub, "link", "set", "switch", "up")
        for number, (name, rate) in enumerate(zip(names, rates_mbit, strict=True)):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{number}", "netns", hub)
            ip("-n", hub, "link", "set", f"port{number}", "master", "switch", "up")
            ip("-n", name, "addr", "add", f"{NETWORK}{number + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            for where, device in ((name, "eth0"), (hub, f"port{number}")):
                limit = ("root", "tbf", "rate", f"{rate}mbit", "burst", "32kb", "latency", "200ms")
                subprocess.run(["tc", "-n", where, "qdisc", "add", "dev", device, *limit], check=True)
        yield names
    finally:
        delete_namespaces((*names, hub))


def ranks_of(names: list[str], schedule: Path, algorithm: str | None = None, number: int = 0) -> NamespaceRanks:
    """The ranks that run one algorithm."""
    forced = {} if algorithm is None else {"CHOREO_ALGORITHM": f"all_reduce:{algorithm}"}
    command = [sys.executable, __file__, "--worker", str(schedule)]
    return NamespaceRanks(names, command, f"{NETWORK}1", PORT + number, {"CHOREO_NETWORK": "plain", **forced})


def work(schedule: Path) -> None:
    """A rank: do what comes in, one line each, and answer with seconds."""

    @choreo.algorithm("all_reduce", name=MADE)
    def made(ranks: int) -> choreo.Schedule:
        """What was synthesized for the measured network."""
        return choreo.load(schedule)

    comm = choreo.init()
    for line in sys.stdin:
        what, *rest = json.loads(line)
        if what == "probe":
            src, dst = rest
            x = np.zeros(PROBE_BYTES // 4, np.float32)
            comm.barrier()
            began = time.perf_counter()
            if comm.rank == src:
                comm.send(x, dst)
            elif comm.rank == dst:
                comm.recv(x, src)
        elif what in ("answered", "streamed"):
            # Short messages there and back, or many one way and one back.
            src, dst = rest
            word, answers = np.zeros(2, np.float32), MESSAGES if what == "answered" else 1
            comm.barrier()
            began = time.perf_counter()
            for _ in range(answers) if comm.rank in (src, dst) else ():
                for _ in range(MESSAGES // answers):
                    comm.send(word, dst) if comm.rank == src else comm.recv(word, src)
                comm.recv(word, dst) if comm.rank == src else comm.send(word, src)
        else:
            (size,) = rest
            x = np.ones(size // 4, np.float32)
            comm.barrier()
            began = time.perf_counter()
            comm.all_reduce(x)
            if (x != comm.world_size).any():
                raise SystemExit(f"rank {comm.rank} has a wrong sum")
        print(time.perf_counter() - began, flush=True)


def measured_network(ranks: NamespaceRanks) -> tuple[choreo.Topology, list[float]]:
    """A switch whose ports are as fast as the fastest pair that each rank is of."""
    count = len(ranks.ranks)
    rate = np.zeros(count)
    for src in range(count):
        for dst in range(count):
            if src != dst:
                took_s = statistics.median(ranks.ask("probe", src, dst)[dst] for _ in range(3))
                rate[[src, dst]] = np.maximum(rate[[src, dst]], PROBE_BYTES / took_s)
    fastest = float(rate.max())
    pairs = [(0, 1), (0, count - 1), (1, count - 1)]
    way_s, message_s = (
        statistics.median(ranks.ask(what, *pair)[pair[0]] for pair in pairs for _ in range(3)) / messages
        for what, messages in (("answered", 2 * MESSAGES), ("streamed", MESSAGES))
    )
    latency_s = max(way_s / 2 - message_s, 1e-6)  # of each of two links, beside what its ends do
    network = choreo.get_topology(f"switch({count}, {fastest:.0f}B/s, {latency_s:g}s, overhead={message_s:g}s)")
    print(f"a short message takes {1e6 * way_s:.0f} us, and costs its ranks {1e6 * message_s:.0f} us each")
    for device, bytes_per_s in enumerate(rate.tolist()):
        network = network.with_slow_device(device, fastest / bytes_per_s)
    return network, rate.tolist()


def main() -> None:
    """Measure, synthesize, race."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--size", type=parse_size, default=4 << 20)
    parser.add_argument("--rate", type=int, default=200, help="Mbit/s")
    parser.add_argument("--slow", type=int, default=50, help="Mbit/s of the last rank")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker is not None:
        work(asked.worker)
        return
    rates_mbit = [asked.rate] * (asked.ranks - 1) + [asked.slow]
    with tempfile.TemporaryDirectory() as folder, hosts(rates_mbit) as names:
        file = Path(folder) / "made.npz"
        choreo.save(choreo.build("all_reduce", "ring", asked.ranks), file)  # until it is made
        ranks = ranks_of(names, file)
        try:
            network, rates = measured_network(ranks)
        finally:
            ranks.stop()
        print("ports measured at", ", ".join(f"{rate / 1e6:.1f}" for rate in rates), "MB/s")
        from choreo.synthesize import search  # heavy, and no rank needs it

        found = search("all_reduce", network, asked.size)
        choreo.save(found.schedule, file)
        rows = race(names, file, network, asked.size, asked.rounds)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"rates_bytes_per_s": rates, "size_bytes": asked.size, "rows": rows}, indent=1))


def race(names: list[str], file: Path, network: choreo.Topology, size: int, rounds: int) -> list[dict[str, Any]]:
    """What was made, and the best of the library by simulation, in turn, round after round."""
    predicted_s = {}
    for algorithm in choreo.list_algorithms("all_reduce"):
        with contextlib.suppress(choreo.ChoreoError):
            schedule = choreo.build("all_reduce", algorithm.name, len(names))
            predicted_s[algorithm.name] = choreo.simulate(schedule, network, size).time_s
    best = sorted(predicted_s, key=lambda name: predicted_s[name])[:OF_LIBRARY]
    predicted_s[MADE] = choreo.simulate(choreo.load(file), network, size).time_s
    contestants = {name: ranks_of(names, file, name, 1 + number) for number, name in enumerate((MADE, *best))}
    times: dict[str, list[float]] = {name: [] for name in contestants}
    try:
        for number in range(rounds + 1):
            for name, ranks in contestants.items():
                took_s = max(ranks.ask("all_reduce", size))
                if number:  # the first round connects
                    times[name].append(took_s)
    finally:
        for ranks in contestants.values():
            ranks.stop()
    rows: list[dict[str, Any]] = [
        {"algorithm": name, "time_s": statistics.median(took), "predicted_s": predicted_s[name], "all_s": took}
        for name, took in times.items()
    ]
    for row in sorted(rows, key=lambda row: float(row["time_s"])):
        measured, predicted = 1e3 * row["time_s"], 1e3 * row["predicted_s"]
        print(f"{row['algorithm']:<22} {measured:8.0f} ms, predicted {predicted:8.0f} ms")
    return rows


if __name__ == "__main__":
    main()
