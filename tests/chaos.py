"""Jobs whose ranks are killed, stopped and resumed at random moments, that shrink and grow back all the while.

    python tests/chaos.py --events 10000 --seed 7

A job keeps some processes (`chaos_rank`). Those in the communicator reduce, check every sum, and shrink when a call
fails; while they are too few they let newcomers in. The driver does something bad to somebody, again and again, and
starts a process for each that ends. It compares what ranks tell it: of one communicator, all must have had the same
results from the same contributors, and blame the same ranks when it fails. In the end all must stop when told so, with
nothing left in shared memory and no process; each rank looks after its own descriptors, mappings and threads. Seed,
events and what happened are printed; the moments are the machine's own.

Another kind of event is a function of the driver and a pid, in `KINDS`; ranks that live elsewhere, as behind a network
that can be cut, are entered by `prepare`, which every process of a job calls first with the number of its place.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gc
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeAlias

from chaos_rank import Settings, life
from fault_helpers import CONTEXT, Pipe, eventually, segments, start_server

import choreo

HANG_S = 60.0  # after which somebody who is awake and says nothing hangs
PER_JOB = 150  # events, after which the next job begins
SPARE = 1  # processes that wait to be let in, so that somebody always comes at once
LOST_S = 5.0
PAUSE_S = 0.08
BRIEF_S, LONG_S = 0.1, 1.5


@dataclass
class Process:
    """One process of a job, as the driver sees it."""

    process: BaseProcess
    talk: Pipe
    place: int
    inside: bool = False  # in a communicator, and not on the way into one
    going: bool = False  # killed or told to leave: whatever it said before that, it will not carry on
    wakes_s: float | None = None  # stopped until then
    heard_s: float = field(default_factory=time.monotonic)


class Chaos:
    """The driver of one job."""

    def __init__(
        self, seed: int, settings: Settings | None = None, prepare: Callable[[int], None] | None = None
    ) -> None:
        self.random, self.settings, self._prepare = random.Random(seed), settings or Settings(), prepare
        settings = self.settings
        self.processes: dict[int, Process] = {}
        self.counted: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self._before = segments()
        self._told: dict[Any, tuple[int, Any]] = {}  # what -> who said it first, and what they said
        self._held = socket.socket()  # a port that is free for as long as this job runs: bound, but nobody listens
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", 0))
        start_server()
        for place in range(settings.ranks):
            self.start(place, rank=place)

    def run(self, events: int, end_s: float = float("inf")) -> int:
        """Make so many things happen, or as many as there is time for; how many that were."""
        # That all come to the first meeting is not what this is about.
        while sum(one.inside for one in self.processes.values()) < self.settings.ranks and not self.wrong:
            self.look(0.05)
        for _ in range(SPARE):
            self.start(self.random.randrange(self.settings.ranks))
        done, last_s = 0, time.monotonic()
        while done < events and time.monotonic() < end_s and not self.wrong:
            if self._event():
                done, last_s = done + 1, time.monotonic()
            elif time.monotonic() - last_s > LOST_S and not any(one.inside for one in self.processes.values()):
                self.counted["jobs that lost everybody"] += 1  # the last ones were stopped beyond their deadline
                break
            self.look(self.random.uniform(0.0, PAUSE_S))
        return done

    def stop(self) -> None:
        """Wake everybody, tell them to stop, and see that nothing is left."""
        for pid, one in self.processes.items():
            one.wakes_s = None
            self.signal(pid, signal.SIGCONT)
        end_s = time.monotonic() + HANG_S
        for one in self.processes.values():
            with contextlib.suppress(OSError):
                one.talk.send("stop")
        while self.processes and time.monotonic() < end_s and not self.wrong:
            self.look(0.05, replace=False)
        if self.processes and not self.wrong:
            self.wrong.append(f"pids {sorted(self.processes)} did not stop")
        for one in self.processes.values():
            one.process.kill()
            one.process.join()
            one.talk.close()
        self._held.close()
        choreo.init().close()  # what a killed rank had under a name is the next start's to remove
        # Others on this machine have names there for a moment.
        if not eventually(lambda: segments() <= self._before):
            self.wrong.append(f"left in shared memory: {sorted(segments() - self._before)}")

    # What kinds of events are made of

    def start(self, place: int, rank: int | None = None) -> None:
        """Start a process: a rank of the first meeting, or one who comes later."""
        mine, theirs = CONTEXT.Pipe()
        port = self._held.getsockname()[1]
        given = (self.settings, theirs, port, place, rank, self._prepare)
        process = CONTEXT.Process(target=life, args=given, daemon=True)
        process.start()
        theirs.close()
        self.processes[process.pid or 0] = Process(process, mine, place)

    def kill(self, pid: int) -> None:
        """End a process without a word."""
        self.processes[pid].going = True
        self.signal(pid, signal.SIGKILL)

    def signal(self, pid: int, number: int) -> None:
        """Send a signal, if there still is somebody to get it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def stopped(self, pid: int, seconds: float) -> None:
        """Stop a process for so long."""
        self.signal(pid, signal.SIGSTOP)
        self.processes[pid].wakes_s = time.monotonic() + seconds

    def awake(self, *, inside: bool) -> list[int]:
        """Those that are not stopped, in the communicator or on the way in."""
        there = {pid: one for pid, one in self.processes.items() if one.wakes_s is None and not one.going}
        return [pid for pid, one in there.items() if one.inside == inside]

    def look(self, seconds: float, *, replace: bool = True) -> None:
        """Hear what ranks say, wake whom it is time to wake, and start a process for each that ended."""
        end_s = time.monotonic() + seconds
        while True:
            for pid, one in list(self.processes.items()):
                if one.wakes_s is not None and one.wakes_s <= time.monotonic():
                    one.wakes_s, one.heard_s = None, time.monotonic()
                    one.inside = False  # perhaps: the others may have gone on without it
                    self.signal(pid, signal.SIGCONT)
                self._hear_all(pid, one, replace=replace)
                if one.wakes_s is None and time.monotonic() - one.heard_s > HANG_S:
                    self.signal(pid, signal.SIGUSR1)  # it says where it is
                    self.wrong.append(f"pid {pid} has said nothing for {HANG_S:.0f} s")
            left_s = end_s - time.monotonic()
            if left_s <= 0 or self.wrong:
                return
            time.sleep(min(0.01, left_s))

    # Inside

    def _event(self) -> bool:
        inside, outside = self.awake(inside=True), self.awake(inside=False)
        if len(inside) < 2:
            return False  # somebody has to be there to carry on
        kind = self.random.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
        pid = self.random.choice(outside if outside and self.random.random() < 0.1 else inside)
        self.counted[kind] += 1
        KINDS[kind][1](self, pid)
        return True

    def _hear_all(self, pid: int, one: Process, *, replace: bool) -> None:
        try:
            while one.talk.poll():
                one.heard_s = time.monotonic()
                self._hear(pid, one, *one.talk.recv())
        except (EOFError, OSError):
            del self.processes[pid]
            one.talk.close()
            one.process.join()
            if replace:
                self.start(one.place)
                self.counted["processes"] += 1

    def _hear(self, pid: int, one: Process, kind: str, about: Any, said: Any) -> None:
        self.counted[kind] += 1
        if kind in ("began", "joined", "same", "grown", "shrunk"):
            one.inside = True
        elif kind in ("excluded", "left"):
            one.inside = one.going = False
        elif kind == "wrong":
            self.wrong.append(f"pid {pid}: {said}")
        if about is not None:
            who, first = self._told.setdefault((kind, about), (pid, said))
            if first != said:
                self.wrong.append(f"{kind} {about}: pid {who} had {first}, pid {pid} {said}")
            if len(self._told) > 10_000:
                del self._told[next(iter(self._told))]


