"""Many calls of many kinds in one job, after which a rank must hold no more than it did after the first tenth.

    python -m tests.run.chaos.soak --calls 1000000 --ranks 2

What each call is depends on the seed, so that all ranks make the same ones. Every result is checked. At every tenth a
rank says what memory, descriptors, threads and mappings of segments it has.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import gc
import operator
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from choreo.run.communicator import Communicator
from tests.helpers.ranks.faults import Ended, Job, Pipe, eventually

SMALL, LARGE = (1, 1, 1, 1, 2, 3, 7, 8, 33, 100, 257, 512), 1 << 17  # numbers of eight bytes
SLACK_KIB = 2048  # of resident memory, for the allocator and for calls that were prepared
ENDING_S = 10.0


class Holds(NamedTuple):
    """What a process has."""

    resident_kib: int
    descriptors: int
    threads: int
    maps: int


Call: TypeAlias = Callable[[Communicator, int, random.Random], None]


def _all_reduce(comm: Communicator, number: int, drawn: random.Random, count: int = 0) -> None:
    size = comm.world_size
    x = np.full(count or drawn.choice(SMALL), number + comm.rank)
    comm.all_reduce(x)
    _check(x, size * number + size * (size - 1) // 2)


def _broadcast(comm: Communicator, number: int, drawn: random.Random) -> None:
    root = drawn.randrange(comm.world_size)
    x = np.full(drawn.choice(SMALL), number if comm.rank == root else -1)
    comm.broadcast(x, root)
    _check(x, number)


def _all_gather(comm: Communicator, number: int, drawn: random.Random) -> None:
    x = np.full(drawn.choice(SMALL), number + comm.rank)
    _check(comm.all_gather(x), number + np.arange(comm.world_size)[:, None])


def _messages(comm: Communicator, number: int, drawn: random.Random) -> None:
    """To the next rank, and from the one before, each time with another tag."""
    sent = np.full(drawn.choice(SMALL), number + comm.rank)
    work = comm.isend(sent, (comm.rank + 1) % comm.world_size, tag=number)
    before = (comm.rank - 1) % comm.world_size
    _check(comm.recv(np.empty_like(sent), before, tag=number), number + before)
    work.wait()


def _group(comm: Communicator, number: int, drawn: random.Random) -> None:
    """It is closed, or just dropped."""
    group = comm.new_group(drawn.sample(range(comm.world_size), comm.world_size))
    assert isinstance(group, Communicator)
    _all_reduce(group, number, drawn)
    if drawn.random() < 0.5:
        group.close()


CALLS: dict[Call, float] = {
    _all_reduce: 70,
    functools.partial(_all_reduce, count=LARGE): 0.5,
    lambda comm, _number, _drawn: comm.barrier(): 8,
    _broadcast: 8,
    _all_gather: 7,
    _messages: 6.5,
    _group: 0.02,
}


def _check(x: np.ndarray, expected: object) -> None:
    if not (x == expected).all():
        raise AssertionError(f"{x}, not {expected}")


def _holds() -> Holds:
    gc.collect()
    status = Path("/proc/self/status").read_text().split()
    resident_kib = int(status[status.index("VmRSS:") + 1])
    maps = Path("/proc/self/maps").read_text().count("/dev/shm/choreo-")
    return Holds(resident_kib, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), maps)  # noqa: PTH208


def _rank(comm: Communicator, talk: Pipe, calls: int, seed: int) -> None:
    """All calls, and at every tenth a word of what this rank holds."""
    faulthandler.cancel_dump_traceback_later()
    drawn = random.Random(seed)
    for call in CALLS:  # what is made once for each kind is no growth
        call(comm, 0, drawn)
    first: Holds | None = None
    for tenth in range(10):
        numbers = range(tenth * calls // 10, (tenth + 1) * calls // 10)
        for number, call in zip(numbers, drawn.choices([*CALLS], [*CALLS.values()], k=len(numbers)), strict=True):
            call(comm, number, drawn)
        first = first or _holds()
        most = Holds(first.resident_kib + SLACK_KIB, *first[1:])
        eventually(lambda: all(map(operator.le, _holds()[1:], most[1:])), ENDING_S)  # noqa: B023 - a dropped group
        talk.send((numbers.stop, now := _holds(), any(map(operator.gt, now, most))))
        comm.barrier(timeout=2 * ENDING_S)


def soak(calls: int, ranks: int, seed: int) -> list[str]:
    """Make so many calls; what was wrong."""
    began_s, wrong = time.monotonic(), []
    with Job(ranks, _rank, calls, seed) as job:
        talks = dict(enumerate(job.talks))
        while talks:
            for rank, talk in list(talks.items()):
                said = talk.recv()  # every call has a deadline
                if isinstance(said, Ended):
                    del talks[rank]
                    wrong += [f"rank {rank}: {said.text}"] * bool(said.error)
                    continue
                done, holds, grew = said
                print(f"{time.monotonic() - began_s:.0f} s, {done} calls, rank {rank}: {holds}", flush=True)
                wrong += [f"rank {rank} holds more after {done} calls: {holds}"] * grew
    return wrong


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    wrong = soak(given.calls, given.ranks, given.seed)
    print("\n".join(wrong) or "every result was right, and nothing grew")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
