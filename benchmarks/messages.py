"""How fast messages go between processes of this machine: `send` and `recv` of Choreo and of Gloo, in the same run.

    python benchmarks/messages.py [--ranks 2,4] [--most 64M] [--rounds 7] [--quick] [--cpu]

Ping-pong: pairs of neighbours send one message back and forth with blocking calls, all pairs at once; the time is that
of one way. Batch: each rank posts eight receives from its left neighbour and eight sends to its right one, as a
pipeline's stages do, and waits for all. Every rank holds both libraries, which take turns, round after round. A round's
time is its slowest rank's; a cell is the median of its rounds. A ratio is how many times as long Gloo takes: 1 is as
fast, more is better. With --cpu a time is what the threads of a rank spend on cores, which says more where others keep
the machine busy. Needs torch. What was found goes to benchmarks/results/messages.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from choreo.bench.result import geometric_mean
from choreo.bench.sizes import sizes_between
from choreo.units import parse_rank_range, parse_size

RESULTS = Path(__file__).parent / "results" / "messages.json"
BATCH = 8
ROUND_S = 0.02  # a round repeats what it times for about this long
TAG = 3
Clock = Callable[[], float]
LIBRARIES = ("choreo", "gloo")
PATTERNS = ("ping-pong", "batch")


class Choreo:
    """Choreo's calls, on tensors."""

    def __init__(self, _: str) -> None:
        import choreo

        self.comm = choreo.init()

    def send(self, x: Any, rank: int) -> None:
        self.comm.send(x, rank, TAG)

    def recv(self, x: Any, rank: int) -> None:
        self.comm.recv(x, rank, TAG)

    def isend(self, x: Any, rank: int) -> Any:
        return self.comm.isend(x, rank, TAG)

    def irecv(self, x: Any, rank: int) -> Any:
        return self.comm.irecv(x, rank, TAG)


class Gloo:
    """Gloo's calls, through torch.distributed."""

    def __init__(self, path: str) -> None:
        import torch.distributed as dist

        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", store=dist.FileStore(path, size), rank=rank, world_size=size)
        self.dist = dist

    def send(self, x: Any, rank: int) -> None:
        self.dist.send(x, rank, tag=TAG)

    def recv(self, x: Any, rank: int) -> None:
        self.dist.recv(x, rank, tag=TAG)

    def isend(self, x: Any, rank: int) -> Any:
        return self.dist.isend(x, rank, tag=TAG)

    def irecv(self, x: Any, rank: int) -> Any:
        return self.dist.irecv(x, rank, tag=TAG)


def ping_pong(
    library: Any, given: list[Any], into: list[Any], *, rank: int, size: int, times: int, clock: Clock
) -> float:
    """Seconds of one way."""
    peer = rank ^ 1
    if peer >= size:
        return 0.0
    began = clock()
    for _ in range(times):
        if rank % 2 == 0:
            library.send(given[0], peer)
            library.recv(into[0], peer)
        else:
            library.recv(into[0], peer)
            library.send(given[0], peer)
    return (clock() - began) / times / 2


def batch(library: Any, given: list[Any], into: list[Any], *, rank: int, size: int, times: int, clock: Clock) -> float:
    """Seconds of one batch."""
    right, left = (rank + 1) % size, (rank - 1) % size
    began = clock()
    for _ in range(times):
        work = [library.irecv(one, left) for one in into]
        work += [library.isend(one, right) for one in given]
        for one in work:
            one.wait()
    return (clock() - began) / times


