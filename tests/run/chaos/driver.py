"""The driver of a job of `chaos`: it keeps processes, does something bad to them, and compares what they say.

Another kind of event is a function of the driver and a pid, in `KINDS`; ranks that live elsewhere are entered by
`prepare`, which every process of a job calls first with the number of its place.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any, TypeAlias

from tests.helpers.ranks.faults import Pipe, left_since, segments
from tests.helpers.ranks.fork_server import CONTEXT, start_server
from tests.run.chaos.rank import Settings, life

HANG_S = 60.0  # after which somebody who is awake and says nothing hangs
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
        self.seed, self.settings, self._prepare = seed, settings or Settings(), prepare
        self.random = random.Random(seed)
        self.kinds, self.pause_s, self.lost_s = dict(KINDS), PAUSE_S, LOST_S
        settings = self.settings
        self.processes: dict[int, Process] = {}
        self.counted: collections.Counter[str] = collections.Counter()
        self._last_s = time.monotonic()  # when something happened, or somebody was in the communicator
        self.longest_s = 0.0  # that somebody who was awake said nothing
        self.recent: collections.deque[str] = collections.deque(maxlen=60)  # what happened last, to be read by people
        self.wrong: list[str] = []
        self._before = segments()
        self._started = 0
        self._told: dict[Any, dict[int, tuple[int, Any]]] = {}  # what -> machine -> who said it first, and what
        self._held = socket.socket()  # a port that is free for as long as this job runs: bound, but nobody listens
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", 0))
        start_server()
        for place in range(settings.ranks):
            self.start(place, rank=place)

    def run(self, events: int, end_s: float = float("inf")) -> int:
        """Make so many things happen, or as many as there is time for; how many that were."""
        # First all ranks have joined, and had a result that can be compared. On a busy machine they may lose each other
        # before that, all by themselves.
        while self.counted["began"] < self.settings.ranks and not self.wrong:
            self.look(0.05)
        while self.counted["same"] < self.settings.ranks and not self.wrong:
            if self._lost_everybody():
                return 0
            self.look(0.05)
        for _ in range(SPARE):
            self.start(self.random.randrange(self.settings.ranks))
        done = 0
        while done < events and time.monotonic() < end_s and not self.wrong and not self._lost_everybody():
            # What an event is like depends on the seed and its number alone, however long the others took.
            self.random = random.Random(f"{self.seed} {done}")
            pause_s = self.random.uniform(0.0, self.pause_s)
            if self._event():
                done, self._last_s = done + 1, time.monotonic()
            self.look(pause_s)
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
            for pid in self.processes:
                self.signal(pid, signal.SIGUSR1)  # it says where it is
            time.sleep(0.5)
            self.wrong.append(f"pids {sorted(self.processes)} did not stop")
        for one in self.processes.values():
            one.process.kill()
            one.process.join()
            one.talk.close()
        self._held.close()
        left = left_since(self._before)
        if left:
            self.wrong.append(f"left in shared memory: {sorted(left)}")

    # What kinds of events are made of

    def start(self, place: int, rank: int | None = None) -> None:
        """Start a process: a rank of the rendezvous, or one that joins later."""
        process, talk = self.spawn(place, rank, f"{self.seed} {place} {self._started}")
        self._started += 1
        self.processes[process.pid or 0] = Process(process, talk, place)

    def spawn(self, place: int, rank: int | None, seed: str) -> tuple[BaseProcess, Pipe]:
        """A new process, and the pipe to it."""
        mine, theirs = CONTEXT.Pipe()
        given = (self.settings, theirs, self.port(), place, rank, self._prepare, seed)
        process = CONTEXT.Process(target=life, args=given, daemon=True)
        process.start()
        theirs.close()
        return process, mine

    def possible(self) -> dict[str, tuple[int, Kind]]:
        """The kinds of events that can happen now, and how often each does."""
        return self.kinds

    def port(self) -> int:
        """Where the ranks meet."""
        return int(self._held.getsockname()[1])

    def machine_of(self, place: int) -> int:
        """On which machine the processes of a place are."""
        del place
        return 0

    def kill(self, pid: int) -> None:
        """End a process without a word."""
        self.processes[pid].going = True
        self.note("killed", pid)
        self.signal(pid, signal.SIGKILL)

    def note(self, what: str, pid: int | None = None) -> None:
        """Keep for a while what happened."""
        who = "" if pid is None else f"pid {pid} on {self.machine_of(self.processes[pid].place)}: "
        self.recent.append(f"{time.monotonic():.3f} {who}{what}")

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
        return sorted((pid for pid, one in there.items() if one.inside == inside), key=lambda pid: there[pid].place)

    def victims(self) -> list[int]:
        """Whom something bad may happen to: somebody has to be there to carry on."""
        inside = self.awake(inside=True)
        return inside if len(inside) > 1 else []

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

    def _lost_everybody(self) -> bool:
        """Whether nobody is left who could let others in: the last ones were stopped beyond their deadline."""
        if any(one.inside for one in self.processes.values()):
            self._last_s = time.monotonic()
        if time.monotonic() - self._last_s <= self.lost_s:
            return False
        self.counted["jobs that lost everybody"] += 1
        return True

    def _event(self) -> bool:
        inside, outside = self.victims(), self.awake(inside=False)
        if not inside:
            return False
        kinds = self.possible()
        kind = self.random.choices(list(kinds), [weight for weight, _ in kinds.values()])[0]
        pid = self.random.choice(outside if outside and self.random.random() < 0.1 else inside)
        self.counted[kind] += 1
        self.note(kind, pid)
        kinds[kind][1](self, pid)
        return True

    def _hear_all(self, pid: int, one: Process, *, replace: bool) -> None:
        try:
            while one.talk.poll():
                if one.wakes_s is None:
                    self.longest_s = max(self.longest_s, time.monotonic() - one.heard_s)
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
        if kind != "same":
            self.note(f"{kind} {said}" if about is not None or kind == "wrong" else kind, pid)
        if kind in ("began", "joined", "same", "grown", "shrunk"):
            one.inside = True
        elif kind in ("excluded", "left"):
            one.inside = one.going = False
        elif kind == "wrong":
            self.wrong.append(f"pid {pid}: {said}")
        if about is not None:
            self._compare(pid, self.machine_of(one.place), (kind, about), said)

    def _compare(self, pid: int, machine: int, what: tuple[str, Any], said: Any) -> None:
        """With what was heard of the same from others."""
        told = self._told.setdefault(what, {})
        for other, (who, first) in told.items():
            if first != said:
                self.wrong.append(f"{what[0]} {what[1]}: pid {who} had {first}, pid {pid} {said}")
            elif other != machine:
                self.counted["compared across"] += 1
        told.setdefault(machine, (pid, said))
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
