"""Ranks as real processes that tests kill, stop and resume. Only their rendezvous is simpler than in a job."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self, TypeAlias

import choreo
from choreo.run.communicator import Communicator
from choreo.run.connect import connect
from choreo.run.execute.choice import Chooser
from choreo.run.execute.constants import default_constants
from tests.helpers.ranks.fork_server import CONTEXT, start_server
from tests.helpers.ranks.run import PipeBootstrap

Pipe: TypeAlias = Connection
PATIENCE_S = 60.0  # for what takes a second on a machine that has nothing else to do


@dataclass(frozen=True)
class Ended:
    """How a rank ended: what its function returned, or the error it raised; neither if it was killed."""

    value: Any = None
    error: str = ""  # the class
    text: str = ""
    ranks: tuple[int, ...] = ()


def values(found: list[Ended]) -> list[Any]:
    """What the ranks returned; what one raised fails the test."""
    assert not [one for one in found if one.error], "\n".join(one.text for one in found)
    return [one.value for one in found]


class Ranks:
    """Processes with a pipe each to the test, which ends them with it."""

    talks: list[Pipe]
    processes: list[Any]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.kill(process.pid or 0, signal.SIGKILL)
            process.join()
        for talk in self.talks:
            talk.close()

    @property
    def pids(self) -> list[int]:
        """Their process numbers."""
        return [process.pid or 0 for process in self.processes]

    def tell(self, rank: int, number: int) -> None:
        """Send a signal to a rank."""
        os.kill(self.processes[rank].pid or 0, number)

    def hear(self, rank: int) -> Any:
        """What a rank says next."""
        assert self.talks[rank].poll(PATIENCE_S), f"rank {rank} says nothing"
        return self.talks[rank].recv()

    def hear_all(self) -> list[Any]:
        """What every rank says next."""
        return [self.hear(rank) for rank in range(len(self.talks))]

    def ended(self, *ranks: int) -> list[Ended]:
        """How these ranks ended, or all."""
        found = []
        for rank in ranks or range(len(self.talks)):
            try:
                said = self.hear(rank)
                while not isinstance(said, Ended):
                    said = self.hear(rank)
            except (EOFError, ConnectionError):
                said = Ended()
            found.append(said)
        return found


class Job(Ranks):
    """Ranks that all run one function of their communicator, their pipe to the test, and some arguments."""

    def __init__(self, world_size: int, body: Callable[..., Any], *args: object, timeout_s: float = 30.0) -> None:
        start_server()
        pairs = [CONTEXT.Pipe() for _ in range(world_size - 1)]
        talks = [CONTEXT.Pipe() for _ in range(world_size)]
        self.talks = [mine for mine, _ in talks]
        self.processes = []
        for rank in range(world_size):
            pipes = [mine for mine, _ in pairs] if rank == 0 else [pairs[rank - 1][1]]
            given = (rank, world_size, pipes, talks[rank][1], body, args, timeout_s)
            self.processes.append(CONTEXT.Process(target=_rank, args=given, daemon=True))
        for process in self.processes:
            process.start()
        for _, theirs in (*pairs, *talks):
            theirs.close()
        for mine, _ in pairs:
            mine.close()


def _rank(
    rank: int, world_size: int, pipes: list[Pipe], talk: Pipe, body: Callable[..., Any], args: Any, timeout_s: float
) -> None:
    faulthandler.dump_traceback_later(0.8 * PATIENCE_S)  # where it hangs, if it does
    try:
        connection = connect(PipeBootstrap(rank, world_size, pipes), f"test{os.getppid()}", "here", 30.0)
        communicator = Communicator(connection, Chooser(world_size, default_constants(), {}))
        communicator.timeout_s = timeout_s
        for pipe in pipes:
            pipe.close()
        ended = run_body(body, communicator, talk, *args)
    except BaseException:  # whatever it is, the test must hear of it
        ended = Ended(error="in the test", text=traceback.format_exc())
    with suppress(OSError):
        talk.send(ended)
        wait(
            [talk], PATIENCE_S
        )  # the end of a process is a failure to those who are still at it: let the test say when


def run_body(body: Callable[..., Any], communicator: Communicator | None, talk: Pipe, *args: Any) -> Ended:
    """Run a rank's function, and say how it ended."""
    try:
        return Ended(body(communicator, talk, *args))
    except Exception as error:  # the test looks at it
        text = str(error) if type(error).__module__.startswith("choreo") else traceback.format_exc()
        return Ended(error=type(error).__name__, text=text, ranks=tuple(sorted(getattr(error, "ranks", ()))))


def segments(*owners: int) -> set[str]:
    """Names in shared memory of what these processes have made, or all; other tests have names for a moment, too."""
    found = {path.name for path in Path("/dev/shm").glob("choreo-*")}
    return {name for name in found if _owner(name) in owners} if owners else found


def left_since(before: set[str]) -> set[str]:
    """Names in shared memory that have come since and stay, of processes that have ended: the others are not ours.

    A start in between removes those of killed ranks.
    """
    left = segments() - before

    def is_removed() -> bool:
        choreo.init().close()
        return not {name for name in left & segments() if not Path(f"/proc/{_owner(name)}").exists()}

    return set() if eventually(is_removed) else left & segments()


def _owner(name: str) -> int:
    """The process that made a name in shared memory."""
    parts = name.split("-")
    return int(parts[3] if parts[1] == "probe" else parts[-2])


def names_held(pid: int) -> set[str]:
    """Names in shared memory, or names that were there, of what a process has mapped."""
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines()
    paths = (line.partition("/dev/shm/")[2].removesuffix(" (deleted)") for line in maps)
    return {path for path in paths if path.startswith("choreo-")}


def eventually(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> bool:
    """Whether something comes true before long."""
    end_s = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() >= end_s:
            return False
        time.sleep(0.02)
    return True