def serve(rank: int, size: int, pipe: Pipe, environment: dict[str, str], path: str) -> None:
    """A rank: time what comes through the pipe."""
    import torch

    os.environ.update(environment, RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    made = {"choreo": Choreo(path), "gloo": Gloo(path)}
    patterns: dict[str, Callable[..., float]] = {"ping-pong": ping_pong, "batch": batch}
    arrays: tuple[int, list[Any], list[Any]] = (-1, [], [])
    while (asked := pipe.recv()) is not None:
        name, pattern, length, times, cpu = asked
        clock = time.process_time if cpu else time.perf_counter
        if arrays[0] != length:
            given = [torch.full((length,), (rank + 7 * number) % 251, dtype=torch.uint8) for number in range(BATCH)]
            arrays = (length, given, [torch.zeros(length, dtype=torch.uint8) for _ in range(BATCH)])
        for one in arrays[2]:
            one.zero_()
        seconds = patterns[pattern](made[name], *arrays[1:], rank=rank, size=size, times=times, clock=clock)
        peer = (rank ^ 1) if pattern == "ping-pong" else (rank - 1) % size
        checked = arrays[2][:1] if pattern == "ping-pong" else arrays[2]
        right = all(bool((one == (peer + 7 * number) % 251).all()) for number, one in enumerate(checked))
        pipe.send((seconds, right or peer >= size))


def measure(pipes: list[Pipe], pattern: str, length: int, *, rounds: int, cpu: bool) -> dict[str, float]:
    """The median time of each library."""

    def run(name: str, times: int) -> float:
        for pipe in pipes:
            pipe.send((name, pattern, length, times, cpu))
        answers = [pipe.recv() for pipe in pipes]
        if not all(right for _, right in answers):
            raise SystemExit(f"{name}: {pattern} of {length} bytes delivered something else")
        return float(max(seconds for seconds, _ in answers))

    ways = 2 if pattern == "ping-pong" else 1
    times = {name: max(2, int(ROUND_S / max(run(name, 3) * ways, 1e-6))) for name in LIBRARIES}
    found: dict[str, list[float]] = {name: [] for name in LIBRARIES}
    for number in range(rounds):
        for name in LIBRARIES if number % 2 else LIBRARIES[::-1]:
            found[name].append(run(name, times[name]))
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def race(size: int, lengths: tuple[int, ...], *, rounds: int, cpu: bool) -> list[dict[str, Any]]:
    """All cells with this many ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    context, rows = mp.get_context("fork"), []
    with tempfile.TemporaryDirectory() as folder:
        pairs = [context.Pipe() for _ in range(size)]
        path = str(Path(folder) / "store")
        ranks = [
            context.Process(target=serve, args=(rank, size, far, environment, path), daemon=True)
            for rank, (_, far) in enumerate(pairs)
        ]
        for one in ranks:
            one.start()
        pipes = [near for near, _ in pairs]
        for pattern in PATTERNS:
            for length in lengths:
                times = measure(pipes, pattern, length, rounds=rounds, cpu=cpu)
                ratio = times["gloo"] / times["choreo"]
                row = {"pattern": pattern, "ranks": size, "size_bytes": length, "ratio": ratio}
                rows.append(row | {f"{name}_us": seconds * 1e6 for name, seconds in times.items()})
                print(
                    f"{pattern:<10}{size:>3} ranks{length:>11} B{times['choreo'] * 1e6:>12.1f} us"
                    f"{times['gloo'] * 1e6:>12.1f} us{ratio:>8.2f}x{'' if ratio >= 1 else '  missed'}",
                    flush=True,
                )
        for pipe in pipes:
            pipe.send(None)
        for one in ranks:
            one.join(10.0)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="every second size, and fewer rounds")
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks")
    parser.add_argument("--most", default="64M", help="the largest size; M is MiB")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cpu", action="store_true", help="time on cores rather than on the clock")
    arguments = parser.parse_args()
    import torch.distributed  # noqa: F401 - once, before the ranks are forked

    load_before = os.getloadavg()[0]
    lengths = sizes_between(8, parse_size(arguments.most), factor=16 if arguments.quick else 4)
    print(f"{'':<30}{'choreo':>15}{'gloo':>15}")
    rows: list[dict[str, Any]] = []
    for size in parse_rank_range(arguments.ranks):
        rows += race(size, lengths, rounds=3 if arguments.quick else arguments.rounds, cpu=arguments.cpu)
    for pattern in PATTERNS:
        ratios = [float(row["ratio"]) for row in rows if row["pattern"] == pattern]
        print(f"{pattern}: Gloo takes {geometric_mean(ratios):.2f} times as long; the worst cell is {min(ratios):.2f}")
    print(f"load average before: {load_before:.1f}, after: {os.getloadavg()[0]:.1f}, cores: {os.cpu_count()}")
    RESULTS.parent.mkdir(exist_ok=True)
    document = {"load_average": load_before, "cpu": arguments.cpu, "cores": os.cpu_count(), "cells": rows}
    RESULTS.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
