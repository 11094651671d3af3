"""How fast collectives run over TCP between two network namespaces, sealed and plain, against Gloo in the same run.

    python benchmarks/network.py [--ranks 2,4] [--sizes 8,1K,...] [--rounds 5] [--peer-python PYTHON-WITH-TORCH] [--cpu]

float32 sums. The namespaces are joined by a veth pair; ranks are dealt out half and half, so with 4 two of a kind share
a machine. The libraries take turns, round after round; a time is the median of the rounds, a round's that of its
slowest rank. A ratio is how many times as long Gloo takes: 1 is as fast, more is better. Choreo runs twice: sealed, as
by default, and with --network plain, as Gloo always is. With --cpu a time is what all ranks spend on cores, which says
more on a busy machine. It needs root, and iproute2.
What was found goes to benchmarks/results/network.json.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from namespace_ranks import NamespaceRanks, delete_namespaces, ip

COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
SIZES = (8, 1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
RESULTS = Path(__file__).parent / "results" / "network.json"
ADDRESSES = ("10.78.0.1", "10.78.0.2")
# What is to be reached: times Gloo's throughput from this size on, and its latency below.
LARGE, TO_REACH, TO_REACH_SMALL = 1 << 20, 1.5, 1.0


@contextlib.contextmanager
def namespaces() -> Iterator[tuple[str, str]]:
    """Two machines with a cable between them."""
    names = (f"bench{os.getpid()}a", f"bench{os.getpid()}b")
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
        yield names
    finally:
        delete_namespaces(names)


def ranks_of(library: str, python: str, names: tuple[str, str], ranks: int, port: int, *, cpu: bool) -> NamespaceRanks:
    """The ranks that run one library, half of them on each machine."""
    network = {"CHOREO_NETWORK": "plain" if library == "plain" else "sealed", "GLOO_SOCKET_IFNAME": "eth0"}
    where = [names[2 * rank // ranks] for rank in range(ranks)]
    command = [python, __file__, "--worker", library, *(["--cpu"] if cpu else [])]
    return NamespaceRanks(where, command, ADDRESSES[0], port, network)


def work(library: str, *, cpu: bool) -> None:
    """A rank: time what comes in, one line each."""
    clock = time.process_time if cpu else time.perf_counter
    call_of = gloo_calls() if library == "gloo" else choreo_calls()
    for line in sys.stdin:
        collective, size_bytes, iterations = json.loads(line)
        call = call_of(collective, size_bytes)
        call()
        call_of("barrier", 0)()
        began = clock()
        for _ in range(iterations):
            call()
        print((clock() - began) / iterations, flush=True)


def choreo_calls() -> Callable[[str, int], Callable[[], object]]:
    """What Choreo runs; a size is what nccl-tests means: the larger of what goes in and what comes out."""
    import numpy as np

    import choreo

    comm = choreo.init()

    def call_of(collective: str, size_bytes: int) -> Callable[[], object]:
        count = max(1, size_bytes // 4)
        part = max(1, count // comm.world_size)
        whole, mine = np.zeros(part * comm.world_size, np.float32), np.zeros(part, np.float32)
        x = np.zeros(count, np.float32)
        gathered = np.zeros((comm.world_size, part), np.float32)
        calls: dict[str, Callable[[], object]] = {
            "barrier": comm.barrier,
            "all_reduce": lambda: comm.all_reduce(x),
            "broadcast": lambda: comm.broadcast(x),
            "all_gather": lambda: comm.all_gather(mine, out=gathered),
            "reduce_scatter": lambda: comm.reduce_scatter(whole, out=mine),
        }
        return calls[collective]

    return call_of


def gloo_calls() -> Callable[[str, int], Callable[[], object]]:
    """What Gloo runs."""
    torch, dist = (importlib.import_module(name) for name in ("torch", "torch.distributed"))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

    def call_of(collective: str, size_bytes: int) -> Callable[[], object]:
        count = max(1, size_bytes // 4)
        part = max(1, count // ranks)
        x, whole, mine = torch.zeros(count), torch.zeros(part * ranks), torch.zeros(part)
        calls: dict[str, Callable[[], object]] = {
            "barrier": dist.barrier,
            "all_reduce": lambda: dist.all_reduce(x),
            "broadcast": lambda: dist.broadcast(x, 0),
            "all_gather": lambda: gather(whole, mine),
            "reduce_scatter": lambda: scatter(mine, whole),
        }
        return calls[collective]

    return call_of


def race(  # noqa: PLR0917 - called once
    names: tuple[str, str],
    ranks: int,
    collectives: tuple[str, ...],
    sizes: tuple[int, ...],
    rounds: int,
    peer: str,
    *,
    cpu: bool,
) -> list[dict[str, Any]]:
    """All cells for one number of ranks, printed as they come."""
    contestants = {
        "sealed": ranks_of("sealed", sys.executable, names, ranks, 29_800 + ranks, cpu=cpu),
        "plain": ranks_of("plain", sys.executable, names, ranks, 29_850 + ranks, cpu=cpu),
        "gloo": ranks_of("gloo", peer, names, ranks, 29_900 + ranks, cpu=cpu),
    }
    found = []
    try:
        for collective in collectives:
            for size in sizes:
                iterations = max(3, min(300, (64 << 20) // max(size, 64 << 10) // (3 if size >= LARGE else 1)))
                times: dict[str, list[float]] = {name: [] for name in contestants}
                for _ in range(rounds):
                    for name, one in contestants.items():
                        times[name].append((sum if cpu else max)(one.ask(collective, size, iterations)))
                sealed, plain, theirs = (statistics.median(times[name]) for name in ("sealed", "plain", "gloo"))
                row = {"collective": collective, "ranks": ranks, "size_bytes": size, "time_us": sealed * 1e6}
                row |= {"plain_us": plain * 1e6, "gloo_us": theirs * 1e6}
                found.append(row | {"ratio": theirs / sealed, "plain_ratio": theirs / plain})
                reached = min(theirs / sealed, theirs / plain) >= (TO_REACH if size >= LARGE else TO_REACH_SMALL)
                both = f"sealed {sealed * 1e6:>9.1f} us {theirs / sealed:>6.2f} x, plain {plain * 1e6:>9.1f} us"
                both += f" {theirs / plain:>6.2f} x, Gloo {theirs * 1e6:>9.1f} us"
                print(
                    f"{collective:>15} {ranks:>2} ranks {size:>10} B {both}{'' if reached else '  short'}", flush=True
                )
    finally:
        for one in contestants.values():
            one.stop()
    return found


def main() -> None:
    """Measure, print, and keep what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--collectives", default=",".join(COLLECTIVES))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--cpu", action="store_true", help="compare the time that all ranks spend on cores")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.worker, cpu=given.cpu)
        return
    sizes = tuple(_size(text) for text in given.sizes.split(","))
    rows = []
    with namespaces() as names:
        for ranks in map(int, given.ranks.split(",")):
            chosen = tuple(given.collectives.split(","))
            rows += race(names, ranks, chosen, sizes, given.rounds, given.peer_python, cpu=given.cpu)
    for which, column in (("sealed", "ratio"), ("plain", "plain_ratio")):
        for name, large in (("from 1 MiB up", True), ("below", False)):
            ratios = [row[column] for row in rows if (row["size_bytes"] >= LARGE) == large]
            if ratios:
                mean = statistics.geometric_mean(ratios)
                print(f"{which}, times Gloo {name}: {mean:.2f} in the mean, {min(ratios):.2f} at worst")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"benchmark": "network", "results": rows}, indent=1) + "\n")


def _size(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


if __name__ == "__main__":
    main()
