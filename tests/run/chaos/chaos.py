"""Jobs whose ranks are killed, stopped and resumed at random moments, that shrink and grow back all the while.

    python -m tests.run.chaos.chaos --events 10000 --seed 7 [--network [--loss 0.05] [--delay 50ms] [--ipv6]]
    python -m tests.run.chaos.chaos --events 1000 --launcher torchrun|mpirun|choreo

A job keeps some processes (`chaos_rank`). Those in the communicator reduce, check every sum, and shrink when a call
fails; while they are too few they admit new processes. The driver (`chaos_driver`) does something bad to a rank, again
and again, and starts a process for each that ends. It compares what ranks tell it: of one communicator, all must have
had the same results from the same contributors, and blame the same ranks when it fails. In the end all must stop when
told so, with nothing left in shared memory and no process; each rank looks after its own descriptors, mappings and
threads. Seed, events and what happened are printed. The seed decides what each event is; when ranks notice it is up to
the machine.

With `--network` the ranks are on several hosts, and the cables between those are pulled and put back as well
(`network`). With `--loss` and `--delay` these also lose packets, and delay them each way. With `--launcher` all of a
job's processes live under one (`launched`).
"""

from __future__ import annotations

import argparse
import collections
import functools
import gc
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from choreo.units import parse_time
from tests.helpers.network.hosts import Cables, why_no_hosts
from tests.helpers.network.relay import why_no_relay
from tests.helpers.ranks.fork_server import start_server
from tests.helpers.ranks.launchers import LAUNCHERS, find_launcher
from tests.run.chaos.driver import Chaos
from tests.run.chaos.launched import LaunchedChaos
from tests.run.chaos.network import PER_JOB as NETWORK_PER_JOB
from tests.run.chaos.network import NetworkChaos

PER_JOB = 150  # events, after which the next job begins


def run(
    events: int,
    seed: int,
    seconds: float = float("inf"),
    make: Callable[..., Chaos] = Chaos,
    per_job: int = PER_JOB,
    options: str = "",
) -> tuple[int, list[str], collections.Counter[str]]:
    """Chaos in one job after another; how many events there were, what was wrong, and a count of what happened."""
    began_s = time.monotonic()
    end_s = began_s + seconds
    done, counted = 0, collections.Counter[str]()
    wrong: list[str] = []
    while done < events and time.monotonic() < end_s and not wrong:
        job_seed, job_events = seed + counted["jobs"], min(events - done, per_job)
        chaos = make(job_seed)
        try:
            done += chaos.run(job_events, end_s)
        finally:
            chaos.stop()
        counted += chaos.counted
        counted["jobs"] += 1
        wrong = chaos.wrong
        if counted["jobs that lost everybody"] > events:
            wrong.append(f"more jobs lost everybody than there were events ({done}): the machine is too slow for this")
        if wrong:
            wrong.append(f"again: python -m tests.run.chaos.chaos{options} --seed {job_seed} --events {job_events}")
            print("\n".join(["what happened last:", *chaos.recent]))
        took_s, silence_s = time.monotonic() - began_s, chaos.longest_s
        print(f"{done} events in {counted['jobs']} jobs, {took_s:.0f} s; longest silence {silence_s:.1f} s", flush=True)
    return done, wrong, counted


def descriptors() -> int:
    """How many this process has open."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--network", action="store_true", help="on several hosts, between which cables are pulled")
    parser.add_argument("--loss", type=float, default=0.0, help="how many of all packets a cable loses, 0.05")
    parser.add_argument("--delay", type=parse_time, default=0.0, help="of a packet on a cable, 50ms")
    parser.add_argument("--ipv6", action="store_true", help="the hosts have addresses of IPv6")
    parser.add_argument("--launcher", choices=LAUNCHERS, help="what starts the ranks; without it the driver does")
    given = parser.parse_args()
    cables = Cables(given.loss, given.delay, given.ipv6)
    why_not = (given.network and why_no_hosts()) or (cables.is_lossy and why_no_relay())
    if cables != Cables() and not given.network:
        why_not = "--loss, --delay and --ipv6 are of the cables between hosts: give --network as well"
    if given.launcher and (given.network or find_launcher(given.launcher) is None):
        why_not = "--launcher is for one host" if given.network else f"there is no {given.launcher} here"
    if why_not:
        parser.error(why_not)
    seed = random.SystemRandom().randrange(1 << 30) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    began_s = time.monotonic()
    start_server()
    before = descriptors()
    if given.network:
        make: Callable[..., Chaos] = functools.partial(NetworkChaos, cables=cables)
        lossy = f" --loss {given.loss} --delay {given.delay}s" * cables.is_lossy
        options = " --network" + lossy + " --ipv6" * given.ipv6
        done, wrong, counted = run(given.events, seed, given.seconds, make, NETWORK_PER_JOB, options)
    elif given.launcher:
        make, options = functools.partial(LaunchedChaos, launcher=given.launcher), f" --launcher {given.launcher}"
        done, wrong, counted = run(given.events, seed, given.seconds, make, options=options)
    else:
        done, wrong, counted = run(given.events, seed, given.seconds)
    print(f"{done} events in {time.monotonic() - began_s:.0f} s: {dict(counted)}")
    if descriptors() > before:
        wrong.append(f"{descriptors() - before} descriptors of the driver are left open")
    print("\n".join(wrong) or "nothing hung, no result was wrong, nothing was left behind")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
