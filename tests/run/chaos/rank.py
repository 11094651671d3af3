"""A rank of `chaos`, from its coming to its end: it reduces, checks, shrinks and grows, and tells the driver."""

from __future__ import annotations

import faulthandler
import gc
import os
import random
import signal
import threading
import time
import traceback
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import choreo
from choreo.errors import ChoreoError, CommunicatorClosed, JoinError, PeerFailure
from choreo.run.communicator import Communicator
from tests.helpers.ranks.faults import Pipe

SECRET = "what only this chaos knows"
SIZES = (1, 7, 3000, 20_000, 700_000)
TOLD_EVERY = 3  # calls
ENDING_S = 20.0  # on a busy machine


@dataclass(frozen=True)
class Settings:
    """How large a job is, and how long its ranks wait."""

    ranks: int = 4
    call_s: float = 0.5
    shrink_s: float = 6.0
    grow_s: float = 0.6
    address: str = "127.0.0.1"
    addresses: str = ""  # of all machines
    sizes: tuple[int, ...] = SIZES


def life(
    settings: Settings,
    talk: Pipe,
    port: int | None,
    place: int,
    rank: int | None,
    prepare: Callable[[int], None] | None,
    seed: str,
) -> None:
    """A process of a job: one of its first ranks, or one that comes later.

    Without a `port`, a launcher's variables say where the ranks meet, and which of them this is.
    """
    faulthandler.register(signal.SIGUSR1)
    if prepare is not None:
        prepare(place)
    os.environ.update(CHOREO_SECRET=SECRET, CHOREO_ADDRESSES=settings.addresses)
    if port is not None:
        os.environ.update(MASTER_ADDR=settings.address, MASTER_PORT=str(port))
    if rank is not None and port is not None:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(settings.ranks))
    try:
        _Rank(settings, talk, seed=seed).live(first=rank is not None)
    except BaseException:  # whatever it is, the driver must hear of it
        talk.send(("wrong", None, traceback.format_exc()))


def _held() -> tuple[int, int, int]:
    """Descriptors, mappings of segments, and threads of this process."""
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm/choreo-" in line]
    return len(list(Path("/proc/self/fd").iterdir())), len(maps), threading.active_count()


class _Rank:
    def __init__(self, settings: Settings, talk: Pipe, *, seed: str) -> None:
        self._settings, self._talk = settings, talk
        self._random = random.Random(seed)
        self._told_to = ""
        self._most: dict[int, tuple[int, int, int]] = {}  # by how many of the others are on other hosts

    def live(self, *, first: bool) -> None:
        """Be a rank, and when that ends come again, until told to stop."""
        come, why = self._begin if first else self._join, ""
        while why != "stop":
            try:
                why = self._work(come())  # and no variable here that would keep it
            except CommunicatorClosed as error:
                if "go on without it" not in str(error):
                    raise
                self._tell("excluded", None, None)
            come = self._join
        self._check_leaks(0)
        self._tell("stopped", None, None)

    def _tell(self, kind: str, about: object, said: object) -> None:
        self._talk.send((kind, about, said))

    def _begin(self) -> Communicator | None:
        comm = choreo.init(timeout=60.0)
        self._tell("began", None, None)
        return comm

    def _join(self) -> Communicator | None:
        while self._orders() != "stop":
            try:
                comm = choreo.join(timeout=2 * self._settings.grow_s)
            except (JoinError, PeerFailure):
                self._tell("still out", None, None)
                continue
            self._tell("joined", None, None)
            return comm
        return None

    def _orders(self) -> str:
        while self._talk.poll():
            self._told_to = self._talk.recv()
        return self._told_to

    def _work(self, comm: Communicator | None) -> str:
        """Reduce and check, shrink when somebody is lost, grow when there are too few; why it ended."""
        if comm is None:
            return "stop"
        comm.timeout_s = self._settings.call_s
        number, identity, digest = 0, 0, 0
        shrunk = 0  # the identity of the communicator that this one came from, by shrink
        while True:
            try:
                if number == 0:
                    identity, digest = self._identified(comm), 0
                    if shrunk:
                        self._tell("went on", shrunk, (identity, comm.ranks))
                    shrunk = 0
                number += 1
                orders = self._orders()
                if orders == "leave" and number > 1:
                    self._told_to = ""
                    comm.close()
                    self._tell("left", None, None)
                    return "left"
                stop, digest = self._reduced(comm, number, digest, stop=orders == "stop")
                if number % TOLD_EVERY == 0:
                    self._tell("same", (identity, number), digest)
                if stop:
                    comm.close()
                    return "stop"
                if comm.world_size < self._settings.ranks and number % 3 == 0:
                    comm = comm.grow(timeout=self._settings.grow_s)
                    comm.timeout_s = self._settings.call_s
                    self._tell("grown", None, None)
                    self._check_leaks(comm.world_size, int(comm._engine.connection.remote.sum()))
                    number = 0
            except JoinError:
                self._tell("nobody came", None, None)
            except PeerFailure as error:
                # Nobody knows yet how to call it, or on this side of a cut nobody decides.
                if identity and comm._engine.connection.failure is not None:
                    self._tell("failed", identity, sorted(error.ranks))
                comm = comm.shrink(self._settings.shrink_s)
                self._tell("shrunk", None, None)
                # If this one fails before all know how to call it, a rank may have come a communicator further.
                shrunk, identity, number = identity, 0, 0

    def _identified(self, comm: Communicator) -> int:
        """A number for this communicator that all its ranks know."""
        drawn = np.array([self._random.randrange(1, 1 << 62)], np.int64)
        comm.all_reduce(drawn, choreo.ReduceOp.MAX)
        return int(drawn[0])

    def _reduced(self, comm: Communicator, number: int, digest: int, *, stop: bool) -> tuple[bool, int]:
        """A sum that says who is in it, and whether anybody was told to stop."""
        if self._random.random() < 0.5:
            time.sleep(self._random.uniform(0, 0.003))  # what a program does between calls
        size = self._settings.sizes[number % len(self._settings.sizes)]
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
        return bool(x[-1]), zlib.crc32(repr((number, in_it, int(x[-1]))).encode(), digest)

    def _check_leaks(self, world_size: int, elsewhere: int = 0) -> None:
        """That this process holds no more than when it was last in such a communicator; if it is in none, in any."""
        if world_size not in (0, self._settings.ranks):
            return
        gc.collect()
        held = _held()
        like = [most for key, most in self._most.items() if world_size == 0 or key == elsewhere]
        if world_size:
            self._most.setdefault(elsewhere, held)

        def too_much() -> bool:
            return any(now > max(before) for now, before in zip(held, zip(*like, strict=True), strict=False))

        end_s = time.monotonic() + ENDING_S
        while too_much() and time.monotonic() < end_s:  # threads of what was just collected take a moment to end
            time.sleep(0.05)
            gc.collect()  # what a thread held on to when the rest was collected
            held = _held()
        if too_much():
            names = "\n".join(sorted(os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.exists()))  # noqa: PTH115
            raise ChoreoError(f"descriptors, mappings, threads: {held}, where there were {like}\n{names}")
