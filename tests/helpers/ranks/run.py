"""Real ranks for tests: forked processes that find each other over pipes, run functions of a test, and end with it."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from multiprocessing.context import ForkProcess
from types import TracebackType
from typing import Any

from choreo.run.communicator import Communicator
from choreo.run.connect import connect
from choreo.run.execute.choice import Chooser
from choreo.run.execute.constants import default_constants
from tests.helpers.ranks.prices import price_algorithms

__all__ = ["Job", "PipeBootstrap", "RankError"]

CONTEXT = mp.get_context("fork")
START_S = 60.0


class RankError(AssertionError):
    """Something raised in a rank, with where; `errors` are by rank."""

    def __init__(self, errors: dict[int, str]) -> None:
        super().__init__("\n".join(f"rank {rank}: {text}" for rank, text in errors.items()))
        self.errors = errors


@dataclass
class PipeBootstrap:
    """Exchanges blobs over pipes from rank 0 to all others, in place of a rendezvous."""

    rank: int
    world_size: int
    pipes: list[Pipe]

    def exchange(self, blob: bytes, timeout_s: float) -> list[bytes]:
        """The blobs of all ranks, by rank."""
        if self.rank > 0:
            self.pipes[0].send_bytes(blob)
            assert self.pipes[0].poll(timeout_s)
            return list(self.pipes[0].recv())
        blobs = [blob]
        for pipe in self.pipes:
            assert pipe.poll(timeout_s)
            blobs.append(pipe.recv_bytes())
        for pipe in self.pipes:
            pipe.send(blobs)
        return blobs


@dataclass
class Job:
    """Ranks that stay, so that many tests can use them; a context manager that leaves no process behind.

    Each rank's function gets its communicator first. When one raises, or does not answer in time, the job is over.
    """

    ranks: int
    forced: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    pipes: list[Pipe] = field(default_factory=list)
    processes: list[ForkProcess] = field(default_factory=list)

    def run(self, function: Callable[..., Any], *arguments: Any, timeout_s: float = 120.0) -> list[Any]:
        """What the function returns on every rank, in order of ranks."""
        if not self.processes:
            self._start()
        for pipe in self.pipes:
            pipe.send((function, arguments))
        return self._answers(timeout_s)

    def stop(self) -> None:
        """End the processes, if need be by force."""
        for pipe in self.pipes:
            # Told, since the pipe does not end with this: later jobs inherited it.
            with contextlib.suppress(OSError):
                pipe.send(None)
            pipe.close()
        for process in self.processes:
            process.join(5.0 if process.is_alive() else 0.0)
        for process in self.processes:
            if process.is_alive():
                process.kill()
                process.join(5.0)
        self.pipes, self.processes = [], []

    def kill(self, rank: int) -> None:
        """End one rank without a word."""
        self.processes[rank].kill()
        self.processes[rank].join(5.0)

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self) -> None:
        price_algorithms()
        bootstrap = [CONTEXT.Pipe() for _ in range(self.ranks - 1)]
        ends = [[near for near, _ in bootstrap], *([far] for _, far in bootstrap)]
        for rank in range(self.ranks):
            near, far = CONTEXT.Pipe()
            process = CONTEXT.Process(
                target=self._serve, args=(far, near, PipeBootstrap(rank, self.ranks, ends[rank])), daemon=True
            )
            process.start()
            far.close()
            self.pipes.append(near)
            self.processes.append(process)
        for near, far in bootstrap:
            near.close()
            far.close()
        self._answers(START_S)

    def _answers(self, timeout_s: float) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        found, errors = [], {}
        for rank, pipe in enumerate(self.pipes):
            error, value = f"no answer in {timeout_s} s", None
            try:
                if pipe.poll(max(0.0, deadline - time.monotonic())):
                    error, value = pipe.recv()
            except EOFError:
                error = "died"
            if error:
                errors[rank] = error
            found.append(value)
        if errors:
            for process in self.processes:
                process.kill()
            self.stop()
            raise RankError(errors)
        return found

    def _serve(self, pipe: Pipe, theirs: Pipe, bootstrap: PipeBootstrap) -> None:
        """A rank's life: connect, then do what comes through the pipe until it is closed."""
        for inherited in (theirs, *self.pipes):
            inherited.close()
        try:
            connection = connect(bootstrap, "test", "here", START_S)
            chooser = Chooser(bootstrap.world_size, default_constants(), self.forced)
            comm = Communicator(connection, chooser, timeout_s=20.0, **self.settings)
        except BaseException:
            pipe.send((traceback.format_exc(), None))
            return
        pipe.send(("", None))
        while True:
            try:
                asked = pipe.recv()
            except EOFError:
                return
            if asked is None:
                return
            function, arguments = asked
            try:
                pipe.send(("", function(comm, *arguments)))
            except BaseException:
                pipe.send((traceback.format_exc(), None))
