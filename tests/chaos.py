"""Jobs whose ranks are killed, stopped and resumed at random moments, that shrink and grow back all the while.

    python tests/chaos.py --events 10000 --seed 7

A job keeps RANKS processes. Those in the communicator reduce, check every sum, and shrink when a call fails; while they
are too few they let newcomers in. The driver does something bad to somebody, again and again, and starts a process for
each that ends. In the end all must stop when told so, with nothing left in shared memory, no process, and as many open
files as in the beginning. Seed, events and what happened are printed; the moments are the machine's own.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from fault_helpers import CONTEXT, Pipe, PipeMeeting, eventually, segments

from choreo.errors import ChoreoError, CommunicatorClosed, JoinError, PeerFailure
from choreo.run.calibration import default_constants
from choreo.run.choice import Chooser
from choreo.run.communicator import Communicator
from choreo.run.connection import connect
from choreo.run.control import join

RANKS = 4
CALL_S, SHRINK_S, GROW_S = 3.0, 8.0, 3.0
STOPPED_BRIEFLY_S, STOPPED_LONG_S = 0.2, 6.0
HANG_S = 120.0
SECRET = b"what only this chaos knows"
SIZES = (1, 7, 3000, 200_000, 700_000)


class Chaos:
    """The driver of one job."""

    def __init__(self, seed: int, log: Any = sys.stdout) -> None:
        self.random, self.log = random.Random(seed), log
        self.name = f"chaos-{os.getpid()}-{seed}"
        self.before = segments()
        self.members: dict[int, tuple[Any, Pipe]] = {}
        self.inside: set[int] = set()  # of these, who is in the communicator, and not on the way in
        self.asleep: dict[int, float] = {}  # pid -> when it is to wake
        self.counted: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self.heard_s = time.monotonic()
        pairs = [CONTEXT.Pipe() for _ in range(RANKS - 1)]
        for rank in range(RANKS):
            pipes = [mine for mine, _ in pairs] if rank == 0 else [pairs[rank - 1][1]]
            self._start(rank, pipes)
        for pair in pairs:
            for pipe in pair:
                pipe.close()

    def run(self, events: int, seconds: float = float("inf")) -> int:
        """Make so many things happen, or as many as there is time for; how many that were."""
        # How a job starts is not what this is about, nor does a rank that dies in a meeting over pipes say much.
        while self.counted["began"] < RANKS and not self.wrong:
            self._look(0.1)
        end_s, done = time.monotonic() + seconds, 0
        while done < events and time.monotonic() < end_s and not self.wrong:
            done += self._event()
            self._look(self.random.uniform(0.0, 0.15))
        return done

    def stop(self) -> None:
        """Wake everybody, tell them to stop, and see that nothing is left."""
        for pid in list(self.asleep):
            self._signal(pid, signal.SIGCONT)
        self.asleep.clear()
        end_s = time.monotonic() + HANG_S
        while self.members and time.monotonic() < end_s:
            for _, talk in self.members.values():
                with contextlib.suppress(OSError):
                    talk.send("stop")
            self._look(0.3, replace=False)
        if self.members:
            self.wrong.append(f"pids {sorted(self.members)} did not stop")
        for process, _ in self.members.values():
            process.kill()
        if not eventually(lambda: segments() <= self.before, 10.0):
            # What a killed rank had under a name is the next start's to remove; here there is none.
            from choreo.run.segment import remove_stale

            remove_stale()
        if not segments() <= self.before:
            self.wrong.append(f"left in shared memory: {sorted(segments() - self.before)}")

    def _event(self) -> bool:
        kind = self.random.choices(("kill", "stop", "stop long"), (6, 5, 1))[0]
        inside = [pid for pid in self.members if pid in self.inside and pid not in self.asleep]
        outside = [pid for pid in self.members if pid not in self.inside and pid not in self.asleep]
        pids = outside if outside and self.random.random() < 0.1 else inside
        if len(inside) < 2:
            return False  # somebody has to be there to carry on
        pid = self.random.choice(pids)
        self.counted[kind] += 1
        if kind == "kill":
            self._signal(pid, signal.SIGKILL)
            return True
        self._signal(pid, signal.SIGSTOP)
        longest = STOPPED_LONG_S if kind == "stop long" else STOPPED_BRIEFLY_S
        self.asleep[pid] = time.monotonic() + self.random.uniform(0, longest)
        return True

    def _look(self, seconds: float, *, replace: bool = True) -> None:
        """Hear what ranks say, wake whom it is time to wake, and start a process for each that ended."""
        end_s = time.monotonic() + seconds
        while True:
            for pid, wakes_s in list(self.asleep.items()):
                if wakes_s <= time.monotonic():
                    del self.asleep[pid]
                    self._signal(pid, signal.SIGCONT)
            for pid, (process, talk) in list(self.members.items()):
                try:
                    while talk.poll():
                        self._hear(pid, talk.recv())
                except (EOFError, OSError):
                    del self.members[pid]
                    self.inside.discard(pid)
                    self.asleep.pop(pid, None)
                    talk.close()
                    process.join()
                    if replace:
                        self._start()
            if time.monotonic() - self.heard_s > HANG_S:
                self.wrong.append(f"nobody has said anything for {HANG_S:.0f} s")
                return
            if time.monotonic() >= end_s:
                return
            time.sleep(0.01)

    def _hear(self, pid: int, said: tuple[str, str]) -> None:
        kind, story = said
        self.heard_s = time.monotonic()
        self.counted[kind] += 1
        if kind in ("began", "joined"):
            self.inside.add(pid)
        if kind == "wrong":
            self.wrong.append(f"pid {pid}: {story}")

    def _start(self, rank: int | None = None, pipes: list[Pipe] | None = None) -> None:
        mine, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=_life, args=(self.name, theirs, rank, pipes), daemon=True)
        process.start()
        theirs.close()
        self.members[process.pid or 0] = (process, mine)
        if rank is None:
            self.counted["started again"] += 1

    @staticmethod
    def _signal(pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _life(name: str, talk: Pipe, rank: int | None, pipes: list[Pipe] | None) -> None:
    """A rank, from its coming to its end."""
    try:
        comm = _first(talk, rank, pipes) if rank is not None and pipes is not None else _join(name, talk)
        if comm is not None:
            _work(comm, name, talk)
    except CommunicatorClosed as error:
        talk.send(("excluded", str(error)))
    except BaseException as error:  # whatever it is, the driver must hear of it
        import traceback

        talk.send(("wrong", f"{error!r}\n{traceback.format_exc()}"))


def _first(talk: Pipe, rank: int, pipes: list[Pipe]) -> Communicator:
    connection = connect(PipeMeeting(rank, RANKS, pipes), f"chaos{os.getppid()}", "here", 60.0)
    comm = Communicator(connection, Chooser(RANKS, default_constants(), {}))
    comm.timeout_s = CALL_S
    for pipe in pipes:
        pipe.close()
    talk.send(("began", ""))
    return comm


def _join(name: str, talk: Pipe) -> Communicator | None:
    while not talk.poll():
        try:
            comm = join(f"unix:{name}", SECRET, 2 * GROW_S)
        except (JoinError, PeerFailure):
            continue
        talk.send(("joined", ""))
        return comm
    return None


def _work(comm: Communicator, name: str, talk: Pipe) -> None:
    """Reduce and check, shrink when somebody is lost, grow when there are too few, until told to stop."""
    files, number = len(list(Path("/proc/self/fd").iterdir())), 0
    while True:
        number += 1
        try:
            if _reduced(comm, number, stop=talk.poll()):
                break
            if comm.world_size < RANKS and number % 4 == 0:
                comm = comm.grow(1, address=f"unix:{name}", secret=SECRET, timeout=GROW_S)
                talk.send(("grown", ""))
                number = 0
        except JoinError:
            talk.send(("nobody came", ""))
        except PeerFailure:
            comm, number = _shrunk(comm), 0
            talk.send(("shrunk", ""))
    comm.close()
    more = len(list(Path("/proc/self/fd").iterdir())) - files
    talk.send(("stopped", "") if more <= 0 else ("wrong", f"{more} files are open that were not"))


def _shrunk(comm: Communicator) -> Communicator:
    while True:
        try:
            return comm.shrink(SHRINK_S)
        except PeerFailure:
            continue


def _reduced(comm: Communicator, number: int, *, stop: bool) -> bool:
    """A sum that says who is in it, and whether anybody was told to stop."""
    size = SIZES[number % len(SIZES)]
    x = np.empty(size + 1, np.int64)
    x[:-1] = np.arange(size) + (1 << comm.ranks[comm.rank])
    x[-1] = stop
    in_it = comm.ranks
    if number % 3 == 0:
        x, in_it = comm.all_reduce(x, survive=True)
    else:
        comm.all_reduce(x)
    expected = np.arange(size) * len(in_it) + sum(1 << rank for rank in in_it)
    if not (x[:-1] == expected).all():
        raise ChoreoError(f"a wrong sum: {x[:4]}, not {expected[:4]}, of ranks {in_it} in round {number}")
    return bool(x[-1])


def run(events: int, seed: int, seconds: float = float("inf")) -> tuple[int, list[str], dict[str, int]]:
    """Chaos; how many events there were, what was wrong, and a count of what happened."""
    chaos = Chaos(seed)
    try:
        done = chaos.run(events, seconds)
    finally:
        chaos.stop()
    return done, chaos.wrong, dict(chaos.counted)


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
    done, wrong, counted = run(given.events, seed, given.seconds)
    print(f"{done} events in {time.monotonic() - began_s:.0f} s: {counted}")
    print("\n".join(wrong) or "nothing hung, no sum was wrong, nothing was left behind")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
