"""Cases on all cores of this machine. Small sweeps are done in this process before another one would have started."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass, field

from choreo.sweep.compute import MAKERS
from choreo.sweep.tasks import Done, Task, Worker
from choreo.sweep.workers.queue import Queue
from choreo.sweep.workers.wire import receive, send

__all__ = ["available_cores", "run_here"]

ALONE_S = 0.25  # how long this process works alone before it starts others
CHUNK_S = 0.1  # seconds of work that a worker gets at a time
TRIES = 2  # attempts at a case whose worker dies
END_S = 2.0


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_here(verb: str, cases: list[tuple[int, Task]], workers: int) -> Generator[list[Done], None, None]:
    """Compute cases, and yield each as soon as it is done, in no fixed order."""
    queue = Queue(cases)
    yield from _alone(queue, until=time.monotonic() + ALONE_S if workers > 1 else None)
    tries: dict[int, int] = {}
    while queue:
        with _Pool(verb, min(workers, len(queue))) as pool:
            # The others take a moment to start.
            yield from _alone(queue, unless=pool.ready)
            yield from pool.run(queue, tries)


def _alone(queue: Queue, until: float | None = None, unless: object = None) -> Generator[list[Done], None, None]:
    worker = Worker(MAKERS)
    try:
        while queue and (until is None or time.monotonic() < until) and not (callable(unless) and unless()):
            yield [worker.done(number, case) for number, case in queue.take("here", 1)]
    finally:
        worker.close()


@dataclass(slots=True)
class _Peer:
    """A worker: its socket, and the cases it was given. It is computing the first of them."""

    connection: socket.socket
    given: dict[int, Task] = field(default_factory=dict)
    ready: bool = False


class _Pool:
    """Worker processes. They ignore Ctrl-C, which this process handles, and they end when it does."""

    def __init__(self, verb: str, count: int) -> None:
        pairs = [socket.socketpair() for _ in range(count)]
        worker_ends = [pair[1] for pair in pairs]
        # One thread each: the workers already use all cores.
        threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "choreo.sweep.workers.worker", verb, *(str(end.fileno()) for end in worker_ends)],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno() if _has_number(sys.stderr) else subprocess.DEVNULL,
            pass_fds=[end.fileno() for end in worker_ends],
            env=os.environ | threads | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
        for end in worker_ends:
            end.close()
        self._selector = selectors.DefaultSelector()
        self._peers = [_Peer(own_end) for own_end, _ in pairs]
        for peer in self._peers:
            self._selector.register(peer.connection, selectors.EVENT_READ, peer)
        self._case_s = 0.0

    def ready(self) -> bool:
        """Whether all workers have started, or ended."""
        for key, _ in self._selector.select(0):
            if not key.data.ready and self._received(key.data) is None:
                self._drop(key.data)
        return all(peer.ready for peer in self._peers)

    def run(self, queue: Queue, tries: dict[int, int]) -> Generator[list[Done], None, None]:
        """Hand out cases until no case or no worker is left."""
        began, count = time.monotonic(), 0
        while self._peers and (queue or any(peer.given for peer in self._peers)):
            most = max(1, int(CHUNK_S / self._case_s)) if self._case_s else 1
            for peer in list(self._peers):
                # Send the next chunk before the last one is done.
                if queue and len(peer.given) <= most // 2:
                    self._give(peer, queue.take(id(peer), most, len(self._peers)), queue)
            done: list[Done] = []
            for key, _ in self._selector.select(1.0):
                found = self._received(key.data)
                if isinstance(found, Done):
                    key.data.given.pop(found.number, None)
                    done.append(found)
                elif found is None:
                    done += self._lost(key.data, queue, tries)
            if done:
                count += len(done)
                self._case_s = (time.monotonic() - began) * len(self._peers or [0]) / count
                yield done

    def _give(self, peer: _Peer, cases: list[tuple[int, Task]], queue: Queue) -> None:
        if not cases:
            return
        peer.given.update(cases)
        with suppress(OSError):  # it is dead; reading its socket will show that
            send(peer.connection, cases)

    def _received(self, peer: _Peer) -> object:
        """What a worker sent: a case that is done, True when it is ready, None when it has died."""
        try:
            found = receive(peer.connection)
        except (EOFError, OSError):
            return None
        peer.ready = True
        return True if found is None else found

    def _lost(self, peer: _Peer, queue: Queue, tries: dict[int, int]) -> list[Done]:
        """Hand out a dead worker's cases again; the one it was computing only a limited number of times."""
        self._drop(peer)
        found = []
        for place, (number, case) in enumerate(peer.given.items()):
            tries[number] = tries.get(number, 0) + (place == 0)
            if tries[number] < TRIES:
                queue.put(number, case)
            else:
                why = f"the process that computed it was killed, {TRIES} times; is there enough memory?"
                found.append(Done(number, {**case.values, "error": why}, kept=False))
        return found

    def _drop(self, peer: _Peer) -> None:
        self._selector.unregister(peer.connection)
        peer.connection.close()
        self._peers.remove(peer)

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for peer in list(self._peers):
            self._drop(peer)
        self._selector.close()
        with suppress(OSError):  # unfinished work is discarded
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # a busy machine may take its time
            self._process.wait(END_S)


def _has_number(stream: object) -> bool:
    try:
        return stream is not None and stream.fileno() >= 0  # type: ignore[attr-defined]
    except (OSError, ValueError, AttributeError):
        return False
