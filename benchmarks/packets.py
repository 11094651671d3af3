"""How fast the packet simulator is, in how much memory, and whether htsim finds the same times.

    python benchmarks/packets.py [--htsim DIRECTORY]

Every case runs in a process of its own and is timed inside it, after imports: user time of one core to make the
topology and the schedule and to simulate them; memory is that process's peak. `--htsim` gives the `sim` folder of
Broadcom/csg-htsim, after `make` there and in `sim/datacenter`: incasts over lossless RoCE are then timed beside its
`htsim_roce`, bursts that meet at a drop-tail queue lose packets here and there, and two switches pause their senders
and each other. What was found goes to benchmarks/results/packets.json.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "packets.json"


@dataclass(frozen=True)
class Case:
    """What runs where, and what is to be reached: user seconds, or events a second."""

    name: str
    collective: str
    algorithm: str
    topology: str
    size: str
    target_s: float | None = None
    target_events: float | None = None
    packets: dict[str, Any] = field(default_factory=dict)


# Senders, packets of each, and room for how many.
BURSTS = [(2, 64, 32), (2, 96, 64), (4, 20, 32), (4, 40, 64), (8, 16, 64), (8, 36, 128), (16, 8, 64), (16, 16, 128)]
DROP_TAIL: dict[str, Any] = {
    "lossless": False,
    "threshold": 1024,
    "recovery": "selective_repeat",
    "window_bytes": "64MiB",
}
# Senders at the first switch and at the second, packets of each, and how many of one link a switch takes without pause.
INCASTS = [(2, 0, 64, 16), (4, 0, 64, 16), (8, 0, 64, 16), (16, 0, 64, 32)]
INCASTS += [(3, 1, 64, 16), (4, 4, 64, 16), (8, 2, 100, 32), (8, 8, 100, 32), (16, 4, 64, 64)]
TREE = "fat_tree(16x8, 50GB/s, 500ns, spines=16)"
SWITCH = "switch(128, 50GB/s, 500ns)"
CASES = [
    Case("ring, 1024 ranks of one switch, 1 MiB", "all_reduce", "ring", "switch(1024, 50GB/s, 500ns)", "1MiB", 2.0),
    Case("all_to_all, 128 ranks of one switch, 64 MiB", "all_to_all", "direct", SWITCH, "64MiB", 10.0),
    Case("all_to_all, 128 ranks of a fat tree, 64 MiB", "all_to_all", "direct", TREE, "64MiB", 10.0),
    Case("the same, sprayed", "all_to_all", "direct", TREE, "64MiB", 10.0, packets={"routing": "spray"}),
    Case("all_to_all, 32 MiB, acknowledged", "all_to_all", "direct", TREE, "32MiB", None, 5e6, {"acknowledge": True}),
    Case("ring, 64 MiB, acknowledged", "all_reduce", "ring", TREE, "64MiB", None, 5e6, {"acknowledge": True}),
    Case("ring, 64 MiB, lossy", "all_reduce", "ring", TREE, "64MiB", None, 5e6, {"lossless": False}),
    Case("all_to_all, 8 MiB, 1 MiB of buffer, lossy", "all_to_all", "direct", TREE, "8MiB", None, 5e6,
         {"lossless": False, "buffer_bytes": "1MiB"}),
]  # fmt: skip


def measure(case: Case) -> dict[str, float]:
    """User seconds, events a second and peak megabytes of one case, in this process."""
    from choreo import Packets, build, get_topology, simulate

    settings = Packets(**case.packets)
    simulate(build(case.collective, case.algorithm, 4), "switch(4)", 8, packets=settings)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    topology = get_topology(case.topology)
    found = simulate(
        build(case.collective, case.algorithm, topology.num_devices), topology, case.size, packets=settings
    )
    usage = resource.getrusage(resource.RUSAGE_SELF)
    assert found.packets is not None
    took = usage.ru_utime - before
    return {
        "user_s": took,
        "events": found.packets.events,
        "events_per_s": found.packets.events / took,
        "peak_mb": usage.ru_maxrss * 1024 / 1e6,
        "most_packets_in_flight": found.packets.most_packets_in_flight,
        "simulated_s": found.time_s,
    }


def in_own_process(index: int) -> dict[str, float]:
    """The faster of two runs, each in a process of its own."""
    command = [sys.executable, __file__, "--case", str(index)]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(2)]
    return min(runs, key=lambda run: float(run["user_s"]))


def incasts(folder: Path) -> list[dict[str, Any]]:
    """Incasts here and in htsim: time until the last flow is done, and what both take to find it.

    There the network is a fat tree of three levels, packets have headers of 64 bytes, and a flow is done when its
    sender hears of it: all that is within a few percent.
    """
    from choreo import Packets, build, simulate

    rate, latency_us, size, mtu, nodes = 50e9, 0.5, 2_000_000, 4096, 16
    print(f"\n{'incast of 2 MB each':<34}{'choreo':>12}{'htsim':>12}{'ratio':>8}{'choreo':>10}{'htsim':>10}")
    found = []
    for senders in (2, 4, 8, 15):
        with tempfile.TemporaryDirectory() as where:
            matrix = Path(where) / "incast.cm"
            lines = [f"Nodes {nodes}", f"Connections {senders}"]
            lines += [f"{src}->0 id {src} start 0 size {size}" for src in range(1, senders + 1)]
            matrix.write_text("\n".join(lines) + "\n")
            command = [str(folder / "datacenter" / "htsim_roce"), "-tm", str(matrix), "-nodes", str(nodes)]
            command += ["-mtu", str(mtu), "-linkspeed", str(int(rate * 8 / 1e6)), "-hop_latency", str(latency_us)]
            command += ["-strat", "ecmp_host", "-paths", "8", "-q", "1000", "-end", "10000", "-o", f"{where}/log"]
            begin = time.perf_counter()
            said = subprocess.run(command, check=True, capture_output=True, text=True, cwd=where).stdout
            theirs_took = time.perf_counter() - begin
        theirs = max(float(one) for one in re.findall(r"finished at ([0-9.]+)", said))
        begin = time.perf_counter()
        run = simulate(
            build("reduce", "linear", senders + 1), f"switch({nodes}, 50GB/s, {latency_us}us)", size,
            packets=Packets(mtu_bytes=mtu),
        )  # fmt: skip
        took = time.perf_counter() - begin
        ours = run.time_s * 1e6
        print(
            f"{senders:>3} senders{'':<23}{ours:>9.1f} us{theirs:>9.1f} us{ours / theirs:>8.3f}{took:>8.2f} s"
            f"{theirs_took:>8.2f} s"
        )
        times = {"choreo_us": ours, "htsim_us": theirs, "choreo_s": took, "htsim_s": theirs_took}
        found.append({"senders": senders, **times})
    return found


def drop_tail(folder: Path) -> list[dict[str, Any]]:
    """Bursts that meet at a port of a drop-tail queue: what is dropped here and in htsim.

    There nobody answers, so each packet is sent once. Here what was lost is sent again after 200 us, when the queue is
    empty; the bursts are short enough that all of it then fits, so that the drops are those of the first time.
    """
    from choreo import Job, Packets, build, simulate_together

    print(f"\n{'bursts at a drop-tail queue':<40}{'sent':>6}{'choreo':>9}{'htsim':>8}{'flows that end there':>24}")
    found = []
    pair = build("broadcast", "linear", 2)
    with tempfile.TemporaryDirectory() as where:
        program = built("htsim_drop_tail", folder, where)
        for senders, count, room in BURSTS:
            asked = [program, str(senders), str(count), str(room)]
            theirs, ends = (
                subprocess.run([*asked, *more], check=True, capture_output=True, text=True).stdout.split()
                for more in ([], ["closed"])
            )
            jobs = [Job(pair, count * 4096, [sender + 1, 0], sender * 7e-9) for sender in range(senders)]
            settings = Packets(buffer_bytes=room * 4096, **DROP_TAIL)
            report = simulate_together(jobs, f"switch({senders + 1}, 50GB/s, 50us)", packets=settings).packets
            assert report is not None
            name = f"{senders:>3} of {count} packets, room for {room}"
            print(f"{name:<40}{senders * count:>6}{report.drops:>9}{theirs[0]:>8}{f'{ends[1]} of {senders}':>24}")
            drops = {"choreo": report.drops, "htsim": int(theirs[0])}
            found.append({"senders": senders, "packets": count, "room": room, **drops})
    return found


def built(name: str, folder: Path, where: str) -> str:
    """The path of a program that was made of a source beside this file and of htsim."""
    program = Path(where) / name
    command = ["c++", "-O2", "-std=c++17", "-w", "-I", str(folder), str(Path(__file__).parent / f"{name}.cpp")]
    subprocess.run([*command, "-o", str(program), str(folder / "libhtsim.a")], check=True)
    return str(program)


def pauses(folder: Path) -> list[dict[str, Any]]:
    """Two switches, a trunk between them, and a port that all send to: who is paused how often, here and in htsim.

    There thresholds are fixed, so memory is without end here and one port may take a small part of it. A pause takes
    the link's latency, with no frame to send.
    """
    from choreo import Job, Packets, build, simulate_together
    from choreo.topology import Links, compose, graph

    print(f"\n{'':<44}{'all':>19}{'the bystander':>21}{'pauses':>9}{'of the trunk':>14}")
    print(f"{'incast over two switches':<44}{'choreo':>10}{'htsim':>9}{'choreo':>12}{'htsim':>9}")
    found, pair = [], build("broadcast", "linear", 2)
    with tempfile.TemporaryDirectory() as where:
        program = built("htsim_pfc", folder, where)
        for senders, near, count, room in INCASTS:
            high, below, count_all = room * 4096 + 2048, 3072, senders + 1 + near  # with the bystander
            asked = map(str, (senders, near, count, high, high - below))
            said = subprocess.run([program, *asked], check=True, capture_output=True, text=True).stdout.split()
            receiver, aside, first, second = range(count_all, count_all + 4)
            src = [*range(count_all), first, second, second]
            dst = [first] * (senders + 1) + [second] * near + [second, receiver, aside]
            network = compose("two switches", [graph(first, Links.uniform(src, dst, 50e9, 500e-9), 2)])
            ends = [aside if sender == senders else receiver for sender in range(count_all)]
            jobs = [Job(pair, count * 4096, [sender, end], sender * 7e-9) for sender, end in enumerate(ends)]
            settings = Packets(
                buffer_bytes=1 << 40, threshold=high / (1 << 40), resume_below_bytes=below, answer_bytes=0
            )
            run = simulate_together(jobs, network, packets=settings)
            assert run.packets is not None
            ours = [run.time_s * 1e6, float(run.loads.rank_finish_s[senders].max()) * 1e6]
            ours.append(sum(port.pauses for port in run.packets.ports if port.link < count_all))
            ours.append(sum(port.pauses for port in run.packets.ports if port.link == count_all))
            theirs = [float(one) for one in said]
            name = f"{senders:>3} and {near} of {count} packets, pause at {room}"
            times = f"{ours[0]:>10.1f}{theirs[0]:>9.1f}{ours[1]:>12.1f}{theirs[1]:>9.1f}"
            kept = [f"{here:.0f} {there:.0f}" for here, there in zip(ours[2:], theirs[2:], strict=True)]
            print(f"{name:<44}{times}{kept[0]:>9}{kept[1]:>14}")
            found.append({"senders": senders, "near": near, "packets": count, "choreo": ours, "htsim": theirs})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--htsim", type=Path, metavar="DIRECTORY", help="the sim folder of csg-htsim, built")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.case is not None:
        print(json.dumps(measure(CASES[asked.case])))
        return
    print(f"{'':<46}{'user':>9}{'to reach':>10}{'events':>9}{'a second':>11}{'to reach':>10}{'peak':>9}")
    found: list[dict[str, Any]] = []
    for index, case in enumerate(CASES):
        run = in_own_process(index)
        seconds = f"{case.target_s:g} s" if case.target_s else ""
        rate = f"{case.target_events / 1e6:g} M" if case.target_events else ""
        missed = (case.target_s is not None and run["user_s"] > case.target_s) or (
            case.target_events is not None and run["events_per_s"] < case.target_events
        )
        print(
            f"{case.name:<46}{run['user_s']:>7.2f} s{seconds:>10}{run['events'] / 1e6:>7.1f} M"
            f"{run['events_per_s'] / 1e6:>9.2f} M{rate:>10}{run['peak_mb']:>6.0f} MB{'  missed' if missed else ''}",
            flush=True,
        )
        found.append({**asdict(case), **run})
    beside = {one.__name__: one(asked.htsim) for one in (incasts, drop_tail, pauses)} if asked.htsim else {}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"cases": found, "htsim": beside}, indent=2) + "\n")


if __name__ == "__main__":
    main()
