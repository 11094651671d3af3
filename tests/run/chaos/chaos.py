"""Jobs whose ranks are killed, stopped and resumed at random moments, that shrink and grow back all the while.

    python -m tests.run.chaos.chaos --events 10000 --seed 7 [--network]

A job keeps some processes (`chaos_rank`). Those in the communicator reduce, check every sum, and shrink when a call
fails; while they are too few they admit new processes. The driver (`chaos_driver`) does something bad to a rank, again
and again, and starts a process for each that ends. It compares what ranks tell it: of one communicator, all must have
had the same results from the same contributors, and blame the same ranks when it fails. In the end all must stop when
told so, with nothing left in shared memory and no process; each rank looks after its own descriptors, mappings and
threads. Seed, events and what happened are printed. The seed decides what each event is; when ranks notice it is up to
the machine.

With `--network` the ranks are on several hosts, and the cables between those are pulled and put back as well
(`chaos_network`).
"""

from __future__ import annotations

import argparse
import collections
import gc
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.helpers.faults import start_server
from tests.helpers.hosts import why_no_hosts
from tests.run.chaos import network as chaos_network
from tests.run.chaos.driver import Chaos

PER_JOB = 150  # events, after which the next job begins


def run(
    events: int, seed: int, seconds: float = float("inf"), make: Callable[..., Chaos] = Chaos, per_job: int = PER_JOB
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
            option = " --network" if make is chaos_network.NetworkChaos else ""
            wrong.append(f"again: python -m tests.run.chaos.chaos{option} --seed {job_seed} --events {job_events}")
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
    given = parser.parse_args()
    if given.network and why_no_hosts():
        parser.error(why_no_hosts())
    seed = random.SystemRandom().randrange(1 << 30) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    began_s = time.monotonic()
    start_server()
    before = descriptors()
    if given.network:
        done, wrong, counted = run(given.events, seed, given.seconds, chaos_network.NetworkChaos, chaos_network.PER_JOB)
    else:
        done, wrong, counted = run(given.events, seed, given.seconds)
    print(f"{done} events in {time.monotonic() - began_s:.0f} s: {dict(counted)}")
    if descriptors() > before:
        wrong.append(f"{descriptors() - before} descriptors of the driver are left open")
    print("\n".join(wrong) or "nothing hung, no result was wrong, nothing was left behind")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