def _kill(chaos: Chaos, pid: int) -> None:
    chaos.kill(pid)


def _kill_two(chaos: Chaos, pid: int) -> None:
    """Two at the same moment; one stays."""
    others = [other for other in chaos.awake(inside=True) if other != pid]
    chaos.kill(pid)
    if len(others) > 1:
        chaos.kill(chaos.random.choice(others))


def _stop_briefly(chaos: Chaos, pid: int) -> None:
    chaos.stopped(pid, chaos.random.uniform(0, BRIEF_S))


def _stop_long(chaos: Chaos, pid: int) -> None:
    """Often beyond the deadline of a call, so that the others go on without it."""
    chaos.stopped(pid, chaos.random.uniform(0, LONG_S))


def _stop_and_kill(chaos: Chaos, pid: int) -> None:
    """Stopped somewhere, and killed there: whatever it was in the middle of stays so."""
    chaos.stopped(pid, 2 * BRIEF_S)
    chaos.look(chaos.random.uniform(0, BRIEF_S))
    if pid in chaos.processes:
        chaos.kill(pid)


def _leave(chaos: Chaos, pid: int) -> None:
    """Closes its communicator, and comes again."""
    with contextlib.suppress(OSError):
        chaos.processes[pid].talk.send("leave")
        chaos.processes[pid].going = True


Kind: TypeAlias = Callable[[Chaos, int], None]
KINDS: dict[str, tuple[int, Kind]] = {
    "kill": (40, _kill),
    "kill two": (5, _kill_two),
    "stop": (35, _stop_briefly),
    "stop long": (4, _stop_long),
    "stop and kill": (5, _stop_and_kill),
    "leave": (10, _leave),
}


def run(events: int, seed: int, seconds: float = float("inf"), **given: Any) -> tuple[int, list[str], dict[str, int]]:
    """Chaos in one job after another; how many events there were, what was wrong, and a count of what happened."""
    began_s = time.monotonic()
    end_s = began_s + seconds
    done, counted = 0, collections.Counter[str]()
    wrong: list[str] = []
    while done < events and time.monotonic() < end_s and not wrong:
        chaos = Chaos(seed + done, **given)
        try:
            done += chaos.run(min(events - done, PER_JOB), end_s)
        finally:
            chaos.stop()
        counted += chaos.counted
        counted["jobs"] += 1
        wrong = chaos.wrong
        print(f"{done} events in {counted['jobs']} jobs, {time.monotonic() - began_s:.0f} s", flush=True)
    return done, wrong, dict(counted)


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
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 30) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    began_s = time.monotonic()
    start_server()
    before = descriptors()
    done, wrong, counted = run(given.events, seed, given.seconds)
    print(f"{done} events in {time.monotonic() - began_s:.0f} s: {counted}")
    if descriptors() > before:
        wrong.append(f"{descriptors() - before} descriptors of the driver are left open")
    print("\n".join(wrong) or "nothing hung, no result was wrong, nothing was left behind")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
