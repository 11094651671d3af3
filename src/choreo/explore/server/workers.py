"""The worker processes of the page: a few, each with one request at a time, ended when the client is gone."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field

__all__ = ["AllBusyError", "AskerGoneError", "Workers"]

# The longest line of an answer, and how long to wait for it.
MOST_ANSWER = 256 << 20
PATIENCE_S = 900.0
# If malloc returns memory after every answer, the kernel must clear it again for the next, which takes longer than the
# work. A worker keeps this much free memory. Only glibc reads this setting.
KEPT = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 29)}


class AllBusyError(Exception):
    """All workers have been busy for a while."""


class AskerGoneError(Exception):
    """The client has closed the connection."""


@dataclass(eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    unread: bytearray = field(default_factory=bytearray)

    @staticmethod
    def started() -> _Worker:
        return _Worker(
            subprocess.Popen(
                [sys.executable, "-m", "choreo.explore.server.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**KEPT, **os.environ},
                start_new_session=True,  # so that what it starts ends with it, and Ctrl-C is for the server
            )
        )

    def end(self) -> None:
        """End it and all that it started, at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        self.process.wait()


class Workers:
    """At most `most` workers; one is started before it is needed."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.idle: list[_Worker] = []
        self.all: set[_Worker] = set()
        self.free = threading.BoundedSemaphore(most)
        self.lock = threading.Lock()
        self.closed = False

    def warm(self) -> None:
        """Start one, so that the first request need not wait for it."""
        self._give_back(self._started())

    def ask(self, line: bytes, asker: socket.socket | None, patience_s: float = 20.0) -> Generator[bytes, None, None]:
        """The answers to a line. A client that stops reading, or closes its connection, ends the worker."""
        if not self.free.acquire(timeout=patience_s):
            raise AllBusyError
        worker, done = self._taken(), False
        try:
            assert worker.process.stdin is not None
            worker.process.stdin.write(line + b"\n")
            worker.process.stdin.flush()
            while not done:
                answer = _next(worker, asker)
                done = not answer.startswith(b'{"part"')
                yield answer
        except (BrokenPipeError, EOFError):
            yield b'{"error":"the process that worked on this ended; there may not have been enough memory","field":""}'
        finally:
            if done:
                self._give_back(worker)
            else:
                self._end(worker)
            self.free.release()

    def close(self) -> None:
        """End all."""
        with self.lock:
            self.closed = True
            ended, self.all, self.idle = list(self.all), set(), []
        for worker in ended:
            worker.end()

    def _taken(self) -> _Worker:
        """One that is idle, or a new one."""
        with self.lock:
            if self.idle:
                return self.idle.pop()
        return self._started()

    def _started(self) -> _Worker:
        with self.lock:
            if self.closed:
                raise AllBusyError
            worker = _Worker.started()
            self.all.add(worker)
        return worker

    def _give_back(self, worker: _Worker) -> None:
        with self.lock:
            if not self.closed:
                self.idle.append(worker)

    def _end(self, worker: _Worker) -> None:
        with self.lock:
            known = worker in self.all
            self.all.discard(worker)
        if known:
            worker.end()


def _next(worker: _Worker, asker: socket.socket | None) -> bytes:
    """The worker's next line, unless the client disconnects first."""
    assert worker.process.stdout is not None
    pipe, until_s = worker.process.stdout.fileno(), time.monotonic() + PATIENCE_S
    searched = 0
    while (end := worker.unread.find(b"\n", searched)) < 0:
        searched = len(worker.unread)
        watched: list[int | socket.socket] = [pipe] if asker is None else [pipe, asker]
        ready, _, _ = select.select(watched, [], [], max(0.0, until_s - time.monotonic()))
        if asker in ready and asker is not None and not asker.recv(1, socket.MSG_PEEK):
            raise AskerGoneError
        if pipe in ready:
            read = os.read(pipe, 1 << 20)
            if not read:
                raise EOFError
            worker.unread += read
        if not ready or len(worker.unread) > MOST_ANSWER:
            raise EOFError
    line = bytes(worker.unread[:end])
    del worker.unread[: end + 1]
    return line
